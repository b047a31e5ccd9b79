package downstream

import (
	"cmp"
	"slices"
	"time"

	"meshrelay/mirror"
)

// ReceiptState is how far a resource has come on its way to a client.
type ReceiptState string

// The states of a receipt.
const (
	// ReceiptNone: the client's view does not show it, or the client did not ask for it.
	ReceiptNone ReceiptState = "not for it"
	// ReceiptPending: its present content has not been sent yet.
	ReceiptPending ReceiptState = "not sent"
	// ReceiptSent: it has been sent and not been acknowledged yet.
	ReceiptSent ReceiptState = "sent"
	// ReceiptRejected: the response with it was rejected.
	ReceiptRejected ReceiptState = "rejected"
	// ReceiptACKed: the response with it was acknowledged, which says that it was received,
	// not that it was accepted (PROTOCOL S7).
	ReceiptACKed ReceiptState = "acknowledged"
)

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

// Receipts returns what the clients that watch the kind of a key have received of it,
// sorted by connection and type.
func (s *Server) Receipts(key mirror.Key) []Receipt {
	var out []Receipt
	for _, c := range s.connections() {
		out = append(out, c.receipts(key)...)
	}
	slices.SortFunc(out, func(a, b Receipt) int {
		return cmp.Or(cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return out
}

func (c *conn) receipts(key mirror.Key) (out []Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil
	}
	for _, w := range c.watches.sorted {
		if w.kind != key.Kind {
			continue
		}
		r := Receipt{Connection: c.id, NodeID: c.client.nodeID, View: c.seesAs, TypeURL: w.typeURL}
		r.State, r.At = w.receipt(c.view.snapshot(w.kind), key.FullName())
		out = append(out, r)
	}
	return out
}

func (w *watch) receipt(s *snapshot, name string) (ReceiptState, time.Time) {
	e, found := s.find(name)
	_, named := w.names[name]
	switch {
	case !found || !w.wildcard && !named:
		return ReceiptNone, time.Time{}
	case e.rev > w.rejectedFrom && e.rev <= w.rejectedTo:
		return ReceiptRejected, w.status.SentAt
	case e.rev <= w.ackedCursor:
		return ReceiptACKed, w.status.AckedAt
	case e.rev > w.sentCursor || w.nonce == "":
		return ReceiptPending, time.Time{}
	}
	return ReceiptSent, w.status.SentAt
}
