package subscription

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
)

// Type is a type of items. The type URLs of all its API versions are for the same type.
type Type struct {
	Group, Kind string
	// Order is the position in a round: referenced types come before those that refer to them. Types with
	// order 0 come last, sorted by name.
	Order int
	// Fixed is set when the type has a fixed list of type URLs.
	Fixed bool
	// NeverAcknowledged is set when clients do not acknowledge the type (PROTOCOL S6).
	NeverAcknowledged bool
}

// String returns the name of the type.
func (t Type) String() string {
	if t.Group == "" {
		return t.Kind
	}
	return t.Group + "/" + t.Kind
}

func compareTypes(a, b Type) int {
	if a.Order != b.Order && a.Order > 0 && b.Order > 0 {
		return a.Order - b.Order
	}
	return cmp.Or(b.Order-a.Order, cmp.Compare(a.String(), b.String()))
}

// maxResend bounds the names in resend of a wildcard. Above it, the next response has everything.
const maxResend = 256

// Target is a type URL with its type. It is immutable.
type Target struct {
	TypeURL string
	Type    Type
	// first is the nonce of the first response. It is the same on all streams, so that clients can share its
	// bytes.
	first string
}

// fixed has the Targets of Fixed types, which all streams share.
var fixed sync.Map // from type URL to *Target

func targetOf(typeURL string, t Type) *Target {
	if shared, ok := fixed.Load(typeURL); ok && shared.(*Target).Type == t {
		return shared.(*Target)
	}
	target := &Target{typeURL, t, snapshot.FirstNonce(typeURL, 1)}
	if t.Fixed {
		fixed.Store(typeURL, target)
	}
	return target
}

// Watch is a subscription of one client to one type URL, with a cursor. It has no queue: the next response is
// the difference between the cursor and the newest snapshot. A stream has many watches, and most are idle.
// Fields that few watches need are in special.
type Watch struct {
	*Target
	*special

	wildcard        bool
	named           bool // SotW: names were sent, so an empty list unsubscribes
	mustReply       bool // the next response is sent even if it is empty
	sendAll         bool // the next response has everything, not only the difference
	wildcardDropped bool // delta: the wildcard was dropped, and names remain
	partial         bool // delta: the last part of an answer was not sent
	awaited         bool // the newest response is not acknowledged
	answered        bool // the newest response is acknowledged or rejected

	// cursor is the revision of the content that was planned for a client with a wildcard. sentCursor is the
	// cursor of the last answer that was sent completely, and ackedCursor of the last one that was
	// acknowledged. While partial is set, an answer to cursor was sent in part.
	cursor      uint64
	sentCursor  uint64
	ackedCursor uint64
	sentNonce   nonce
	ackedNonce  nonce
	// began is the revision of the first content that was planned, 0 before. Content that is not newer was there
	// before the client.
	began uint64

	// awaitedSince is the time, as in record, since which the client owes an ACK without a pause: while it
	// acknowledges older responses, it is the time of the last such ACK.
	awaitedSince int64

	record record
}

// special has the fields that few watches need. An empty special is nothing.
type special struct {
	names map[string]struct{}

	// Additions to the next response.
	clientVersions map[string]string   // with sendAll: the versions that the client has, by name
	versionBytes   int                 // the size of clientVersions, until the response was sent
	clientVersion  string              // SotW: the version_info that the client has
	resend         map[string]struct{} // delta: names to send again, or to report as removed

	// The content that was sent: sent is of SotW clients. sentDigests has the names of a delta subscription
	// without a wildcard; the digest is zero for a name that was reported as removed.
	sent        snapshot.Digest
	sentDigests map[string][16]byte

	// The changes after rejectedFrom, up to rejectedTo, were in a rejected response.
	rejectedFrom, rejectedTo uint64
	lastNACK                 string
	nacks                    uint64
}

// nothing is the special of all watches that need none. Nobody writes to it.
var nothing = &special{}

// own returns a special that belongs to this watch alone.
func (w *Watch) own() *special {
	if w.special == nothing {
		w.special = &special{}
	}
	return w.special
}

// tidy clears the additions to the next response, after it was planned.
func (w *Watch) tidy() {
	if w.special == nothing {
		return
	}
	w.clientVersions, w.clientVersion, w.resend = nil, "", nil
	w.drop()
}

