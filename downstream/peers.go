package downstream

import (
	"cmp"
	"slices"

	"meshrelay/downstream/admit"
)

// PeerStatus is what the streams of one peer have cost since the peer came.
type PeerStatus struct {
	// Peer is the identity in a verified certificate, or else an address.
	Peer       string `json:"peer"`
	Identified bool   `json:"identified"`
	// Connections and Streams are open now. Opened counts all streams, also those that were refused. RequestBytes are
	// those of large requests that are being received.
	Connections  int    `json:"connections"`
	Streams      int    `json:"streams"`
	Opened       uint64 `json:"opened"`
	RequestBytes int    `json:"requestBytes"`
	// Requests were decoded. Delayed of them waited because the peer sent too many, and Rejected were NACKs.
	Requests uint64 `json:"requests"`
	Delayed  uint64 `json:"delayed"`
	Rejected uint64 `json:"rejected"`
	// Responses were sent, of Bytes.
	Responses uint64 `json:"responses"`
	Bytes     uint64 `json:"bytes"`
	Names     int    `json:"names"`
	NameBytes int    `json:"nameBytes"`
}

// maxPeerStatus bounds the result of Server.Peers.
const maxPeerStatus = 100

// Peers returns the peers that were sent most, at most maxPeerStatus.
func (s *Server) Peers() (out []PeerStatus) {
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	s.admission.Each(func(p *admit.Peer, connections, streams, bytes int) {
		w := &p.Work
		out = append(out, PeerStatus{
			Peer: p.Name, Identified: p.Proven, Connections: connections, Streams: streams, Opened: w.Opened.Load(), RequestBytes: bytes,
			Requests: w.Requests.Load(), Delayed: w.Delayed.Load(),
			Rejected: w.Rejected.Load(), Responses: w.Responses.Load(), Bytes: w.Bytes.Load(), Names: p.Kept.Names, NameBytes: p.Kept.NameBytes,
		})
	})
	slices.SortFunc(out, func(a, b PeerStatus) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Peer, b.Peer))
	})
	return out[:min(len(out), maxPeerStatus)]
}
