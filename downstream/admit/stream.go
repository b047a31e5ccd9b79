package admit

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// maxDelay is the total delay of a stream's requests after which it ends.
const maxDelay = 10 * time.Second

// Stream is a stream that was admitted. One goroutine at a time calls Request.
type Stream struct {
	*Peer
	admission *Admission
	scopes    []*scope
	delayed   time.Duration // since the peer last had half of its burst
}

// Open admits a stream of a peer on a listener, or returns why it is refused. It waits up to a second for its turn.
// overload returns why there is no room for more, or nil; a peer may have as many streams as before nevertheless: the
// relay itself makes old connections reconnect. The caller calls Close.
func (a *Admission) Open(ctx context.Context, key string, proven bool, listener int, overload error) (*Stream, error) {
	l := a.limits.Load()
	a.mu.Lock()
	p := a.peer(key, proven)
	s := &Stream{Peer: p, admission: a, scopes: a.scopes(p, listener)}
	p.Work.Opened.Add(1)
	full := over(s.scopes, func(s *scope) int { return s.streams }, l.MaxStreams)
	for _, of := range s.scopes {
		of.streams++
	}
	if overload == nil {
		p.usual = p.streams
	}
	fits := p.streams <= p.usual
	a.mu.Unlock()
	var err error
	switch {
	case overload != nil && !fits:
		err = refusal.New(refusal.Overload, codes.ResourceExhausted, "%s", refusal.Bounded(overload.Error()))
	case full == &p.scope:
		err = refusal.New(refusal.Peer, codes.ResourceExhausted,
			"%d streams of %s are open, no more of one peer are served at once (a part of downstream.maxStreams); try again later", full.of(l.MaxStreams), p.Name)
	case full != nil:
		err = refusal.New(refusal.Streams, codes.ResourceExhausted,
			"%d streams of %s are open, no more are served at once (downstream.maxStreams); try again later", full.of(l.MaxStreams), full.Name)
	default:
		err = s.pace(ctx)
	}
	if err != nil {
		s.Close(overload != nil)
		return nil, err
	}
	return s, nil
}

// pace waits until each scope allows one more new stream, the narrowest first: the streams of a peer must not delay
// those of others.
func (s *Stream) pace(ctx context.Context) error {
	until := time.Now().Add(time.Second)
	for _, of := range s.scopes {
		if of.opens.Allow() {
			continue // without a context, which would stay in memory as long as the stream
		}
		soon, cancel := context.WithDeadline(ctx, until)
		err := of.opens.Wait(soon)
		if cancel(); err != nil {
			return refusal.New(refusal.Rate, codes.ResourceExhausted, "more than %d new streams a second of %s; try again later", of.opens.Burst(), of.Name)
		}
	}
	return nil
}

// Close ends what Open began. The peer may come back to its place if overloaded is set.
func (s *Stream) Close(overloaded bool) {
	a := s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, of := range s.scopes {
		of.streams--
	}
	if !overloaded {
		s.usual = s.streams
	}
	a.forget(s.Peer, overloaded)
}

// forget forgets a peer that has nothing. The caller holds mu.
func (a *Admission) forget(p *Peer, overloaded bool) {
	if p.gone(overloaded) && a.byKey[p.Name] == p {
		delete(a.byKey, p.Name)
	}
}

// Request counts a request, and returns how long to delay it. first is set for the first one that is delayed. It fails
// when the total delay is too long.
func (s *Stream) Request(now time.Time) (wait time.Duration, first bool, err error) {
	s.Work.Requests.Add(1)
	if s.delayed > 0 && s.requests.TokensAt(now) >= float64(s.requests.Burst())/2 {
		s.delayed = 0
	}
	for _, of := range s.scopes {
		wait = max(wait, of.requests.ReserveN(now, 1).DelayFrom(now))
	}
	if wait == 0 {
		return 0, false, nil
	}
	s.Work.Delayed.Add(1)
	first = s.delayed == 0
	if s.delayed += wait; s.delayed > maxDelay {
		return 0, false, refusal.New(refusal.Requests, codes.ResourceExhausted,
			"more than %d requests a second of %s, for too long", s.admission.limits.Load().RequestsPerSecond, s.Name)
	}
	return wait, first, nil
}