// drop replaces an empty special by nothing.
func (w *Watch) drop() {
	x := w.special
	if len(x.names)+len(x.clientVersions)+x.versionBytes+len(x.clientVersion)+len(x.resend)+len(x.sentDigests) == 0 &&
		x.sent == (snapshot.Digest{}) && x.rejectedTo == 0 && x.nacks == 0 {
		w.special = nothing
	}
}

// step is one response of a round, or several responses with removals. It has no reference to the snapshot:
// that would keep all items in memory while a slow client reads.
type step struct {
	watch     *Watch
	changedAt time.Time // of the snapshot
	version   string    // of the snapshot

	// SotW: the response.
	frames      mem.BufferSlice
	bytes       int
	sotwVersion string
	removes     bool

	// delta: diff is the difference, entries are its changes that are not sent yet. initial are the responses
	// that clients share, and part counts those that were sent.
	diff    *snapshot.Difference
	entries mem.BufferSlice
	initial []*snapshot.Message
	part    int
	asked   bool     // send a response even if diff is empty
	more    bool     // a later step sends the removals of diff
	removed []string // the responses only remove these names
}

// planSotW moves the cursor to s. It returns the step if the client needs a response. The caller must send
// it, or end the stream.
func (w *Watch) planSotW(s *snapshot.Snapshot, form snapshot.Form, encoded func(bytes int)) (step, bool) {
	if !w.wildcard && len(w.names) == 0 {
		return step{}, false
	}
	if !w.mustReply && s.Rev == w.cursor {
		return step{}, false
	}
	// Equal versions mean equal content. The xDS specification then allows the server to skip the response to
	// a wildcard.
	if w.clientVersion != "" && w.wildcard && s.Count > 0 && form.Version(s.Version) == w.clientVersion {
		w.mustReply = false
		w.cursor, w.ackedCursor, w.own().sent = s.Rev, s.Rev, s.Digest
		w.tidy()
		return step{}, false
	}
	st := step{watch: w, version: s.Version, changedAt: s.ChangedAt}
	is := s.Digest
	if !w.wildcard && !w.mustReply && len(w.suspects(s)) == 0 {
		w.move(s.Rev)
		return step{}, false
	}
	var named []snapshot.Item
	if !w.wildcard {
		is = snapshot.Digest{}
		for _, name := range slices.Sorted(maps.Keys(w.names)) {
			if r := s.Get(name); r != nil {
				named = append(named, r)
				is = is.Plus(r.Digest())
			}
		}
	}
	if !w.mustReply && is == w.sent {
		w.move(s.Rev)
		return step{}, false
	}
	if w.wildcard {
		if w.sentNonce != 0 {
			d, ok := s.Since(w.cursor)
			st.removes = !ok || len(d.Removed) > 0
		}
		st.sotwVersion = form.Version(s.Version)
		st.frames, st.bytes = s.Frames(form, encoded)
	} else {
		st.sotwVersion = form.Version(is.String())
		st.frames = make(mem.BufferSlice, 1, 1+len(named))
		for _, r := range named {
			frame := form.Frame(r)
			st.frames = append(st.frames, mem.SliceBuffer(frame))
			st.bytes += len(frame)
		}
	}
	w.mustReply, w.cursor, w.own().sent = false, s.Rev, is
	w.tidy()
	return st, true
}

// planDelta is planSotW for delta clients. It fails when the client is too far behind.
func (w *Watch) planDelta(s *snapshot.Snapshot, controlPlane []byte, partBytes int) (step, bool, error) {
	if !w.mustReply && len(w.resend) == 0 && s.Rev == w.cursor {
		return step{}, false, nil
	}
	st := step{watch: w, version: s.Version, changedAt: s.ChangedAt, asked: w.mustReply}
	again := w.resend
	switch {
	case !w.wildcard:
		st.diff = w.namedDifference(s)
	case w.sendAll:
		st.diff = s.Beyond(w.clientVersions)
		again = map[string]struct{}{} // everything is sent; only add removals
		if w.cursor > 0 {
			d, ok := s.Since(w.cursor)
			if !ok {
				return step{}, false, errTooFarBehind(w.TypeURL)
			}
			for _, name := range d.Removed {
				again[name] = struct{}{}
			}
		}
		for name := range w.names {
			if s.Get(name) == nil {
				again[name] = struct{}{}
			}
		}
	default:
		d, ok := s.Since(w.cursor)
		if !ok {
			return step{}, false, errTooFarBehind(w.TypeURL)
		}
		st.diff = d
	}
	if w.wildcard && len(again) > 0 {
		st.diff = st.diff.With(s, again)
	}
	if w.sentNonce == 0 && s.IsEverything(st.diff) {
		st.initial = s.InitialResponses(w.TypeURL, controlPlane, partBytes)
	}
	st.entries = st.diff.Entries(partBytes)
	w.sendAll, w.wildcardDropped = false, false
	w.tidy()
	if st.diff.Empty() && !st.asked {
		w.move(s.Rev)
		return step{}, false, nil
	}
	w.cursor, w.mustReply = s.Rev, false
	return st, true, nil
}

