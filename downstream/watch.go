package downstream

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"meshrelay/mirror"
)

const (
	// maxName is the longest name that a resource can have: a namespace and a name of 253
	// bytes each, and what is between them.
	maxName = 512
	// maxResend bounds the names that a wildcard has to bring again. Of more, it brings
	// everything.
	maxResend = 256
	// maxSpellings bounds the API versions of a kind that is not well known, for one stream.
	maxSpellings = 4
)

// watch is one client's subscription to one type, and a cursor: what the client has
// been brought to. Nothing queues here; when the client can take more, the
// difference between the cursor and the newest snapshot is worked out.
//
// SotW and delta share it. It does no I/O; the conn that owns it guards it.
type watch struct {
	typeURL string
	kind    mirror.Kind

	wildcard bool
	named    bool // SotW: names were sent, so that sending none unsubscribes
	names    map[string]struct{}

	// What the next response has to bring besides the difference.
	owed   bool                // answer even when there is nothing new
	all    bool                // everything, not only what the cursor lacks
	held   map[string]string   // with all: what the client said that it has, by version
	kept   int                 // bytes of held, until what follows from it is sent
	resume string              // SotW: the version that the client said it has
	resend map[string]struct{} // delta: names to bring again, or to report as gone
	adopt  bool                // delta: a wildcard was dropped and names remain

	// What the client has been brought to. cursor is of use to a wildcard, sent to
	// SotW, has to named delta subscriptions: the digest that each name was sent
	// with, all zero when it was reported as gone.
	cursor uint64
	sent   digest
	has    map[string][16]byte

	// What is known of the receipt of responses: sentCursor is what the last one leads to,
	// ackedCursor what the client has acknowledged.
	nonce       string
	status      TypeStatus
	sentCursor  uint64
	ackedCursor uint64
	// What came after rejectedFrom, up to rejectedTo, was in a response that was rejected.
	rejectedFrom, rejectedTo uint64
}

// step is what one round of sending does for one watch: first what it adds and
// changes, last what it removes. It does not refer to the snapshot that it leads to: a
// client that does not read would keep all the resources of that alive.
type step struct {
	w         *watch
	state     string    // version of the snapshot
	changedAt time.Time // of the snapshot

	// SotW: full responses. version and buffers are the response.
	version string
	buffers mem.BufferSlice
	bytes   int
	removes bool

	// delta: the difference. owed asks for a response even when it is empty. opening is
	// the whole response when it brings everything, and clients have it in common.
	diff    *difference
	opening *message
	owed    bool
}

// planSotW settles whether the client needs a response to be where s is, and if so
// moves the cursor there. The caller sends what is planned or ends the stream.
func (w *watch) planSotW(s *snapshot, m *metrics) (step, bool) {
	if !w.wildcard && len(w.names) == 0 {
		return step{}, false
	}
	if !w.owed && s.rev == w.cursor {
		return step{}, false
	}
	// The version is made from content alone, so an equal one means equal content. The
	// xDS specification lets a server spare the client that, for wildcards, whose set
	// of names cannot have changed.
	if w.resume != "" && w.wildcard && s.count > 0 && s.version == w.resume {
		w.owed, w.resume = false, ""
		w.cursor, w.sent, w.ackedCursor = s.rev, s.digest, s.rev
		return step{}, false
	}
	st := step{w: w, state: s.version, changedAt: s.changedAt}
	is := s.digest
	if !w.wildcard && !w.owed {
		if same, known := w.sameSince(s); known && same {
			w.move(s.rev)
			return step{}, false
		}
	}
	var named []*mirror.Resource
	if !w.wildcard {
		is = digest{}
		for _, name := range slices.Sorted(maps.Keys(w.names)) {
			if r := s.get(name); r != nil {
				named = append(named, r)
				is = is.plus(r.Digest())
			}
		}
	}
	if !w.owed && is == w.sent {
		w.move(s.rev)
		return step{}, false
	}
	if w.wildcard {
		if w.nonce != "" {
			d, ok := s.since(w.cursor)
			st.removes = !ok || len(d.removed) > 0
		}
		st.version = s.version
		st.buffers = make(mem.BufferSlice, 1, 1+len(s.pages)) // the first is for the header
		for _, p := range s.pages {
			st.buffers = append(st.buffers, mem.SliceBuffer(p.frames(m)))
		}
		st.bytes = s.bytes
	} else {
		st.version = is.String()
		st.buffers = make(mem.BufferSlice, 1, 1+len(named))
		for _, r := range named {
			st.buffers = append(st.buffers, mem.SliceBuffer(r.Frame()))
			st.bytes += len(r.Frame())
		}
	}
	w.owed, w.resume = false, ""
	w.cursor, w.sent = s.rev, is
	return st, true
}

