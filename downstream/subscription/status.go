package subscription

import (
	"time"

	"meshrelay/downstream/snapshot"
)

// Status is the state of a client's subscription to one type.
type Status struct {
	TypeURL string `json:"typeURL"`
	// SentVersion, SentNonce and SentAt are of the newest response.
	SentVersion string    `json:"sentVersion,omitempty"`
	SentNonce   string    `json:"sentNonce,omitempty"`
	SentAt      time.Time `json:"sentAt,omitzero"`
	// AckedNonce is the newest nonce that the client has acknowledged, at AckedAt. An ACK shows that the
	// client has received the response, not that it has accepted it (PROTOCOL S7).
	AckedNonce string    `json:"ackedNonce,omitempty"`
	AckedAt    time.Time `json:"ackedAt,omitzero"`
	// LastNACK is the error of the client's last NACK. An ACK clears it.
	LastNACK string `json:"lastNACK,omitempty"`
	// Pushes counts responses, and Bytes their encoded size.
	Pushes uint64 `json:"pushes"`
	Bytes  uint64 `json:"bytes"`
	ACKs   uint64 `json:"acks"`
	NACKs  uint64 `json:"nacks"`
	// Synced is set when the newest answer was acknowledged, or was sent and is of a type that istiods never
	// acknowledge: MeshConfig (PROTOCOL S6).
	Synced bool `json:"synced"`
}

// record has the fields of a Status. Times are Unix times in nanoseconds, 0 for never.
type record struct {
	sentVersion     string
	sentAt, ackedAt int64
	bytes           uint64
	pushes, acks    uint32
}

// Status returns the state of the subscription.
func (w *Watch) Status() Status {
	r := &w.record
	return Status{
		TypeURL: w.TypeURL, SentVersion: r.sentVersion, SentNonce: w.text(w.sentNonce), SentAt: timeOf(r.sentAt),
		AckedNonce: w.text(w.ackedNonce), AckedAt: timeOf(r.ackedAt), LastNACK: w.lastNACK,
		Pushes: uint64(r.pushes), Bytes: r.bytes, ACKs: uint64(r.acks), NACKs: w.nacks,
		Synced: w.sentNonce != 0 && !w.partial && (w.ackedNonce == w.sentNonce || w.Type.NeverAcknowledged),
	}
}

func timeOf(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// Receipt is the state of a resource at a client.
type Receipt string

// The states of a receipt.
const (
	// NotForIt: the client's view does not show it, or the client does not subscribe to it.
	NotForIt Receipt = "not for it"
	// NotSent: its present content, or a part of the answer with it, was not sent yet.
	NotSent Receipt = "not sent"
	// Sent: it was sent, and is not acknowledged yet.
	Sent Receipt = "sent"
	// Rejected: the response with it was rejected.
	Rejected Receipt = "rejected"
	// Acknowledged: the response with it was acknowledged. The client has received it, but need not have
	// accepted it (PROTOCOL S7).
	Acknowledged Receipt = "acknowledged"
)

// Receipt returns the state of an item of a snapshot, and since when.
func (w *Watch) Receipt(s *snapshot.Snapshot, name string) (Receipt, time.Time) {
	_, rev, found := s.Find(name)
	switch {
	case !found || !w.subscribes(name):
		return NotForIt, time.Time{}
	case w.isRejected(rev):
		return Rejected, timeOf(w.record.sentAt)
	case rev <= w.ackedCursor:
		return Acknowledged, timeOf(w.record.ackedAt)
	case rev > w.sentCursor || w.sentNonce == 0:
		return NotSent, time.Time{}
	}
	return Sent, timeOf(w.record.sentAt)
}
