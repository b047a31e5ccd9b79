package downstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/certfile"
	"meshrelay/internal/lastgood"
)

// What could not be read, in logs and metrics.
const (
	badCertificate = "certificate"
	badCA          = "ca"
)

// authenticator knows who the clients of a listener are. Any goroutine may call its methods, but for refresh. It is
// nil for plaintext, where nobody proves anything.
type authenticator struct {
	tls   *TLS
	own   *lastgood.File[tls.Certificate] // of the relay
	trust trust                           // nil: clients are asked for no certificate
	// changes counts the changes of trust. A stream that was judged before the last one is judged again before its
	// next response.
	changes atomic.Uint64

	checking sync.Mutex      // guards all below, and calls of refresh
	problems map[string]bool // of the last refresh: what could not be read
}

// newAuthenticator reads the files of a listener.
func newAuthenticator(t *TLS) (a *authenticator, err error) {
	if t == nil {
		return nil, nil
	}
	a = &authenticator{tls: t}
	if a.own, err = lastgood.Open(certfile.Renewing(t.CertFile, t.KeyFile), t.CertFile, t.KeyFile); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	a.trust, err = newTrust(t)
	return a, err
}

// refresh reads all files again. It reports whether what clients are judged by has changed. It calls failed for each
// that can not be read; first is set if it could be read at the last call.
func (a *authenticator) refresh(failed func(what string, err error, first bool)) (changed bool) {
	problems := map[string]bool{}
	note := func(what, of string, err error) {
		problems[what+of] = true
		failed(what, err, !a.problems[what+of])
	}
	if _, err := a.own.Read(); err != nil {
		note(badCertificate, "", err)
	}
	changed = a.trust != nil && a.trust.read(func(domain string, err error) { note(badCA, domain, err) })
	a.problems = problems
	return changed
}

// authenticate has the stream end with the certificate of its client. It returns why the client is refused.
func (s *Server) authenticate(c *conn) (err error) {
	a := s.auth[c.listener]
	if a == nil || c.who.Expires.IsZero() {
		return nil
	}
	c.judged.Store(a.changes.Load())
	if c.who.Expires, err = a.trust.vouches(c.peer); err == nil {
		ends := c.who.Expires
		c.expiry = time.AfterFunc(time.Until(ends), func() { c.end(errExpired(ends)) })
	}
	return err
}

// judge returns why a stream must end: the certificate of its client has expired, or is no longer trusted. It looks
// again only after a change.
func (s *Server) judge(c *conn) error {
	a, ends := s.auth[c.listener], c.who.Expires
	if a == nil || ends.IsZero() {
		return nil
	}
	changes := a.changes.Load()
	switch {
	case time.Now().After(ends):
		return errExpired(ends)
	case c.judged.Load() == changes:
		return nil
	}
	until, err := a.trust.vouches(c.peer)
	switch {
	case err != nil:
		return err
	case until.Before(ends):
		return refusal.New(refusal.Certificate, codes.Unauthenticated, "the client certificate is now trusted for a shorter time than before; connect again")
	}
	c.judged.Store(changes)
	return nil
}

// watch checks a listener again and again, until ctx ends.
func (s *Server) watch(ctx context.Context, l *Listener, a *authenticator) error {
	tick := time.NewTicker(cmp.Or(l.TLS.Refresh, certRefresh))
	defer tick.Stop()
	for {
		s.check(l, a)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// check reads again what clients of a listener are judged by, and ends the streams that are no longer trusted.
func (s *Server) check(l *Listener, a *authenticator) {
	a.checking.Lock()
	defer a.checking.Unlock()
	log := s.log.With("listener", l.Address)
	changed := a.refresh(func(what string, err error, first bool) {
		s.metrics.credentials.WithLabelValues(what).Inc()
		if first {
			log.Warn("credentials can not be read, the last good ones are used", "what", what, "err", err)
		}
	})
	if changed {
		a.changes.Add(1)
	}
	ended := 0
	for _, c := range s.connections() {
		if c.listener != l {
			continue
		}
		if err := s.judge(c); err != nil {
			c.end(err)
			ended++
		}
	}
	if changed || ended > 0 {
		log.Info("clients judged again", "changed", changed, "ended", ended)
	}
}
