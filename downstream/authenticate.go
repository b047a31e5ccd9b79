package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/bearer"
	"meshrelay/internal/certfile"
	"meshrelay/internal/identity"
	"meshrelay/internal/lastgood"
	"meshrelay/mirror"
)

const (
	// badTokens is how many refused tokens of one address are looked at in a second. More are refused unseen.
	badTokens = 50
	// tokensAtOnce is how many tokens of one address are looked at at the same time: three quarters of the reviews of
	// package bearer.
	tokensAtOnce = 12
	// reviewsAtOnce and reviewsFor bound the reviews of tokens of open streams. Streams that get no review
	// stay until the next round.
	reviewsAtOnce = 16
	reviewsFor    = 2 * time.Second
)

// What could not be read, in logs and metrics.
const (
	badCertificate = "certificate"
	badCA          = "ca"
	badCRL         = "crl"
	badWorkloadAPI = "workload-api"
	badToken       = "token"
)

// authenticator knows who the clients of a listener are. Any goroutine may call its methods, but for refresh. It is
// nil for plaintext, where nobody proves anything.
type authenticator struct {
	tls    *TLS
	own    *lastgood.File[tls.Certificate] // of the relay; nil: of api
	api    *workload                       // nil: there is none
	trust  *trust                          // nil: clients are asked for no certificate
	tokens *bearer.Issuers                 // nil: tokens are not read
	// changes counts the changes of trust and keys. A stream that was judged before the last one is judged
	// again before its next response.
	changes atomic.Uint64
	news    chan struct{} // has a value after news of api

	checking sync.Mutex      // guards all below, and calls of refresh
	problems map[string]bool // of the last refresh: what could not be read
	reviewed int             // streams whose tokens were reviewed again
}

