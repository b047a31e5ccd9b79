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

// watchdog ends the stream with errStalled when it is silent while types have no answer. Later it
// ends it with a movedError when a preferred address works. It returns when the stream ends.
func (s *stream) watchdog(ctx context.Context, end context.CancelCauseFunc) {
	timeout := s.client.cfg.SyncTimeout
	var tick <-chan time.Time
	if timeout > 0 && !s.named() {
		ticker := time.NewTicker(max(timeout/8, time.Millisecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	seen, since := s.pool.progress.Load(), time.Now()
	for synced := false; !synced; {
		select {
		case <-ctx.Done():
			return
		case <-s.synced:
			synced = true
		case now := <-tick:
			// Nothing is read while the handler is busy, or there is no room.
			if n := s.pool.progress.Load(); n != seen || s.pool.busy() {
				seen, since = n, now
			} else if now.Sub(since) >= timeout {
				end(errStalled)
				return
			}
		}
	}
	if to, ok := s.client.failBack(ctx, s.number); ok {
		end(&movedError{to: to, address: s.client.cfg.Addresses[to]})
	}
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
		"%d of %d types were not answered and nothing came for %v: %s%s; the server may wait for its own sources, or a proxy may hold the stream: look at both, or raise syncTimeout",
		len(s.waiting), len(s.relisted), s.client.cfg.SyncTimeout, strings.Join(types, ", "), more))
}
