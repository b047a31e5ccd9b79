package downstream

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/certfile"
	"meshrelay/internal/identity"
	"meshrelay/internal/lastgood"
)

type rootFile = lastgood.File[*x509.CertPool]

// trust has the present roots of a listener that verifies client certificates, by trust domain; those of all others are
// "". Any goroutine may call its methods.
type trust map[string]*rootFile

// newTrust returns the trust of a listener, nil if the listener does not verify client certificates.
func newTrust(t *TLS) (trust, error) {
	if !t.verifies() {
		return nil, nil
	}
	tr := trust{}
	for _, ca := range t.ClientCAs {
		var err error
		if tr[ca.TrustDomain], err = openRoots(ca.File); err != nil {
			return nil, err
		}
	}
	return tr, nil
}

func openRoots(path string) (*rootFile, error) {
	f, err := lastgood.Open(func() (*x509.CertPool, error) { return certfile.Roots(path) }, path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("client CA: %w", err)
	case err != nil:
		return nil, fmt.Errorf("client CA %s: there is no certificate in it, or it can not be read: %w", path, err)
	}
	return f, nil
}

// read reads every file, and reports whether roots have changed. It calls failed with the trust domain of each file
// that is bad.
func (t trust) read(failed func(domain string, err error)) (changed bool) {
	for domain, f := range t {
		is, err := f.Read()
		if changed = changed || is; err != nil {
			failed(domain, err)
		}
	}
	return changed
}

// of returns the roots that verify a certificate.
func (t trust) of(leaf *x509.Certificate) (*x509.CertPool, error) {
	id, _, err := identity.Of(leaf)
	if err != nil {
		return nil, err
	}
	switch own := cmp.Or(t[id.TrustDomain().Name()], t[""]); {
	case own != nil:
		return own.Get(), nil
	case id.IsZero():
		return nil, errors.New("the certificate has no SPIFFE ID, and no client CA vouches for other names")
	}
	return nil, fmt.Errorf("no client CA vouches for the trust domain of %s", id)
}

// verify verifies the certificates of a client; the first is its own. It returns the earliest end of a
// certificate in their chain.
func (t trust) verify(certs []*x509.Certificate) (expires time.Time, err error) {
	pool, err := t.of(certs[0])
	if err != nil {
		return expires, err
	}
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := certs[0].Verify(opts)
	for _, chain := range chains { // the one that is good for longest is enough
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(expires) {
			expires = first.NotAfter
		}
	}
	return expires, err
}

// vouches returns when the certificate of a peer expires, or an error if the present roots do not verify it.
func (t trust) vouches(p *peer.Peer) (expires time.Time, err error) {
	state, leaf := verified(p)
	if leaf == nil {
		return expires, errNotTrusted
	}
	if expires, err = t.verify(state.PeerCertificates); err == nil {
		return expires, nil
	}
	if time.Now().After(leaf.NotAfter) {
		return expires, errExpired(leaf.NotAfter)
	}
	return expires, errNotTrusted
}

var errNotTrusted = refusal.New(refusal.Certificate, codes.Unauthenticated,
	"the client certificate is signed by none of the certificates in tls.clientCAs any more; connect with another")

// errExpired is the error for a client whose certificate has expired.
func errExpired(at time.Time) error {
	return refusal.New(refusal.Certificate, codes.Unauthenticated,
		"the client certificate has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
}
