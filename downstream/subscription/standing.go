package subscription

import "meshrelay/downstream/snapshot"

// Standing is what a client has of the present state of an item: of its content or, where its view does not show
// the item any more, of its removal.
type Standing int

// The standings.
const (
	Unconcerned Standing = iota // it does not get the item, or it connected later and has not answered
	Has                         // it has acknowledged the state
	Lacks                       // it has not acknowledged the state
	Refuses                     // it has rejected the response with the state
)

// Standing returns what the client has of the present state of an item. A client that has acknowledged a removal is
// Unconcerned.
func (w *Watch) Standing(s *snapshot.Snapshot, name string) Standing {
	_, rev, found := s.Find(name)
	if !found {
		return w.standingRemoved(s, name)
	}
	receipt, _ := w.Receipt(s, name)
	switch {
	case receipt == NotForIt || w.began == 0:
		return Unconcerned
	case receipt == Rejected:
		return Refuses
	case receipt == Acknowledged, receipt == Sent && w.Type.NeverAcknowledged:
		return Has
	case rev <= w.began:
		return Unconcerned
	}
	return Lacks
}

// standingRemoved is Standing for an item that the snapshot does not have: Lacks means that the client still has it.
func (w *Watch) standingRemoved(s *snapshot.Snapshot, name string) Standing {
	rev := s.Removed(name)
	switch {
	case rev == 0 || rev <= w.began || w.began == 0 || !w.subscribes(name):
		return Unconcerned
	case w.isRejected(rev):
		return Refuses
	case rev <= w.confirmed() || !w.wasSent(s, name):
		return Unconcerned
	}
	return Lacks
}

// wasSent reports whether the client may have an item that was removed after its last acknowledgement: it had the
// item then, or was sent it since.
func (w *Watch) wasSent(s *snapshot.Snapshot, name string) bool {
	changes, ok := s.ChangesSince(max(w.confirmed(), w.began))
	if !ok {
		return true
	}
	at := uint64(0) // the change that has made the present content
	for _, c := range changes {
		if c.Name != name {
			continue
		}
		if c.Was != [16]byte{} && at <= w.cursor {
			return true
		}
		at = c.Rev
	}
	return false
}

// confirmed returns the revision up to which the client has everything, except what it has rejected.
func (w *Watch) confirmed() uint64 {
	if w.Type.NeverAcknowledged {
		return max(w.ackedCursor, w.sentCursor)
	}
	return w.ackedCursor
}

func (w *Watch) isRejected(rev uint64) bool { return rev > w.rejectedFrom && rev <= w.rejectedTo }

func (w *Watch) subscribes(name string) bool {
	_, named := w.names[name]
	return w.wildcard || named
}

// Refusal returns the error of the client's last NACK. An ACK clears it.
func (w *Watch) Refusal() string { return w.lastNACK }
