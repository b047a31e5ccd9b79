package upstreams

import (
	"time"

	"meshrelay/adsclient"
	"meshrelay/trouble"
	"meshrelay/upstreams/intake"
)

// State is the state of a source, as operators see it. In every state, the resources of the source are served.
type State string

// The states of a source.
const (
	// StateConnecting: no stream has been open yet.
	StateConnecting State = "connecting"
	// StateSyncing: the source has not answered everything yet, or not read all files.
	StateSyncing State = "syncing"
	// StateSynced: the whole content of the source is mirrored, and changes follow.
	StateSynced State = "synced"
	// StateDisconnected: the source was in contact before, and is not now.
	StateDisconnected State = "disconnected"
	// StateDenied: the source refuses the identity of the relay.
	StateDenied State = "denied"
	// StateFailed: the source can not be read, or is a relay with the name of this relay.
	StateFailed State = "failed"
)

// States returns all states, in the order of the documents.
func States() []State {
	return []State{StateConnecting, StateSyncing, StateSynced, StateDisconnected, StateDenied, StateFailed}
}

// Status is a snapshot of one source. Counters are since the start of the process.
type Status struct {
	Name string `json:"name"`
	// ClusterID is the cluster of the source.
	ClusterID string `json:"clusterID,omitempty"`
	// Type is the kind of source: the name of its section in the config file.
	Type string `json:"type"`
	// State is the present state, entered at Since.
	State State     `json:"state"`
	Since time.Time `json:"since"`
	// ContactLost is since when the source is out of contact: its last known contact, or else Since. It is zero in contact.
	ContactLost time.Time `json:"contactLost,omitzero"`
	intake.Status
	// Address is host:port or a path. Addresses has the addresses of an xds source, in order of preference.
	// Switches counts the changes from one address to another.
	Address   string                    `json:"address,omitempty"`
	Addresses []adsclient.AddressStatus `json:"addresses,omitempty"`
	Switches  uint64                    `json:"switches,omitempty"`
	// Protocol is "sotw" or "delta" for an xds source with an open stream.
	Protocol string `json:"protocol,omitempty"`
	// LastError is the last error, with a cure. It is empty when there was none.
	LastError string `json:"lastError,omitempty"`
	// Silence describes an xds server that is silent about awaited types for a while, and what to do.
	Silence string `json:"silence,omitempty"`
	// Resources counts the mirrored resources, by "group/Kind".
	Resources map[string]int `json:"resources,omitempty"`
	// Endpoints is set where the endpoints of services are discovered.
	Endpoints *EndpointsStatus `json:"endpoints,omitempty"`
	// Following has each kind, for a source that follows kinds one by one.
	Following []FollowedKind `json:"following,omitempty"`
	// Notes are lines for operators. The source bounds them.
	Notes []string `json:"notes,omitempty"`
	// Detail has the fields that only sources of this kind have: a struct of the package of the kind, or a
	// map after JSON.
	Detail any `json:"detail,omitempty"`
	// Found is set for the API server of a cluster that was found.
	Found *FoundStatus `json:"found,omitempty"`
	// Required: the relay is not ready while the source is stale.
	Required bool `json:"required,omitempty"`
	// FirstSync is set until the first sync, unless the disk had the source at the start.
	FirstSync *FirstSync `json:"firstSync,omitempty"`
	// Double is why all its resources are left out: another upstream reads its cluster. It is empty for most.
	Double string `json:"double,omitempty"`
	// Kept is why the credentials of before are used for a part, and what the new ones can not do.
	Kept string `json:"kept,omitempty"`
	// Drift counts, by "group/Kind", changes that a full answer brought, and that no push had brought before.
	Drift map[string]uint64 `json:"drift,omitempty"`
	// Told is what an upstream that is a relay tells of problems with its own upstreams, while it is in contact.
	Told trouble.Report `json:"told,omitzero"`
	// MayWait is why the source may itself be waiting for this relay, empty when there is no reason.
	MayWait string `json:"-"`
	// Reconnects counts the streams after the first. NACKs counts the responses that were rejected in part or
	// whole.
	Reconnects uint64 `json:"reconnects"`
	NACKs      uint64 `json:"nacks"`
}

// Enter sets State, and Since if the state is another.
func (st *Status) Enter(state State) {
	if st.State != state {
		st.State, st.Since = state, time.Now()
	}
}

// EndpointsStatus is the status of the discovery of endpoints.
type EndpointsStatus struct {
	// Clusters counts the Envoy clusters that the relay asks for, one for each port of a service. Answered
	// counts those with an answer, Awaited those that the relay still waits for.
	Clusters int `json:"clusters"`
	Answered int `json:"answered"`
	Awaited  int `json:"awaited,omitempty"`
	// NACKs counts the responses that were rejected in part or whole.
	NACKs uint64 `json:"nacks,omitempty"`
	// LastError is the last error, empty when there is none.
	LastError string `json:"lastError,omitempty"`
	// None is why no service has any endpoint, and what to do. It is empty when one has, or while they are awaited.
	None string `json:"none,omitempty"`
}

// FoundStatus describes how a found cluster was found.
type FoundStatus struct {
	// Clusters is the name of the element of clusters in the config. Origin is where the kubeconfig is, or was.
	Clusters string `json:"clusters"`
	Origin   string `json:"origin"`
	// State is found, orphaned or held, since Since.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// RemoveAt is when an orphaned cluster is removed, zero for never.
	RemoveAt time.Time `json:"removeAt,omitzero"`
	// Problem is why the newest kubeconfig is not used. Note is a line for operators.
	Problem string `json:"problem,omitempty"`
	Note    string `json:"note,omitempty"`
}

// FollowedKind is how one kind is followed, in one namespace or in all.
type FollowedKind struct {
	Kind      string `json:"kind"`
	Version   string `json:"version"`
	Namespace string `json:"namespace,omitempty"`
	// State is listing, following, failing, denied, unserved, or polled (listed at intervals, not watched).
	State string `json:"state"`
	// Reason is the error, empty for none.
	Reason string `json:"reason,omitempty"`
}

// Followed reports whether the kind is followed as it should be.
func (k FollowedKind) Followed() bool { return k.State == "following" || k.State == "polled" }