// newAuthenticator reads the files of a listener.
func newAuthenticator(t *TLS) (a *authenticator, err error) {
	if t == nil {
		return nil, nil
	}
	a = &authenticator{tls: t, news: make(chan struct{}, 1)}
	if t.WorkloadAPI != "" {
		a.api = &workload{address: t.WorkloadAPI, changed: func() {
			mirror.Signal(a.news)
		}}
	} else {
		a.own, err = lastgood.Open(certfile.Renewing(t.CertFile, t.KeyFile), t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	if a.trust, err = newTrust(t, a.api); err != nil {
		return nil, err
	}
	if len(t.Tokens) > 0 {
		a.tokens, err = bearer.Open(t.Tokens)
	}
	return a, err
}

// certificate returns the certificate of the relay.
func (a *authenticator) certificate() (*tls.Certificate, error) {
	if a.api != nil {
		return a.api.certificate()
	}
	own := a.own.Get()
	return &own, nil
}

// Certificate returns the certificate that the listener Config.Listeners[n] shows, nil while it has none.
func (s *Server) Certificate(n int) *x509.Certificate {
	if !isClosed(s.listening) || s.auth[&s.cfg.Listeners[n]] == nil {
		return nil
	}
	own, err := s.auth[&s.cfg.Listeners[n]].certificate()
	if err != nil {
		return nil
	}
	return own.Leaf
}

// reads reports whether it reads the token of a stream.
func (a *authenticator) reads(c *conn) bool {
	_, leaf := verified(c.peer)
	return leaf == nil && a != nil && a.tokens != nil && len(metadata.ValueFromIncomingContext(c.ctx, "authorization")) > 0
}

// prove returns what the client of a stream has proven, by what is trusted now: by its certificate, else by its
// token. maxAge is the age of a TokenReview that is still used, 0 for that of a new stream.
func (a *authenticator) prove(ctx context.Context, p *peer.Peer, maxAge time.Duration) (who identity.Identity, err error) {
	if _, leaf := verified(p); leaf != nil && a.trust != nil {
		who = a.tls.identify(p)
		who.Expires, err = a.trust.vouches(p)
		return who, err
	}
	if a.tokens == nil { // the handshake has demanded a certificate, or nobody need prove anything
		return who, nil
	}
	texts := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(texts) == 0 {
		if a.tls.AllowAnonymous {
			return who, nil
		}
		return who, refusal.New(refusal.Anonymous, codes.Unauthenticated, "the client has shown neither a certificate nor a token; want %s", a.wanted())
	}
	scheme, raw, _ := strings.Cut(texts[0], " ")
	if len(texts) > 1 || !strings.EqualFold(scheme, "bearer") {
		return who, refusal.New(refusal.Token, codes.Unauthenticated, "the client has sent %d headers authorization; want one, with Bearer and %s", len(texts), a.wanted())
	}
	who, err = a.tokens.Identify(ctx, strings.TrimSpace(raw), time.Now(), maxAge)
	var refused *bearer.Error
	if errors.As(err, &refused) {
		code := codes.Unauthenticated
		if refused.Unavailable {
			code = codes.Unavailable
		}
		err = refusal.New(refusal.Token, code, "%s", refusal.Bounded(err.Error()))
	}
	return who, err
}

// proveFirst is prove for a new stream. The tokens of one address leave reviews for others.
func (a *authenticator) proveFirst(c *conn) (who identity.Identity, err error) {
	if !a.reads(c) {
		return a.prove(c.ctx, c.peer, 0)
	}
	use := c.use
	if use.tokens.Acquire(c.ctx, 1) != nil {
		return who, c.status()
	}
	defer use.tokens.Release(1)
	if use.bad.Tokens() < 1 {
		return who, refusal.New(refusal.Rate, codes.ResourceExhausted, "more than %d refused tokens a second of %s; try again later", badTokens, use.key)
	}
	if who, err = a.prove(c.ctx, c.peer, 0); err != nil {
		use.bad.Allow()
	}
	return who, err
}

// wanted describes what clients must show.
func (a *authenticator) wanted() string {
	if a.trust == nil {
		return a.tokens.Wanted()
	}
	return "a certificate of the client CAs, or " + a.tokens.Wanted()
}

// refresh reads all files and URLs again. It reports whether what clients are judged by has changed. It calls failed
// for each that can not be read; first is set if it could be read at the last call.
func (a *authenticator) refresh(ctx context.Context, failed func(what string, err error, first bool)) (changed bool) {
	problems := map[string]bool{}
	note := func(what, of string, err error) {
		problems[what+of] = true
		failed(what, err, !a.problems[what+of])
	}
	if a.own != nil {
		if _, err := a.own.Read(); err != nil {
			note(badCertificate, "", err)
		}
	}
	if a.api != nil {
		if text := a.api.problem.Load(); text != nil {
			note(badWorkloadAPI, "", errors.New(*text))
		}
		changed = a.api.renewed.Swap(false)
	}
	if a.trust != nil && a.trust.read(note) {
		changed = true
	}
	if a.tokens != nil && a.tokens.Refresh(ctx, func(of string, err error) { note(badToken, of, err) }) {
		changed = true
	}
	a.problems = problems
	return changed
}

// authenticate sets what the client of a stream has proven, and who it is in the counts. It returns why the
// client is refused.
func (s *Server) authenticate(c *conn) error {
	a := s.auth[c.listener]
	if a == nil {
		return nil
	}
	c.judged.Store(a.changes.Load())
	who, err := a.proveFirst(c)
	if err != nil {
		return err
	}
	c.who = who
	if key := peerKey(c.who, c.peer.Addr); key != c.use.key {
		limits, overload := s.limitsOf(c), s.overload(c)
		use, own, fits := s.peers.enter(key, limits, overload != nil)
		s.peers.leave(c.use, overload != nil)
		c.use = use
		if overload != nil && !fits {
			return errOverload(overload)
		}
		if err := admitPeer(c.ctx, limits, use, own, time.Now().Add(time.Second)); err != nil {
			return err
		}
	}
	if ends := c.who.Expires; !ends.IsZero() {
		c.expiry = time.AfterFunc(time.Until(ends), func() { c.end(errExpired(c.who.Issuer != "", ends)) })
	}
	return nil
}

// judge returns why a stream must end: what it has proven has expired, or is no longer trusted. It looks again only
// after a change, or if maxAge, the age of a TokenReview that is still used, is not 0.
func (s *Server) judge(c *conn, maxAge time.Duration) error {
	a := s.auth[c.listener]
	if a == nil {
		return nil
	}
	changes := a.changes.Load()
	ends := c.who.Expires
	switch {
	case !ends.IsZero() && time.Now().After(ends):
		return errExpired(c.who.Issuer != "", ends)
	case c.judged.Load() == changes && maxAge == 0:
		return nil
	}
	who, err := a.prove(c.ctx, c.peer, maxAge)
	switch {
	case status.Code(err) == codes.Unavailable: // nobody has taken anything back
	case err != nil:
		return err
	case !slices.Equal(who.Names, c.who.Names) || who.Expires.Before(ends):
		return refusal.New(refusal.Token, codes.Unauthenticated, "what the client has shown proves something else than before; connect again")
	}
	c.judged.Store(changes)
	return nil
}

// watch checks a listener again and again, until ctx ends.
func (s *Server) watch(ctx context.Context, l *Listener, a *authenticator) error {
	tick := time.NewTicker(l.TLS.refresh())
	defer tick.Stop()
	for {
		s.check(ctx, l, a)
		select {
		case <-ctx.Done():
			if a.tokens != nil {
				a.tokens.Close()
			}
			return nil
		case <-tick.C:
		case <-a.news:
		}
	}
}

// check reads again what clients of a listener are judged by, and ends the streams that are no longer trusted.
func (s *Server) check(ctx context.Context, l *Listener, a *authenticator) {
	a.checking.Lock()
	defer a.checking.Unlock()
	log := s.log.With("listener", l.Address)
	changed := a.refresh(ctx, func(what string, err error, first bool) {
		s.metrics.credentials.WithLabelValues(what).Inc()
		if first {
			log.Warn("credentials can not be read, the last good ones are used", "what", what, "err", err)
		}
	})
	if changed {
		a.changes.Add(1)
	}
	if ended := s.judgeAll(l, a); changed || ended > 0 {
		log.Info("clients judged again", "changed", changed, "ended", ended)
	}
}

// judgeAll ends the streams of a listener that are no longer trusted, and returns their number.
func (s *Server) judgeAll(l *Listener, a *authenticator) int64 {
	var ended atomic.Int64
	end := func(c *conn, maxAge time.Duration) {
		if err := s.judge(c, maxAge); err != nil {
			c.end(err)
			ended.Add(1)
		}
	}
	var reviewed []*conn
	for _, c := range s.connections() {
		switch {
		case c.listener != l:
		case c.who.Reviewed:
			reviewed = append(reviewed, c)
		default:
			end(c, 0)
		}
	}
	until := time.Now().Add(reviewsFor)
	var g errgroup.Group
	g.SetLimit(reviewsAtOnce)
	for range reviewed {
		if time.Now().After(until) {
			break
		}
		a.reviewed++ // the next round begins where this one ends
		c := reviewed[a.reviewed%len(reviewed)]
		g.Go(func() error { end(c, l.TLS.refresh()/2); return nil })
	}
	_ = g.Wait()
	return ended.Load()
}
