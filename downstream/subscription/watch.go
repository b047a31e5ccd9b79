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

// Type is what a client subscribes to, whatever API version its type URL names.
type Type struct {
	Group, Kind string
	// Order is the place in a round: a type comes before those that refer to it. Types with order 0
	// come last, by name.
	Order int
	// Fixed is set when the type has no other type URLs than those that are known.
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

// maxResend bounds the names that a wildcard brings again. Of more, it brings everything.
const maxResend = 256

// Target is a type URL, and the type that it stands for. It is immutable.
type Target struct {
	TypeURL string
	Type    Type
	// first is the nonce of the first response, which does not depend on the stream, so that clients
	// which come together share bytes.
	first string
}

// fixed shares the Targets of Fixed types between streams: they are few.
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

// Watch is one client's subscription to one type URL, with a cursor. Nothing queues here: the next
// response is the difference between the cursor and the newest snapshot then. A stream has many of
// them, most idle: what few of them need is in special.
type Watch struct {
	*Target
	*special

	wildcard        bool
	named           bool // SotW: names were sent, so that sending none unsubscribes
	mustReply       bool // the next response comes even when there is nothing new
	sendAll         bool // it brings everything, not only what the cursor lacks
	wildcardDropped bool // delta: and names remain
	partial         bool // delta: the last part of an answer was not sent
	awaited         bool // the newest response is not acknowledged

	// cursor is the content of a client with a wildcard. The last whole answer leads to sentCursor,
	// the last acknowledged one to ackedCursor. While partial, parts of an answer were sent that leads
	// to cursor, and its last part was not.
	cursor      uint64
	sentCursor  uint64
	ackedCursor uint64
	sentNonce   nonce
	ackedNonce  nonce

	record record
}

// special is what few watches of delta clients need. What nobody has written to is nothing.
type special struct {
	names map[string]struct{}

	// Additions of the next response to the difference.
	clientVersions map[string]string   // with sendAll: what the client has, by version
	versionBytes   int                 // of clientVersions, until what follows from them is sent
	clientVersion  string              // SotW: the version that the client has
	resend         map[string]struct{} // delta: names to bring again, or to report as gone

	// The content of the client, but for wildcards of delta clients: sent of SotW clients, and
	// sentDigests of named delta subscriptions, by name; zero when it was reported as gone.
	sent        snapshot.Digest
	sentDigests map[string][16]byte

	// Changes after rejectedFrom, up to rejectedTo, were in a response that was rejected.
	rejectedFrom, rejectedTo uint64
	lastNACK                 string
	nacks                    uint64
}

// nothing is the special of all watches that need none. It is never written to.
var nothing = &special{}

// own returns the special of the watch alone, to be written to.
func (w *Watch) own() *special {
	if w.special == nothing {
		w.special = &special{}
	}
	return w.special
}

// tidy forgets what the next response was to bring in addition, now that it is planned.
func (w *Watch) tidy() {
	if w.special == nothing {
		return
	}
	w.clientVersions, w.clientVersion, w.resend = nil, "", nil
	w.drop()
}

// drop gives the special back when there is nothing in it.
func (w *Watch) drop() {
	x := w.special
	if len(x.names)+len(x.clientVersions)+x.versionBytes+len(x.clientVersion)+len(x.resend)+len(x.sentDigests) == 0 &&
		x.sent == (snapshot.Digest{}) && x.rejectedTo == 0 && x.nacks == 0 {
		w.special = nothing
	}
}

// step is one response of a round, or several with removals. It does not refer to the snapshot: a
// client that does not read would keep all items of that alive.
type step struct {
	watch     *Watch
	changedAt time.Time // of the snapshot
	version   string    // of the snapshot

	// SotW: the response.
	frames      mem.BufferSlice
	bytes       int
	sotwVersion string
	removes     bool

	// delta: the difference; entries are what is left to send of its changes. initial are all
	// responses when clients share them, and part is how many of them were sent.
	diff    *snapshot.Difference
	entries mem.BufferSlice
	initial []*snapshot.Message
	part    int
	asked   bool     // for a response even when the difference is empty
	more    bool     // another step removes what the difference does
	removed []string // the responses remove these, and nothing else
}

// planSotW moves the cursor to s, and returns the step for that if the client needs one. The caller
// sends it or ends the stream.
func (w *Watch) planSotW(s *snapshot.Snapshot, form snapshot.Form, encoded func(bytes int)) (step, bool) {
	if !w.wildcard && len(w.names) == 0 {
		return step{}, false
	}
	if !w.mustReply && s.Rev == w.cursor {
		return step{}, false
	}
	// Equal versions mean equal content. The xDS specification lets a server spare the client the
	// response to a wildcard then.
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

// planDelta is planSotW for a delta client. It fails when the client is too far behind.
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
		again = map[string]struct{}{} // what has gone is not in the answer
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

// move moves the cursor to a snapshot that brings the client nothing. What the client has
// acknowledged moves along.
func (w *Watch) move(rev uint64) {
	if w.ackedCursor == w.sentCursor && w.sentCursor == w.cursor {
		w.ackedCursor = rev
	}
	w.sentCursor, w.cursor = rev, rev
}

// namedDifference compares the names of a named subscription with what was sent of each.
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

// suspects returns, sorted, the names of a named subscription that may have changed: of a client that
// follows those that have, however many it has.
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

// noteSent notes what a client that drops its wildcard, and keeps names, has of those.
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

// acknowledged records the receipt of the response with this nonce.
func (w *Watch) acknowledged(n nonce, now time.Time) {
	w.record.acks++
	whole := n == w.sentNonce
	if whole {
		w.ackedCursor = w.sentCursor // while partial, that of the answer before
	}
	w.ackedNonce, w.record.ackedAt = n, now.UnixNano()
	if w.special == nothing {
		return
	}
	if whole {
		w.lastNACK = ""
	}
	if w.sent != (snapshot.Digest{}) {
		w.rejectedFrom, w.rejectedTo = 0, 0 // SotW: a response is everything
	}
}

// rejected records a NACK. The same bytes would be rejected again, so no answer (PROTOCOL S7).
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
