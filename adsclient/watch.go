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

// attend ends the stream with errStalled when it makes no progress while types wait for
// their first answer, and later with a movedError when a preferred address has turned out
// to work again. It returns when the stream ends.
func (s *stream) attend(ctx context.Context, end context.CancelCauseFunc) {
	timeout := s.client.cfg.SyncTimeout
	var tick <-chan time.Time
	if timeout > 0 && !s.named() {
		ticker := time.NewTicker(max(timeout/8, time.Millisecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	seen := newProgress(timeout, time.Now())
	left := s.left.Load()
	synced := false
	for !synced {
		select {
		case <-ctx.Done():
			return
		case <-s.synced:
			synced = true
		case now := <-tick:
			// What the handler takes its time for is not the server's fault: the connection
			// stands still because nobody reads.
			answers := s.left.Load()
			moved := answers != left || s.handling.Load()
			left = answers
			if seen.stalled(now, s.meter.bytes.Load(), moved) {
				end(errStalled)
				return
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case to := <-s.client.back:
			if to >= s.number {
				s.client.board.probeEnded(to, nil) // the stream has come this far by itself
				continue
			}
			end(&movedError{to: to, address: s.client.cfg.Addresses[to]})
			return
		}
	}
}

// stalled returns what to say of a stream that ended so. The reader has ended.
func (s *stream) stalled() error {
	const shown = 3
	types := slices.Sorted(maps.Keys(s.waiting))
	more := ""
	if len(types) > shown {
		types, more = types[:shown], ", …"
	}
	return status.Error(codes.DeadlineExceeded, fmt.Sprintf(
		"%d of %d types were not answered and nothing came for %v: %s%s; the server may wait for its own sources, or a proxy in between may hold the stream up; a server that needs longer wants a longer syncTimeout",
		len(s.waiting), len(s.relisted), s.client.cfg.SyncTimeout, strings.Join(types, ", "), more))
}
