package downstream

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// One peer, one listener, and all clients without an identity have three quarters of each limit of all clients. So
// none of them takes the rest from the others. The share of clients without an identity exists only where a listener
// identifies clients, and that of a listener only where there are several listeners.

// shares counts the streams of the clients without an identity, and those of each listener.
type shares struct {
	unknown    *share // nil: no listener verifies clients
	byListener map[*Listener]*share

	mu sync.Mutex // guards share.streams
}

// share is what some clients use together.
type share struct {
	name    string // for refusals
	limiter *rate.Limiter
	streams int
}

func newShares(listeners []Listener, perSecond int) *shares {
	s := &shares{byListener: map[*Listener]*share{}}
	for i := range listeners {
		l := &listeners[i]
		if l.TLS.verifies() && s.unknown == nil {
			s.unknown = newShare("clients without an identity", perSecond)
		}
		if len(listeners) > 1 {
			s.byListener[l] = newShare("listener "+l.Address, perSecond)
		}
	}
	return s
}

func newShare(name string, perSecond int) *share {
	most := mostOf(perSecond)
	return &share{name: name, limiter: rate.NewLimiter(rate.Limit(most), most)}
}

// of returns the shares that a stream counts in.
func (s *shares) of(c *conn) (out []*share) {
	if s.unknown != nil && c.who.IsZero() {
		out = append(out, s.unknown)
	}
	if l := s.byListener[c.listener]; l != nil {
		out = append(out, l)
	}
	return out
}

// limitsOf returns the limits for a stream. A peer has three quarters of each share that it is in, so that it leaves
// the rest to others of that share.
func (s *Server) limitsOf(c *conn) *Limits {
	l := s.limits.Load()
	if len(s.shares.of(c)) == 0 {
		return l
	}
	less := *l
	less.NewStreamsPerSecond = mostOf(l.NewStreamsPerSecond)
	less.MaxStreamsPerPeer = min(l.MaxStreamsPerPeer, mostOf(mostOf(l.MaxStreams)))
	return &less
}

// pace waits until the shares of a stream allow one more new stream. It fails after until.
func (s *shares) pace(ctx context.Context, c *conn, perSecond int, until time.Time) error {
	for _, sh := range s.of(c) {
		most := mostOf(perSecond)
		limitTo(sh.limiter, most)
		if admitted(ctx, sh.limiter, until) != nil {
			return refusal.New(refusal.Rate, codes.ResourceExhausted,
				"more than %d new streams a second of %s (three quarters of downstream.newStreamsPerSecond); try again later", most, sh.name)
		}
	}
	return nil
}

// enter counts an admitted stream. It returns an error, and counts nothing, if one of its shares is used up.
func (s *shares) enter(c *conn, maxStreams int) error {
	all, most := s.of(c), mostOf(maxStreams)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range all {
		if sh.streams >= most {
			return refusal.New(refusal.Streams, codes.ResourceExhausted,
				"%d streams of %s are open, no more are served at once (three quarters of downstream.maxStreams); try again later", most, sh.name)
		}
	}
	for _, sh := range all {
		sh.streams++
	}
	return nil
}

// leave ends what enter began.
func (s *shares) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.of(c) {
		sh.streams--
	}
}

const (
	// peerRequests is how many times the requests of one stream all streams of one peer may send in a second.
	// peerBurst is the same for the requests that a peer may always send at once: streams of a load balancer come
	// back together.
	peerRequests = 16
	peerBurst    = 64 * leastBurst
	// answersPerCPU bounds the answers to requests that are made and written at the same time, for each CPU.
	answersPerCPU = 16
	// answerTime is how long an answer counts. After that it waits for the client to read.
	answerTime = 100 * time.Millisecond
)

// answering limits the answers to requests that are made at the same time, so that one peer that asks for everything
// on many streams leaves the CPUs to others. Pushes do not wait.
type answering struct{ all *semaphore.Weighted }

func newAnswering() *answering { return &answering{semaphore.NewWeighted(int64(mostAnswers()))} }

// mostAnswers returns how many answers are made at the same time. One peer may have three quarters of them.
func mostAnswers() int { return answersPerCPU * runtime.GOMAXPROCS(0) }

// begin waits until neither the peer nor the server has too many answers. The caller calls end. It fails when ctx
// ends.
func (a *answering) begin(ctx context.Context, p *peerUse) (end func(), err error) {
	if err := p.answers.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := a.all.Acquire(ctx, 1); err != nil {
		p.answers.Release(1)
		return nil, err
	}
	free := sync.OnceFunc(func() { a.all.Release(1); p.answers.Release(1) })
	late := time.AfterFunc(answerTime, free)
	return func() { late.Stop(); free() }, nil
}

// work counts what was done for a peer. The zero work is ready to use.
type work struct {
	opened, requests, delayed, rejected, responses, bytes atomic.Uint64
}

// sent counts responses that were sent, of some bytes.
func (w *work) sent(responses, bytes int) {
	w.responses.Add(uint64(responses)) // a count
	w.bytes.Add(uint64(bytes))         // a size
}

// PeerStatus is what the streams of one peer have cost since the peer came.
type PeerStatus struct {
	// Peer is the identity in a verified certificate, or else an address.
	Peer       string `json:"peer"`
	Identified bool   `json:"identified"`
	// Streams are open now. Opened counts all, also those that were refused.
	Streams int    `json:"streams"`
	Opened  uint64 `json:"opened"`
	// Requests were decoded. Delayed of them waited because the peer sent too many, and Rejected were NACKs.
	Requests uint64 `json:"requests"`
	Delayed  uint64 `json:"delayed"`
	Rejected uint64 `json:"rejected"`
	// Responses were sent, of Bytes.
	Responses uint64 `json:"responses"`
	Bytes     uint64 `json:"bytes"`
	Names     int    `json:"names"`
	NameBytes int    `json:"nameBytes"`
}

// maxPeerStatus bounds the result of Server.Peers.
const maxPeerStatus = 100

// Peers returns the peers that were sent most, at most maxPeerStatus. It forgets a peer without streams after a
// while.
func (s *Server) Peers() []PeerStatus {
	s.peers.mu.Lock()
	out := make([]PeerStatus, 0, len(s.peers.byKey))
	for _, p := range s.peers.byKey {
		out = append(out, PeerStatus{
			Peer: p.key, Identified: p.known.Load(), Streams: p.streams, Opened: p.work.opened.Load(), Requests: p.work.requests.Load(), Delayed: p.work.delayed.Load(),
			Rejected: p.work.rejected.Load(), Responses: p.work.responses.Load(), Bytes: p.work.bytes.Load(), Names: p.kept.Names, NameBytes: p.kept.NameBytes,
		})
	}
	s.peers.mu.Unlock()
	slices.SortFunc(out, func(a, b PeerStatus) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Peer, b.Peer))
	})
	return out[:min(len(out), maxPeerStatus)]
}
