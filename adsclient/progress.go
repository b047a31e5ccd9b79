package adsclient

import "time"

// An idle connection has its noise: pings of both sides, their answers, and windows. Of a
// gRPC server that pings once a second, the most that one can be set to, and over TLS
// that is less than 60 B/s.
const (
	noiseBytes = 512
	noiseRate  = 64 // bytes per second
)

// progress tells a transfer, be it slow, from one that stands still.
type progress struct {
	timeout time.Duration
	noise   int64 // bytes within timeout that mean nothing
	from    int64
	since   time.Time
}

func newProgress(timeout time.Duration, now time.Time) *progress {
	return &progress{timeout: timeout, noise: noiseBytes + int64(noiseRate*timeout.Seconds()), since: now}
}

// stalled reports whether there was no progress for the timeout. bytes is what was moved
// so far; moved says that there is progress whatever it is.
func (p *progress) stalled(now time.Time, bytes int64, moved bool) bool {
	if moved || bytes-p.from > p.noise {
		p.from, p.since = bytes, now
	}
	return now.Sub(p.since) >= p.timeout
}