// planDelta does for a delta client what planSotW does. It fails when the client
// is further behind than anybody remembers.
func (w *watch) planDelta(s *snapshot, controlPlane []byte) (step, bool, error) {
	if !w.owed && len(w.resend) == 0 && s.rev == w.cursor {
		return step{}, false, nil
	}
	st := step{w: w, state: s.version, changedAt: s.changedAt, owed: w.owed}
	switch {
	case !w.wildcard:
		st.diff = w.namedDifference(s)
	case w.all:
		st.diff = s.beyond(w.held)
		missing := map[string]struct{}{}
		if w.cursor > 0 {
			// Asked for again: what has gone meanwhile is not in the answer.
			d, ok := s.since(w.cursor)
			if !ok {
				return step{}, false, errTooFarBehind(w.typeURL)
			}
			for _, name := range d.removed {
				missing[name] = struct{}{}
			}
		}
		for name := range w.names {
			if s.get(name) == nil {
				missing[name] = struct{}{}
			}
		}
		if len(missing) > 0 {
			st.diff = st.diff.with(s, missing)
		}
	default:
		d, ok := s.since(w.cursor)
		if !ok {
			return step{}, false, errTooFarBehind(w.typeURL)
		}
		st.diff = d
	}
	if w.wildcard && len(w.resend) > 0 && !w.all {
		st.diff = st.diff.with(s, w.resend)
	}
	if w.nonce == "" && st.diff == s.full.Load() {
		st.opening = s.opening(w.typeURL, controlPlane)
	}
	w.all, w.held, w.resend, w.adopt = false, nil, nil, false
	if st.diff.empty() && !st.owed {
		w.move(s.rev)
		return step{}, false, nil
	}
	w.cursor, w.owed = s.rev, false
	return st, true, nil
}

func errTooFarBehind(typeURL string) error {
	return status.Errorf(codes.Unavailable,
		"%s: client is too far behind to be told what was removed; reconnect with initial_resource_versions", typeURL)
}

// move moves the cursor to a snapshot that differs in nothing that the client has to be
// sent: what it has acknowledged is that, too.
func (w *watch) move(rev uint64) {
	if w.ackedCursor == w.sentCursor && w.sentCursor == w.cursor {
		w.ackedCursor = rev
	}
	w.sentCursor, w.cursor = rev, rev
}

// namedDifference compares the names of a subscription without wildcard with what
// was sent of each.
func (w *watch) namedDifference(s *snapshot) *difference {
	d := &difference{}
	if w.adopt {
		w.adoptNames(s)
	}
	for _, name := range w.suspects(s) {
		r := s.get(name)
		was, known := w.has[name]
		_, again := w.resend[name]
		if v, ok := w.held[name]; ok && !known && r != nil && v == r.Version() {
			w.has[name] = r.Digest()
			continue
		}
		switch {
		case r != nil && (!known || again || was != r.Digest()):
			d.add(r)
			w.has[name] = r.Digest()
		case r == nil && (!known || again || was != [16]byte{}):
			d.removed = append(d.removed, name)
			w.has[name] = [16]byte{}
		}
	}
	return d
}

