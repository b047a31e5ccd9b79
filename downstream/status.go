package downstream

import "time"

// ClientStatus is a snapshot of one connected client, as operators see it.
type ClientStatus struct {
	// Connection is unique within the process: "<node id>-<number>".
	Connection string `json:"connection"`
	// NodeID and the fields after it are what the client says of itself.
	NodeID       string `json:"nodeID"`
	ClusterID    string `json:"clusterID,omitempty"`
	Namespace    string `json:"namespace,omitempty"`
	IstioVersion string `json:"istioVersion,omitempty"`
	Revision     string `json:"revision,omitempty"`
	// View is the name of the client's view, empty when views are not configured.
	View string `json:"view,omitempty"`
	// Address is the client's remote address; Listener the address it connected to.
	Address  string `json:"address"`
	Listener string `json:"listener,omitempty"`
	// Protocol is "sotw" or "delta".
	Protocol  string    `json:"protocol"`
	Connected time.Time `json:"connected"`
	// Held says that the client waits for the sources to sync (PROTOCOL S4).
	Held  bool         `json:"held,omitempty"`
	Types []TypeStatus `json:"types"`
}

// TypeStatus is what a client has been sent of one type.
type TypeStatus struct {
	TypeURL string `json:"typeURL"`
	// SentVersion and SentNonce are those of the newest response, sent at SentAt.
	SentVersion string    `json:"sentVersion,omitempty"`
	SentNonce   string    `json:"sentNonce,omitempty"`
	SentAt      time.Time `json:"sentAt,omitzero"`
	// AckedNonce is the newest nonce that the client has acknowledged, at AckedAt. An
	// ACK is a receipt, not an acceptance (PROTOCOL S7).
	AckedNonce string    `json:"ackedNonce,omitempty"`
	AckedAt    time.Time `json:"ackedAt,omitzero"`
	// LastNACK is the client's newest rejection that no ACK has followed.
	LastNACK string `json:"lastNACK,omitempty"`
	// Pushes counts responses, Bytes their encoded size.
	Pushes uint64 `json:"pushes"`
	Bytes  uint64 `json:"bytes"`
	ACKs   uint64 `json:"acks"`
	NACKs  uint64 `json:"nacks"`
	// Synced says that the newest response was acknowledged, or never will be: istiod
	// does not acknowledge MeshConfig (PROTOCOL S6).
	Synced bool `json:"synced"`
}
