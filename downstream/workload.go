package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// workloadPause is the time between two attempts to use a Workload API that has refused the request as such.
const workloadPause = 10 * time.Second

// workload has the certificate of the relay and the roots by trust domain that the SPIFFE Workload API gives. While
// the API does not answer, they stay. Any goroutine may call certificate and roots.
type workload struct {
	address string
	own     atomic.Pointer[tls.Certificate] // nil until the API has answered
	pools   atomic.Pointer[map[spiffeid.TrustDomain]*x509.CertPool]
	problem atomic.Pointer[string] // nil: there is none
	renewed atomic.Bool            // the roots have changed; whoever acts on it resets it
	changed func()                 // called when roots or problem have changed
}

// run watches the API until ctx ends.
func (w *workload) run(ctx context.Context) error {
	for {
		err := workloadapi.WatchX509Context(ctx, w, workloadapi.WithAddr(w.address))
		if isClosed(ctx.Done()) {
			return nil
		}
		w.OnX509ContextWatchError(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(workloadPause):
		}
	}
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (w *workload) OnX509ContextUpdate(x *workloadapi.X509Context) {
	svid := x.DefaultSVID()
	own := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, c := range svid.Certificates {
		own.Certificate = append(own.Certificate, c.Raw)
	}
	w.own.Store(own)
	pools := map[spiffeid.TrustDomain]*x509.CertPool{}
	for _, bundle := range x.Bundles.Bundles() {
		pool := x509.NewCertPool()
		for _, c := range bundle.X509Authorities() {
			pool.AddCert(c)
		}
		pools[bundle.TrustDomain()] = pool
	}
	was, bad := w.pools.Swap(&pools), w.problem.Swap(nil)
	if was == nil || !maps.EqualFunc(*was, pools, (*x509.CertPool).Equal) {
		w.renewed.Store(true)
		w.changed()
	} else if bad != nil {
		w.changed()
	}
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (w *workload) OnX509ContextWatchError(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		text := err.Error()
		w.problem.Store(&text)
		w.changed()
	}
}

// certificate returns the certificate of the relay.
func (w *workload) certificate() (*tls.Certificate, error) {
	if own := w.own.Load(); own != nil {
		return own, nil
	}
	return nil, errors.New("the Workload API has not given the relay a certificate yet")
}

// roots returns the roots of a trust domain, nil if there are none.
func (w *workload) roots(domain spiffeid.TrustDomain) *x509.CertPool {
	if pools := w.pools.Load(); pools != nil {
		return (*pools)[domain]
	}
	return nil
}