// suspects returns the names of a subscription without wildcard of which the client may have
// something else than s does, sorted. Of a client that follows they are those that have
// changed, however many it has.
func (w *watch) suspects(s *snapshot) []string {
	changes, ok := s.changesSince(w.cursor)
	if !ok || w.all || w.adopt || w.cursor == 0 {
		return slices.Sorted(maps.Keys(w.names))
	}
	var out []string
	for _, c := range changes {
		if _, named := w.names[c.name]; named {
			out = append(out, c.name)
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

// sameSince reports, for a SotW subscription without wildcard, whether s has the names as the
// client was sent them. It is not known of a client that is far behind.
func (w *watch) sameSince(s *snapshot) (same, known bool) {
	changes, ok := s.changesSince(w.cursor)
	if !ok || w.cursor == 0 {
		return false, false
	}
	var seen map[string]struct{}
	for _, c := range changes {
		if _, named := w.names[c.name]; !named {
			continue
		}
		// The first change of a name since the cursor tells what the client has.
		if _, again := seen[c.name]; again {
			continue
		}
		if seen == nil {
			seen = map[string]struct{}{}
		}
		seen[c.name] = struct{}{}
		var is [16]byte
		if r := s.get(c.name); r != nil {
			is = r.Digest()
		}
		if is != c.was {
			return false, true
		}
	}
	return true, true
}

// adoptNames notes what a client that drops its wildcard, and keeps names, has of
// those.
func (w *watch) adoptNames(s *snapshot) {
	d, ok := s.since(w.cursor)
	for name := range w.names {
		e, found := s.find(name)
		switch {
		case found && e.rev <= w.cursor:
			w.has[name] = e.res.Digest()
		case !found && ok && !slices.Contains(d.removed, name):
			w.has[name] = [16]byte{}
		}
	}
}

// with returns d and, besides, the named resources or the news that they are gone.
func (d *difference) with(s *snapshot, names map[string]struct{}) *difference {
	out := &difference{changed: slices.Clone(d.changed), bytes: d.bytes, removed: slices.Clone(d.removed)}
	present := make(map[*byte]struct{}, len(d.changed))
	for _, b := range d.changed {
		present[&b.ReadOnlyData()[0]] = struct{}{}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		r := s.get(name)
		if r == nil {
			if !slices.Contains(out.removed, name) {
				out.removed = append(out.removed, name)
			}
			continue
		}
		if _, ok := present[&r.DeltaEntry()[0]]; !ok {
			out.add(r)
		}
	}
	return out
}

// acknowledged records the receipt of the response with this nonce.
func (w *watch) acknowledged(nonce string, now time.Time) {
	w.status.ACKs++
	w.status.AckedNonce, w.status.AckedAt = nonce, now
	if nonce == w.nonce {
		w.status.LastNACK = ""
		w.ackedCursor = w.sentCursor
	}
	if w.sent != (digest{}) {
		w.rejectedFrom, w.rejectedTo = 0, 0 // SotW: a response is everything
	}
}

// rejected records a NACK. Nothing is sent in answer: the same bytes would be
// rejected again (PROTOCOL S7).
func (w *watch) rejected(reason string) {
	w.status.NACKs++
	w.status.LastNACK = bounded(reason)
	if w.rejectedTo == 0 {
		w.rejectedFrom = w.ackedCursor
	}
	w.rejectedTo = w.sentCursor
}

// sending records that a response with a new nonce is about to go out.
func (w *watch) sending(nonce, version string, size int, now time.Time) {
	w.nonce, w.sentCursor = nonce, w.cursor
	w.status.SentNonce, w.status.SentVersion, w.status.SentAt = nonce, version, now
	w.status.Pushes++
	w.status.Bytes += uint64(size)
}

func (w *watch) snapshotStatus() TypeStatus {
	st := w.status
	st.TypeURL = w.typeURL
	st.Synced = w.nonce != "" && (st.AckedNonce == w.nonce || w.kind == mirror.MeshConfig)
	return st
}

// bounded cuts text from a client to what a log line or a status can bear.
func bounded(s string) string { return cut(s, 1024) }

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
