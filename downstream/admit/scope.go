package admit

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"meshrelay/downstream/refusal"
)

// Parts of the limits, in sixteenths. Each scope has one of what the process may have, and a peer has three quarters of
// what its scopes have.
const (
	whole      = 16
	ofListener = 12 // of several
	ofUnproven = 8  // where a listener identifies its clients
	ofUnknown  = 12 // those, and connections in their handshake
)

// scope counts what some clients take together. Admission.mu guards the counts.
type scope struct {
	Name                  string
	part                  int // of the limits, in sixteenths
	conns, streams, bytes int
	opens, requests       *rate.Limiter // of new streams, and of requests
}

func (s *scope) of(limit int) int { return max(1, (limit*s.part+whole-1)/whole) }

// newScope returns a scope that may send times what one peer may.
func newScope(name string, part, times int, l *Limits) *scope {
	s := &scope{Name: name, part: part}
	opens := s.of(l.NewStreamsPerSecond)
	s.opens = rate.NewLimiter(rate.Limit(opens), opens)
	s.requests = rate.NewLimiter(rate.Limit(times*l.RequestsPerSecond), burst*times*l.RequestsPerSecond)
	return s
}

// Admission counts clients in scopes. Any goroutine may call its methods.
type Admission struct {
	limits  atomic.Pointer[Limits]
	refused func(from net.Addr, why refusal.Reason)
	wrote   func(bytes int, took time.Duration)

	mu         sync.Mutex // guards all below, and the counts of scopes and peers
	all        *scope
	unproven   *scope   // nil: no listener identifies its clients
	unknown    *scope   // those, and connections in their handshake
	byListener []*scope // nil: there is one listener
	byKey      map[string]*Peer
	swept      int // number of peers after the last sweep
	conns      map[*conn]struct{}
	shut       bool
	looked     time.Time     // in vain, for an old connection without a stream
	lookedLate time.Time     // in vain, for a request that takes too long
	freed      chan struct{} // closed when bytes are given back
}

// Listener is an address that clients connect to.
type Listener struct {
	Address string
	// Identifies: its clients can prove who they are.
	Identifies bool
}

// New returns an Admission for listeners. It calls refused for each connection that it closes, and wrote for each
// write to a connection.
func New(l *Limits, listeners []Listener, refused func(net.Addr, refusal.Reason), wrote func(bytes int, took time.Duration)) *Admission {
	a := &Admission{
		refused: refused, wrote: wrote, all: newScope("all clients", whole, allPeers, l),
		byKey: map[string]*Peer{}, conns: map[*conn]struct{}{}, freed: make(chan struct{}),
	}
	a.limits.Store(l)
	for _, lis := range listeners {
		if lis.Identifies && a.unproven == nil {
			a.unproven = newScope("clients without an identity", ofUnproven, allPeers*ofUnproven/whole, l)
			a.unknown = newScope("clients without an identity yet", ofUnknown, allPeers*ofUnknown/whole, l)
		}
		if len(listeners) > 1 {
			a.byListener = append(a.byListener, newScope("listener "+lis.Address, ofListener, allPeers*ofListener/whole, l))
		}
	}
	return a
}

// SetLimits replaces the limits. What is there stays.
func (a *Admission) SetLimits(l *Limits) { a.limits.Store(l) }

// scopes returns the scopes of a peer on a listener, by its number, the narrowest first.
func (a *Admission) scopes(p *Peer, listener int) []*scope {
	out := []*scope{&p.scope}
	if !p.Proven && a.unproven != nil {
		out = append(out, a.unproven, a.unknown)
	}
	if a.byListener != nil {
		out = append(out, a.byListener[listener])
	}
	return append(out, a.all)
}

// over returns the narrowest scope in which a count is not below its part of a limit, nil if there is none: what a peer
// has in excess is for nobody else to make room for. The caller holds mu.
func over(scopes []*scope, count func(*scope) int, limit int) *scope {
	for _, s := range scopes {
		if count(s) >= s.of(limit) {
			return s
		}
	}
	return nil
}