func errTooFarBehind(typeURL string) error {
	return status.Errorf(codes.Unavailable,
		"%s: client is too far behind to be told what was removed; reconnect with initial_resource_versions", typeURL)
}

// move moves the cursor to a snapshot without a difference for the client. If the client has acknowledged
// everything, ackedCursor moves along.
func (w *Watch) move(rev uint64) {
	if w.ackedCursor == w.sentCursor && w.sentCursor == w.cursor {
		w.ackedCursor = rev
	}
	w.sentCursor, w.cursor = rev, rev
}

// namedDifference compares the named items with the digests that were sent.
func (w *Watch) namedDifference(s *snapshot.Snapshot) *snapshot.Difference {
	d := &snapshot.Difference{}
	if w.sentDigests == nil {
		w.own().sentDigests = map[string][16]byte{}
	}
	if w.wildcardDropped {
		w.noteSent(s)
	}
	for _, name := range w.suspects(s) {
		r := s.Get(name)
		was, known := w.sentDigests[name]
		_, again := w.resend[name]
		if v, ok := w.clientVersions[name]; ok && !known && r != nil && v == r.Version() {
			w.sentDigests[name] = r.Digest()
			continue
		}
		switch {
		case r != nil && (!known || again || was != r.Digest()):
			d.Add(r)
			w.sentDigests[name] = r.Digest()
		case r == nil && (!known || again || was != [16]byte{}):
			d.Removed = append(d.Removed, name)
			w.sentDigests[name] = [16]byte{}
		}
	}
	return d
}

// suspects returns the names of a named subscription that may have changed, sorted. If the log has the
// changes since the cursor, its cost grows with their number, not with the number of names.
func (w *Watch) suspects(s *snapshot.Snapshot) []string {
	changes, ok := s.ChangesSince(w.cursor)
	if !ok || w.sendAll || w.wildcardDropped || w.cursor == 0 {
		return slices.Sorted(maps.Keys(w.names))
	}
	var out []string
	for _, c := range changes {
		if _, named := w.names[c.Name]; named {
			out = append(out, c.Name)
		}
	}
	for name := range w.resend {
		if _, named := w.names[name]; named {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// noteSent notes the digests of the named items that a client got by the wildcard that it has dropped.
func (w *Watch) noteSent(s *snapshot.Snapshot) {
	d, ok := s.Since(w.cursor)
	for name := range w.names {
		item, rev, found := s.Find(name)
		switch {
		case found && rev <= w.cursor:
			w.sentDigests[name] = item.Digest()
		case !found && ok && !slices.Contains(d.Removed, name):
			w.sentDigests[name] = [16]byte{}
		}
	}
}

// acknowledged records an ACK of the response with this nonce.
func (w *Watch) acknowledged(n nonce, now time.Time) {
	w.record.acks++
	whole := n == w.sentNonce
	w.awaitedSince = now.UnixNano()
	if whole {
		w.ackedCursor = w.sentCursor // while partial: the cursor of the answer before
	}
	w.ackedNonce, w.record.ackedAt = n, now.UnixNano()
	if w.special == nothing {
		return
	}
	if whole {
		w.lastNACK = ""
	}
	if w.sent != (snapshot.Digest{}) {
		w.rejectedFrom, w.rejectedTo = 0, 0 // a SotW response has everything
	}
}

// rejected records a NACK. The relay sends no answer, because the client would reject the same bytes again
// (PROTOCOL S7).
func (w *Watch) rejected(reason string) {
	x := w.own()
	x.nacks++
	x.lastNACK = refusal.Bounded(reason)
	if x.rejectedTo == 0 {
		x.rejectedFrom = w.ackedCursor
	}
	if x.rejectedTo = w.sentCursor; w.partial {
		x.rejectedTo = w.cursor
	}
}
