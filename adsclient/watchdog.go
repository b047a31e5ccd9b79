package adsclient

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watchdog ends the stream with errStalled when it is silent while types have no answer. Before that, it
// lets go types that are not offered. Later it ends the stream with a movedError when a preferred address
// works. It returns when the stream ends.
func (s *stream) watchdog(ctx context.Context, end context.CancelCauseFunc) {
	cfg, patience := &s.client.cfg, s.client.patience
	q := quiet{every: max(min(cfg.SyncTimeout/8, cfg.Silence/10), time.Millisecond), last: time.Now(), frames: s.receiver.progress.Load()}
	if s.client.silent = nil; cfg.Silent != nil {
		patience = max(patience, cfg.Silence*5/4) // let go types before that
	}
	var tick <-chan time.Time
	if cfg.SyncTimeout > 0 && !s.named() {
		ticker := time.NewTicker(q.every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for synced := false; !synced; {
		select {
		case <-ctx.Done():
			return
		case <-s.synced:
			synced = true
		case now := <-tick:
			busy, receives := s.receiver.busy()
			q.look(now, s.receiver.progress.Load(), s.firsts.Load(), busy, receives)
			switch {
			case q.frame >= cfg.SyncTimeout && (q.firsts == 0 || q.first >= patience):
				end(errStalled)
				return
			case cfg.Silent != nil && q.firsts > 0 && q.first >= cfg.Silence:
				s.letGo(q.firsts)
			}
		}
	}
	if to, ok := s.client.failBack(ctx, s.number); ok {
		end(&movedError{to: to, address: cfg.Addresses[to]})
	}
}

// letGo lets go the types that Silent does not await, unless there were more first answers than seen.
func (s *stream) letGo(seen int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firsts.Load() != seen || len(s.waiting) == 0 || len(s.waiting) == len(s.relisted) {
		return
	}
	types := slices.Sorted(maps.Keys(s.waiting))
	awaited := s.client.cfg.Silent(types)
	for _, typeURL := range types {
		if !slices.Contains(awaited, typeURL) {
			s.silent[typeURL] = true
			s.markAnswered(typeURL)
		}
	}
	s.client.silent = maps.Clone(s.silent)
}

// quiet measures for how long a stream brings nothing. It has no clock.
type quiet struct {
	every          time.Duration // between two looks
	last           time.Time     // look
	frames, firsts int64         // seen until then: frames, and first answers of a type
	frame, first   time.Duration // since the last one
}

// look takes the present numbers. busy and receives are those of the receiver.
func (q *quiet) look(now time.Time, frames, firsts int64, busy, receives bool) {
	passed := min(now.Sub(q.last), 2*q.every) // it is longer after a stop of the process
	came := frames != q.frames
	if q.frame += passed; came || busy {
		q.frame = 0
	}
	switch {
	case firsts != q.firsts:
		q.first = 0
	case !busy && (!came || !receives): // a first answer may be on the way
		q.first += passed
	}
	q.last, q.frames, q.firsts = now, frames, firsts
}

// stalled returns the error for a stream that errStalled has ended. Call it after the reader has
// ended.
func (s *stream) stalled() error {
	const shown = 3
	types := slices.Sorted(maps.Keys(s.waiting))
	more := ""
	if len(types) > shown {
		types, more = types[:shown], ", …"
	}
	return status.Error(codes.DeadlineExceeded, fmt.Sprintf(
		"%d of %d types were not answered and nothing came for %v: %s%s; the server may wait for its own sources, or a proxy may hold the stream: look at both",
		len(s.waiting), len(s.relisted), s.client.cfg.SyncTimeout, strings.Join(types, ", "), more))
}
