package subscription

import (
	"slices"
	"strconv"
	"time"

	"meshrelay/downstream/snapshot"
)

// maxRemoved is how many removed names one response has at most.
const maxRemoved = 16_384

// Round leads a client to the newest snapshots, in two passes: first additions and changes, from types
// that others refer to towards those that refer; then removals, in the opposite order. So nothing goes
// while something still points to it (PROTOCOL S20). A SotW response with a removal is in the second.
type Round struct {
	steps []step
	at    int
}

// Plan begins a round, nil when there is nothing to send. newest returns the newest snapshot of a type.
// It fails when the client is too far behind.
func (s *Set) Plan(newest func(Type) *snapshot.Snapshot, encoded func(bytes int)) (*Round, error) {
	r := &s.round
	*r = Round{steps: r.steps[:0]}
	var removals []step
	for _, w := range s.sorted {
		st, ok, err := step{}, false, error(nil)
		if s.delta {
			st, ok, err = w.planDelta(newest(w.Type), s.controlPlane)
		} else {
			st, ok = w.planSotW(newest(w.Type), encoded)
		}
		switch {
		case err != nil:
			return nil, err
		case !ok:
			continue
		case st.diff != nil && len(st.diff.Removed) > 0:
			removal := step{watch: w, changedAt: st.changedAt, version: st.version, asked: st.asked, removed: st.diff.Removed}
			removals = append(removals, removal)
			ok = len(st.diff.Changed) > 0
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
	First          bool // of its type on the stream
	// ChangedAt is when the oldest change in it was noticed; zero when it brings none.
	ChangedAt time.Time
}

// Next returns the next response of the round; ok is false at the end. It does not keep the response.
func (s *Set) Next(r *Round, now time.Time) (resp Response, ok bool) {
	if r.at < len(r.steps) {
		st := &r.steps[r.at]
		resp := s.respond(st, now)
		if len(st.removed) == 0 {
			*st = step{}
			r.at++
		}
		return resp, true
	}
	for _, w := range s.sorted {
		if w.clientVersions == nil {
			w.versionBytes = 0 // what follows from them is sent
		}
	}
	if cap(r.steps) > 1 {
		r.steps = nil // a round of one type is usual
	}
	return Response{}, false
}

// respond makes one response of a step. It takes the removals from the step that it brings.
func (s *Set) respond(st *step, now time.Time) Response {
	w := st.watch
	resp := Response{TypeURL: w.TypeURL, Type: w.Type, First: w.nonce == "", ChangedAt: st.changedAt}
	var controlPlane []byte
	if resp.First {
		resp.Nonce, controlPlane = w.first, s.controlPlane
	} else {
		s.nonce++
		resp.Nonce = strconv.FormatUint(s.nonce, 10)
	}
	if resp.First || st.asked {
		resp.ChangedAt = time.Time{}
	}
	switch {
	case len(st.removed) > 0:
		// In parts, as nobody shares them.
		n := min(len(st.removed), maxRemoved)
		resp.Message = snapshot.Delta(w.TypeURL, resp.Nonce, controlPlane, nil, 0, st.removed[:n])
		st.removed = st.removed[n:]
	case st.diff == nil:
		resp.Message = snapshot.SotW(w.TypeURL, st.sotwVersion, resp.Nonce, controlPlane, st.frames, st.bytes)
	case st.initial != nil:
		resp.Message = st.initial
	default:
		resp.Message = snapshot.Delta(w.TypeURL, resp.Nonce, controlPlane, st.diff.Changed, st.diff.Bytes, nil)
	}
	w.nonce, w.sentCursor = resp.Nonce, w.cursor
	w.record.sentVersion, w.record.sentAt = st.version, now.UnixNano()
	w.record.pushes++
	w.record.bytes += uint64(resp.Size)
	return resp
}
