package downstream

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// Limits limit clients. Server.Reload can replace them. A zero value means the default.
type Limits struct {
	// MaxConnections and MaxStreams bound the clients of all listeners together. The relay closes connections
	// and refuses streams above them. When a limit is lowered, open ones stay.
	MaxConnections int
	MaxStreams     int
	// MaxConnectionsPerPeer bounds the connections of one address, MaxStreamsPerPeer the streams of one
	// verified identity or address. Default: three quarters of the limit for all, because many clients may
	// share an address.
	MaxConnectionsPerPeer int
	MaxStreamsPerPeer     int
	// MaxViewsPerPeer bounds the views of one peer: the combinations of a configured view, a cluster and a
	// revision.
	MaxViewsPerPeer int
	// NewStreamsPerSecond bounds new streams. More wait for up to a second, and are then refused (PROTOCOL
	// S25). One peer may open three quarters of them.
	NewStreamsPerSecond int
	// RequestsPerSecond bounds the requests of each stream, without acknowledgements. The relay delays the
	// requests of a faster client, and ends its stream after ten seconds of delay.
	RequestsPerSecond int
	// MaxNodeBytes bounds the encoded node of a first request.
	MaxNodeBytes int
	// MaxTypesPerClient bounds the types that a stream subscribes to.
	MaxTypesPerClient int
	// MaxNamesPerClient, MaxNamesPerPeer and MaxNames bound the resource names to which one stream, one peer
	// and all streams subscribe. The others bound the bytes of these names.
	MaxNamesPerClient, MaxNameBytesPerClient int
	MaxNamesPerPeer, MaxNameBytesPerPeer     int
	MaxNames, MaxNameBytes                   int
	// MaxVersionBytes bounds the initial_resource_versions that the relay keeps for all streams until it has
	// compared them. One peer may have three quarters of it.
	MaxVersionBytes int
}

// each calls f with every limit, its name, and its default.
func (l *Limits) each(f func(name string, value *int, byDefault int)) {
	f("MaxConnections", &l.MaxConnections, 20_000)
	f("MaxStreams", &l.MaxStreams, 20_000)
	f("MaxConnectionsPerPeer", &l.MaxConnectionsPerPeer, mostOf(l.MaxConnections))
	f("MaxStreamsPerPeer", &l.MaxStreamsPerPeer, mostOf(l.MaxStreams))
	f("MaxViewsPerPeer", &l.MaxViewsPerPeer, maxViews/4)
	f("NewStreamsPerSecond", &l.NewStreamsPerSecond, 2000)
	f("RequestsPerSecond", &l.RequestsPerSecond, 500)
	f("MaxNodeBytes", &l.MaxNodeBytes, 256<<10)
	f("MaxTypesPerClient", &l.MaxTypesPerClient, 256)
	f("MaxNamesPerClient", &l.MaxNamesPerClient, 65_536)
	f("MaxNameBytesPerClient", &l.MaxNameBytesPerClient, 8<<20)
	f("MaxNamesPerPeer", &l.MaxNamesPerPeer, 262_144)
	f("MaxNameBytesPerPeer", &l.MaxNameBytesPerPeer, 32<<20)
	f("MaxNames", &l.MaxNames, 524_288)
	f("MaxNameBytes", &l.MaxNameBytes, 64<<20)
	f("MaxVersionBytes", &l.MaxVersionBytes, 128<<20)
}

// mostOf returns the part of a limit that one peer may use: three quarters, rounded up.
func mostOf(limit int) int { return max(1, limit-limit/4) }

// complete returns l with its defaults. The error names each negative limit.
func (l Limits) complete() (*Limits, error) {
	var errs error
	l.each(func(name string, value *int, byDefault int) {
		switch {
		case *value < 0:
			errs = errors.Join(errs, fmt.Errorf("downstream: %s is %d: want a positive number, or 0 for %d", name, *value, byDefault))
		case *value == 0:
			*value = byDefault
		}
	})
	return &l, errs
}

const (
	// leastBurst is the number of requests that a client may always send at once.
	leastBurst = 1024
	// maxDelay is the total delay of a client's requests after which its stream ends.
	maxDelay = 10 * time.Second
)

// pace limits the requests of one client. Only the goroutine that receives uses it.
type pace struct {
	limiter *rate.Limiter
	limits  *Limits // of the limiter
	// delayed is the total delay since the limiter last had half of its burst.
	delayed time.Duration
}

// next counts one request, and returns how long to delay it. first is set for the first request that
// is delayed. next fails when the total delay is too long.
func (p *pace) next(limits *Limits, now time.Time) (wait time.Duration, first bool, err error) {
	limit := rate.Limit(limits.RequestsPerSecond)
	burst := max(leastBurst, 2*limits.RequestsPerSecond, 4*limits.MaxTypesPerClient)
	switch {
	case p.limiter == nil:
		p.limiter = rate.NewLimiter(limit, burst)
	case p.limits != limits:
		p.limiter.SetLimitAt(now, limit)
		p.limiter.SetBurstAt(now, burst)
	}
	p.limits = limits
	if p.delayed > 0 && p.limiter.TokensAt(now) >= float64(burst)/2 {
		p.delayed = 0
	}
	wait = p.limiter.ReserveN(now, 1).DelayFrom(now)
	first = wait > 0 && p.delayed == 0
	if p.delayed += wait; p.delayed > maxDelay {
		return 0, false, refusal.New(refusal.Requests, codes.ResourceExhausted,
			"more than %d requests a second (downstream.requestsPerSecond), for too long", limits.RequestsPerSecond)
	}
	return wait, first, nil
}
