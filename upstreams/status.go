package upstreams

import (
	"time"

	"meshrelay/adsclient"
	"meshrelay/upstreams/intake"
)

// State is the state of a source, as operators see it. The relay serves what a source gave in each.
type State string

// The states of a source.
const (
	// StateConnecting: no stream is open and none was refused for who we are.
	StateConnecting State = "connecting"
	// StateSyncing: the first answers, or the first reading of files, are not complete.
	StateSyncing State = "syncing"
	// StateSynced: all that the source has is mirrored and changes follow.
	StateSynced State = "synced"
	// StateDisconnected: the source was reached before and is not now.
	StateDisconnected State = "disconnected"
	// StateDenied: the source refuses our identity.
	StateDenied State = "denied"
	// StateFailed: the source can not be read, or is a relay of this one's own name.
	StateFailed State = "failed"
)

// Status is a snapshot of one source. Counters are since the start of the process.
type Status struct {
	Name string `json:"name"`
	// ClusterID is the cluster that the source speaks for.
	ClusterID string `json:"clusterID,omitempty"`
	// Type is the kind of source, as its section in the config file is called.
	Type string `json:"type"`
	// State is the present state, entered at Since.
	State State     `json:"state"`
	Since time.Time `json:"since"`
	// The intake knows the rest of what it has taken.
	intake.Status
	// Address is host:port or a path; Addresses has each address of an xds source, in order of
	// preference, and Switches counts how often another one was taken.
	Address   string                    `json:"address,omitempty"`
	Addresses []adsclient.AddressStatus `json:"addresses,omitempty"`
	Switches  uint64                    `json:"switches,omitempty"`
	// Protocol is "sotw" or "delta" for an xds source with an open stream.
	Protocol string `json:"protocol,omitempty"`
	// LastError is the most recent failure, with what to do about it, empty without one.
	LastError string `json:"lastError,omitempty"`
	// Resources counts what is mirrored, by "group/Kind".
	Resources map[string]int `json:"resources,omitempty"`
	// Endpoints is set where the endpoints of services are discovered.
	Endpoints *EndpointsStatus `json:"endpoints,omitempty"`
	// Following is how each kind is followed, where a source follows kinds one by one.
	Following []FollowedKind `json:"following,omitempty"`
	// Notes tell operators what else there is to know, a line each. The source bounds them.
	Notes []string `json:"notes,omitempty"`
	// Detail is what only sources of this kind have: a struct of the package of the kind, and a map for
	// who reads it as JSON.
	Detail any `json:"detail,omitempty"`
	// Found is set for the API server of a cluster that was found.
	Found *FoundStatus `json:"found,omitempty"`
	// Required: the relay is not ready while the source is stale.
	Required bool `json:"required,omitempty"`
	// FirstSync is set until the first sync, unless the source was on disk at the start.
	FirstSync *FirstSync `json:"firstSync,omitempty"`
	// Drift counts, by "group/Kind", changes that came with a full answer and not with a push.
	Drift map[string]uint64 `json:"drift,omitempty"`
	// MayWait is why the source may itself be waiting for this relay, empty when it is not known to.
	MayWait string `json:"-"`
	// Reconnects counts streams after the first, NACKs responses rejected in part or whole.
	Reconnects uint64 `json:"reconnects"`
	NACKs      uint64 `json:"nacks"`
	// Relayed is as in config.Source.
	Relayed bool `json:"-"`
}

// Enter makes a state the present one.
func (st *Status) Enter(state State) {
	if st.State != state {
		st.State, st.Since = state, time.Now()
	}
}

// EndpointsStatus is the status of a source's endpoints.
type EndpointsStatus struct {
	// Clusters are asked for, one for each port of a service: Answered of them are answered, and
	// Awaited still waited for.
	Clusters int `json:"clusters"`
	Answered int `json:"answered"`
	Awaited  int `json:"awaited,omitempty"`
	// NACKs counts responses rejected in part or whole.
	NACKs uint64 `json:"nacks,omitempty"`
	// LastError is the most recent failure, empty while there is none.
	LastError string `json:"lastError,omitempty"`
}

// FoundStatus tells how an upstream was found.
type FoundStatus struct {
	// Clusters is the name of the part of the config, and Origin where the kubeconfig is, or was.
	Clusters string `json:"clusters"`
	Origin   string `json:"origin"`
	// State is found, orphaned or held, since Since.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// RemoveAt is when an orphaned cluster is removed, zero for never.
	RemoveAt time.Time `json:"removeAt,omitzero"`
	// Problem tells why the newest kubeconfig is not used, Note what else there is to know.
	Problem string `json:"problem,omitempty"`
	Note    string `json:"note,omitempty"`
}

// FollowedKind is how one kind is followed, in one namespace or in all.
type FollowedKind struct {
	Kind      string `json:"kind"`
	Version   string `json:"version"`
	Namespace string `json:"namespace,omitempty"`
	// State is listing, following, failing, denied, unserved, or polled where nothing waits for it.
	State string `json:"state"`
	// Reason tells what is wrong, empty for nothing.
	Reason string `json:"reason,omitempty"`
}

// Followed reports whether nothing is wrong with it.
func (k FollowedKind) Followed() bool { return k.State == "following" || k.State == "polled" }
