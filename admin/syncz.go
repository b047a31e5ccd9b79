package admin

import (
	"io"
	"maps"
	"net/url"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshrelay/downstream"
)

// syncStatus is a client in istiod's /debug/syncz. It has no fields such as cluster_sent, which istiod has for
// Envoys: clients of a relay subscribe to other types, which are in Configs.
type syncStatus struct {
	ClusterID    string       `json:"cluster_id,omitempty"`
	Proxy        string       `json:"proxy,omitempty"`
	ProxyType    string       `json:"proxy_type,omitempty"`
	IstioVersion string       `json:"istio_version,omitempty"`
	Configs      []configSync `json:"configs"`
}

// configSync is the state of one type of a client.
type configSync struct {
	TypeURL string `json:"type_url"`
	// Status is SYNCED, STALE, NOT_SENT or ERROR.
	Status      string    `json:"status"`
	NonceSent   string    `json:"nonce_sent,omitempty"`
	NonceAcked  string    `json:"nonce_acked,omitempty"`
	VersionSent string    `json:"version_sent,omitempty"`
	LastSent    time.Time `json:"last_sent,omitzero"`
	// Error is the client's last NACK, until the next ACK.
	Error string `json:"error,omitempty"`
}

func (d *Debug) syncz(w io.Writer, q url.Values) error {
	out := &arrayWriter{w: w}
	for _, c := range d.clients.Clients() {
		if ns := q.Get("namespace"); ns != "" && ns != c.Namespace {
			continue
		}
		// An Istio node id is type~ip~name~domain.
		nodeType, _, ok := strings.Cut(c.NodeID, "~")
		if !ok {
			nodeType = ""
		}
		s := syncStatus{
			ClusterID: c.ClusterID, Proxy: c.NodeID, ProxyType: nodeType, IstioVersion: c.IstioVersion,
			Configs: make([]configSync, len(c.Types)),
		}
		for i, t := range c.Types {
			s.Configs[i] = configSync{
				TypeURL: t.TypeURL, Status: configStatus(t).String(), NonceSent: t.SentNonce, NonceAcked: t.AckedNonce,
				VersionSent: t.SentVersion, LastSent: t.SentAt, Error: t.LastNACK,
			}
		}
		out.add(s)
	}
	return out.close()
}

// configStatus translates the state of a type. TypeStatus.Synced is true for MeshConfig once it was sent, because
// istiod never acknowledges it (PROTOCOL S6, D1).
func configStatus(t downstream.TypeStatus) statusv3.ConfigStatus {
	switch {
	case t.LastNACK != "":
		return statusv3.ConfigStatus_ERROR
	case t.SentNonce == "":
		return statusv3.ConfigStatus_NOT_SENT
	case t.Synced:
		return statusv3.ConfigStatus_SYNCED
	}
	return statusv3.ConfigStatus_STALE
}

// SyncStatus returns the state of every client as the xDS type istio.io/debug/syncz has it and istioctl
// proxy-status prints it (PROTOCOL D1).
func (d *Debug) SyncStatus() []*statusv3.ClientConfig {
	clients := d.clients.Clients()
	out := make([]*statusv3.ClientConfig, len(clients))
	for i, c := range clients {
		md := map[string]*structpb.Value{}
		for key, v := range metadataOf(c) {
			md[key] = structpb.NewStringValue(v)
		}
		cfg := &statusv3.ClientConfig{Node: &corev3.Node{Id: c.NodeID, Metadata: &structpb.Struct{Fields: md}}}
		for _, t := range c.Types {
			g := &statusv3.ClientConfig_GenericXdsConfig{
				TypeUrl: t.TypeURL, VersionInfo: t.SentVersion, ConfigStatus: configStatus(t),
			}
			if !t.SentAt.IsZero() {
				g.LastUpdated = timestamppb.New(t.SentAt)
			}
			if t.LastNACK != "" {
				g.ErrorState = &adminv3.UpdateFailureState{Details: strings.ToValidUTF8(t.LastNACK, "\uFFFD")}
			}
			cfg.GenericXdsConfigs = append(cfg.GenericXdsConfigs, g)
		}
		out[i] = cfg
	}
	return out
}

// metadataOf returns the node metadata of a client, under istiod's names.
func metadataOf(c downstream.ClientStatus) map[string]string {
	all := map[string]string{"CLUSTER_ID": c.ClusterID, "NAMESPACE": c.Namespace, "ISTIO_VERSION": c.IstioVersion, "ISTIO_REVISION": c.Revision}
	maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
	return all
}

// adsClients is istiod's /debug/adsz.
type adsClients struct {
	Total   int         `json:"totalClients"`
	Clients []adsClient `json:"clients,omitempty"`
}

type adsClient struct {
	ConnectionID string            `json:"connectionId"`
	ConnectedAt  time.Time         `json:"connectedAt"`
	Address      string            `json:"address"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	// Watches are the subscribed types. The lists of names are empty, as in istiod for clients that subscribe to
	// all resources of a type.
	Watches map[string][]string `json:"watches,omitempty"`
}

func (d *Debug) adsz(w io.Writer, _ url.Values) error {
	clients := d.clients.Clients()
	all := adsClients{Total: len(clients)}
	for _, c := range clients {
		a := adsClient{
			ConnectionID: c.Connection, ConnectedAt: c.Connected, Address: c.Address,
			Metadata: metadataOf(c), Watches: map[string][]string{},
		}
		for _, t := range c.Types {
			a.Watches[t.TypeURL] = []string{}
		}
		all.Clients = append(all.Clients, a)
	}
	return writeJSON(w, all)
}
