package downstream

import (
	"cmp"
	"slices"
	"time"

	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// ReceiptState is how far a resource has come on its way to a client.
type ReceiptState = subscription.Receipt

// Receipt is what a client that watches the kind of a resource has received of it.
type Receipt struct {
	Connection string       `json:"connection"`
	NodeID     string       `json:"nodeID"`
	View       string       `json:"view,omitempty"`
	TypeURL    string       `json:"typeURL"`
	State      ReceiptState `json:"state"`
	// At is when the client acknowledged last, or was sent something last.
	At time.Time `json:"at,omitzero"`
}

// Receipts returns what clients have received of a key, sorted by connection and type.
func (s *Server) Receipts(key mirror.Key) []Receipt {
	byType := map[subscription.Type]*items{}
	s.views.generators.affected(key, byType)
	var out []Receipt
	for _, c := range s.connections() {
		out = append(out, c.receipts(byType)...)
	}
	slices.SortFunc(out, func(a, b Receipt) int {
		return cmp.Or(cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return out
}

func (c *conn) receipts(byType map[subscription.Type]*items) (out []Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil
	}
	for _, w := range c.subs.Watches() {
		if list := byType[w.Type]; list != nil {
			r := Receipt{Connection: c.id(), NodeID: c.client.nodeID, View: c.rule.Name, TypeURL: w.TypeURL}
			r.State, r.At = w.Receipt(c.view.snapshot(w.Type), list.refs[0].Name)
			out = append(out, r)
		}
	}
	return out
}
