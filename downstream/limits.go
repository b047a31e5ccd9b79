package downstream

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// Limits bound clients. Server.Reload can replace them. A zero value means the default.
type Limits struct {
	// MaxConnections and MaxStreams bound the clients of all listeners together. Connections
	// beyond are closed, streams refused. Lowered limits end nobody.
	MaxConnections int
	MaxStreams     int
	// MaxConnectionsPerPeer bounds the connections of one address, MaxStreamsPerPeer the streams
	// of one verified identity or address. Default: three quarters of the bound for all, because
	// an address may be a fleet's.
	MaxConnectionsPerPeer int
	MaxStreamsPerPeer     int
	// MaxViewsPerPeer bounds the views of the streams of one peer, counting each combination of a
	// configured view, a cluster and a revision.
	MaxViewsPerPeer int
	// NewStreamsPerSecond bounds new streams; more wait for up to a second and are then refused
	// (PROTOCOL S25). One peer has three quarters of them at most.
	NewStreamsPerSecond int
	// RequestsPerSecond bounds each stream, acknowledgements not counted. A client that is faster
	// for a while is delayed, and after ten seconds of delay its stream ends.
	RequestsPerSecond int
	// MaxNodeBytes bounds the encoded node of a first request.
	MaxNodeBytes int
	// MaxTypesPerClient bounds the types that a stream subscribes to.
	MaxTypesPerClient int
	// MaxNamesPerClient, MaxNamesPerPeer and MaxNames bound the resource names that one stream,
	// one peer and all streams subscribe to; the others bound their bytes.
	MaxNamesPerClient, MaxNameBytesPerClient int
	MaxNamesPerPeer, MaxNameBytesPerPeer     int
	MaxNames, MaxNameBytes                   int
	// MaxVersionBytes bounds the initial_resource_versions of all streams that wait to be compared.
	// Each peer has three quarters of it at most.
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

// mostOf returns three quarters of a limit, rounded up: what one peer may have of it.
func mostOf(limit int) int { return max(1, limit-limit/4) }

// complete returns l with its defaults, or an error that names each limit that is none.
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
	// leastBurst is how many requests a client may always make at once.
	leastBurst = 1024
	// maxDelay is how long a client may be delayed in all before its stream is ended.
	maxDelay = 10 * time.Second
)

// pace is how fast one client may ask. It is of the goroutine that receives.
type pace struct {
	limiter *rate.Limiter
	limits  *Limits // that the limiter was made from
	// delayed is for how long requests were delayed since half of the burst was left.
	delayed time.Duration
}

// next takes one request, and returns how long it waits and whether it is the first that does. It
// fails when the client has been delayed for too long.
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
