package subscription

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/downstream/snapshot"
)

// maxRemoved bounds the removed names in one response.
const maxRemoved = 16_384

// Round brings a client to the newest snapshots in two passes. The first pass sends additions and changes:
// referenced types come before the types that refer to them. The second pass sends removals, in the opposite
// order. So no resource is removed while another one still refers to it (PROTOCOL S20). A SotW response with
// a removal belongs to the second pass.
type Round struct {
	steps []step
	at    int
}

// PartBytes bounds the resources, or the removed names, of a delta response. A larger resource is a response
// of its own. The default limit of gRPC clients is 4 MiB.
const PartBytes = 2 << 20

// Plan plans a round. It returns nil when there is nothing to send. newest returns the newest snapshot of a
// type. Plan fails when the client is too far behind.
func (s *Set) Plan(newest func(Type) *snapshot.Snapshot, encoded func(bytes int)) (*Round, error) {
	r := &s.round
	*r = Round{steps: r.steps[:0]}
	var removals []step
	for _, w := range s.sorted {
		st, ok, err := step{}, false, error(nil)
		snap := newest(w.Type)
		w.began = cmp.Or(w.began, max(snap.Rev, 1))
		if s.delta {
			st, ok, err = w.planDelta(snap, s.controlPlane, s.partBytes())
		} else {
			st, ok = w.planSotW(snap, s.form, encoded)
		}
		switch {
		case err != nil:
			return nil, err
		case !ok:
			continue
		case st.diff != nil && len(st.diff.Removed) > 0:
			removal := step{watch: w, changedAt: st.changedAt, version: st.version, asked: st.asked, removed: st.diff.Removed}
			removals = append(removals, removal)
			ok = len(st.entries) > 0
			st.more = ok
		case st.removes:
			removals = append(removals, st)
			ok = false
		}
		if ok {
			r.steps = append(r.steps, st)
		}
	}
	slices.Reverse(removals)
	if r.steps = append(r.steps, removals...); len(r.steps) == 0 {
		return nil, nil
	}
	return r, nil
}

// Response is one response of a round.
type Response struct {
	*snapshot.Message
	TypeURL, Nonce string
	Type           Type
	First          bool // the first of its type on the stream
	// ChangedAt is when the relay noticed the oldest change in the response. It is zero for a response
	// without a change.
	ChangedAt time.Time
}

// Next returns the next response of the round, and forgets it. ok is false after the last one.
func (s *Set) Next(r *Round, now time.Time) (resp Response, ok bool) {
	if r.at < len(r.steps) {
		st := &r.steps[r.at]
		resp, done := s.respond(st, now)
		if done {
			*st = step{}
			r.at++
		}
		return resp, true
	}
	for _, w := range s.sorted {
		if w.versionBytes > 0 && w.clientVersions == nil {
			w.versionBytes = 0 // the round with the differences from them is sent
			w.drop()
		}
	}
	if cap(r.steps) > 1 {
		r.steps = nil // most rounds have one step
	}
	return Response{}, false
}

// respond makes the next response of a step. done reports whether it is the last one of the step.
func (s *Set) respond(st *step, now time.Time) (resp Response, done bool) {
	w := st.watch
	resp = Response{TypeURL: w.TypeURL, Type: w.Type, First: w.sentNonce == 0, ChangedAt: st.changedAt}
	if resp.First || st.asked {
		resp.ChangedAt = time.Time{}
	}
	head := snapshot.Head{TypeURL: w.TypeURL}
	// The nonces of a first answer are the same on all streams, so that clients can share its bytes.
	var n nonce
	switch {
	case resp.First:
		n, head.ControlPlane = 1, s.controlPlane
	case st.initial != nil:
		n = nonce(st.part + 1)
	default:
		s.nonce++
		n = numbered + nonce(s.nonce)
	}
	head.Nonce = w.text(n)
	done = true
	switch {
	case st.initial != nil:
		resp.Message = st.initial[st.part]
		st.part++
		done = st.part == len(st.initial)
	case len(st.removed) > 0:
		n := cutNames(st.removed, s.partBytes())
		names := st.removed[:n]
		st.removed = st.removed[n:]
		done = len(st.removed) == 0
		head.Part = !done
		resp.Message = snapshot.Delta(head, nil, 0, names)
	case st.diff == nil:
		resp.Message = snapshot.SotW(w.TypeURL, st.sotwVersion, head.Nonce, head.ControlPlane, st.frames, st.bytes)
	default:
		n, size := snapshot.Cut(st.entries, s.partBytes())
		entries := st.entries[:n]
		st.entries = st.entries[n:]
		done = len(st.entries) == 0
		head.Part = !done || st.more
		resp.Message = snapshot.Delta(head, entries, size, nil)
	}
	resp.Nonce, w.sentNonce = head.Nonce, n
	w.answered = false
	if !w.awaited && !w.Type.NeverAcknowledged {
		w.awaited, w.awaitedSince = true, now.UnixNano()
		s.awaited++
	}
	if w.partial = !done || st.more; !w.partial {
		w.sentCursor = w.cursor
	}
	w.record.sentVersion, w.record.sentAt = st.version, now.UnixNano()
	w.record.pushes++
	w.record.bytes += uint64(resp.Size)
	return resp, done
}

// partBytes returns the largest size of a part.
func (s *Set) partBytes() int { return cmp.Or(s.limits.PartBytes, PartBytes) }

// cutNames returns how many removed names fit into one response of most bytes, at least one.
func cutNames(names []string, most int) (n int) {
	for size := 0; n < len(names) && n < maxRemoved; n++ {
		if size += 1 + protowire.SizeBytes(len(names[n])); n > 0 && size > most {
			break
		}
	}
	return n
}
