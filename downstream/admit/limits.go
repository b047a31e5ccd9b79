package admit

import (
	"errors"
	"fmt"
)

// Limits limit clients. A zero value means the default. The config sets the first three; the others are constants,
// except in tests.
type Limits struct {
	// MaxConnections and MaxStreams bound the clients of all listeners together. When one is lowered, open ones stay.
	MaxConnections, MaxStreams int
	// MaxRequestBytes bounds a request. OpenRequestBytes bounds it on listeners that do not require certificates.
	MaxRequestBytes int
	// NewStreamsPerSecond bounds new streams. More wait for up to a second, and are then refused (PROTOCOL S25).
	NewStreamsPerSecond int
	// RequestsPerSecond bounds the requests of a peer, without acknowledgements. The relay delays the requests of a
	// faster one, and ends a stream after ten seconds of delay. All peers have four times as many.
	RequestsPerSecond int
}

// OpenRequestBytes bounds the requests of listeners that do not require certificates: the default of gRPC.
const OpenRequestBytes = 4 << 20

// Complete sets the defaults of l. The error names each negative limit.
func (l *Limits) Complete() error {
	return Complete([]Limit{
		{"MaxConnections", &l.MaxConnections, 20_000},
		{"MaxStreams", &l.MaxStreams, 20_000},
		{"MaxRequestBytes", &l.MaxRequestBytes, 32 << 20},
		{"NewStreamsPerSecond", &l.NewStreamsPerSecond, 2000},
		{"RequestsPerSecond", &l.RequestsPerSecond, 8000},
	})
}

// Limit is one of some limits, with its default.
type Limit struct {
	Name    string
	Value   *int
	Default int
}

// Complete sets the defaults of limits. The error names each negative one.
func Complete(limits []Limit) (errs error) {
	for _, l := range limits {
		if *l.Value < 0 {
			errs = errors.Join(errs, fmt.Errorf("downstream: %s is %d: want a positive number, or 0 for %d", l.Name, *l.Value, l.Default))
		} else if *l.Value == 0 {
			*l.Value = l.Default
		}
	}
	return errs
}

// heldBytes bounds the bytes of requests that gRPC holds for all connections.
func (l *Limits) heldBytes() int { return max(heldLeast, 4*l.MaxRequestBytes) }

const (
	heldLeast = 16 << 20
	burst     = 8 // seconds of requests, at once: the streams of a load balancer come back together
	allPeers  = 4 // times the requests of one peer
)
