package subscription

import (
	"time"

	"meshrelay/downstream/snapshot"
)

// Status is what a client has been sent of one type.
type Status struct {
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
	// Synced tells that the newest answer was acknowledged, or never will be: istiod
	// does not acknowledge MeshConfig (PROTOCOL S6).
	Synced bool `json:"synced"`
}

// record is what a Status is made of. Times are in Unix nanoseconds; zero: never.
type record struct {
	sentVersion         string
	sentAt, ackedAt     int64
	pushes, bytes, acks uint64
}

// Status returns what the client has been sent.
func (w *Watch) Status() Status {
	r := &w.record
	return Status{
		TypeURL: w.TypeURL, SentVersion: r.sentVersion, SentNonce: w.text(w.sentNonce), SentAt: timeOf(r.sentAt),
		AckedNonce: w.text(w.ackedNonce), AckedAt: timeOf(r.ackedAt), LastNACK: w.lastNACK,
		Pushes: r.pushes, Bytes: r.bytes, ACKs: r.acks, NACKs: w.nacks,
		Synced: w.sentNonce != 0 && !w.partial && (w.ackedNonce == w.sentNonce || w.Type.NeverAcknowledged),
	}
}

func timeOf(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// Receipt is how far a resource has come on its way to a client.
type Receipt string

// The states of a receipt.
const (
	// NotForIt: the client's view does not show it, or the client did not ask for it.
	NotForIt Receipt = "not for it"
	// NotSent: its present content has not been sent yet, or not all parts of the answer with it.
	NotSent Receipt = "not sent"
	// Sent: it has been sent and not been acknowledged yet.
	Sent Receipt = "sent"
	// Rejected: the response with it was rejected.
	Rejected Receipt = "rejected"
	// Acknowledged: the response with it was acknowledged, which shows that it was received,
	// not that it was accepted (PROTOCOL S7).
	Acknowledged Receipt = "acknowledged"
)

// Receipt returns how far an item of a snapshot has come, and since when.
func (w *Watch) Receipt(s *snapshot.Snapshot, name string) (Receipt, time.Time) {
	_, rev, found := s.Find(name)
	_, named := w.names[name]
	switch {
	case !found || !w.wildcard && !named:
		return NotForIt, time.Time{}
	case rev > w.rejectedFrom && rev <= w.rejectedTo:
		return Rejected, timeOf(w.record.sentAt)
	case rev <= w.ackedCursor:
		return Acknowledged, timeOf(w.record.ackedAt)
	case rev > w.sentCursor || w.sentNonce == 0:
		return NotSent, time.Time{}
	}
	return Sent, timeOf(w.record.sentAt)
}
