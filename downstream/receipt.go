package downstream

import (
	"cmp"
	"slices"
	"time"

	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// ReceiptState is the state of a resource at a client.
type ReceiptState = subscription.Receipt

// Receipt is the state of a resource at one client that subscribes to its kind.
type Receipt struct {
	Connection string       `json:"connection"`
	NodeID     string       `json:"nodeID"`
	View       string       `json:"view,omitempty"`
	TypeURL    string       `json:"typeURL"`
	State      ReceiptState `json:"state"`
	// At is the time of the acknowledgement or, before that, of the response.
	At time.Time `json:"at,omitzero"`
}

// Receipts returns the state of a resource at each client that subscribes to its kind, sorted by connection
// and type.
func (s *Server) Receipts(key mirror.Key) (out []Receipt) {
	t, name := typeOf(key.Kind), key.FullName()
	for _, c := range s.connections() {
		out = append(out, c.receipts(t, name)...)
	}
	slices.SortFunc(out, func(a, b Receipt) int {
		return cmp.Or(cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return out
}

func (c *conn) receipts(t subscription.Type, name string) (out []Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil
	}
	for _, w := range c.subs.Watches() {
		if w.Type == t {
			r := Receipt{Connection: c.id(), NodeID: c.client.NodeID, View: c.rule.Name, TypeURL: w.TypeURL}
			r.State, r.At = w.Receipt(c.view.snapshot(t), name)
			out = append(out, r)
		}
	}
	return out
}
