package downstream

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/certfile"
	"meshrelay/internal/identity"
	"meshrelay/internal/lastgood"
)

type rootFile = lastgood.File[*x509.CertPool]

// trust has the present roots and revocation lists of a listener that verifies client certificates. Any goroutine
// may call its methods.
type trust struct {
	byDomain map[string]*rootFile // by trust domain; that of all others is ""
	api      *workload            // has the roots of all trust domains; nil: byDomain has them
	revoked  []*lastgood.File[[]*revocations]
}

// revocations is one revocation list.
type revocations struct {
	path   string
	list   *x509.RevocationList
	at     map[string]time.Time             // when a certificate was revoked, by the bytes of its serial number
	signer atomic.Pointer[x509.Certificate] // of the list, once its signature is verified
}

// newTrust returns the trust of a listener, nil if the listener does not verify client certificates. api may be
// nil.
func newTrust(t *TLS, api *workload) (*trust, error) {
	if !t.certified() {
		return nil, nil
	}
	tr := &trust{byDomain: map[string]*rootFile{}, api: api}
	all := slices.Clone(t.ClientCAs)
	if t.ClientCAFile != "" {
		all = append(all, ClientCA{File: t.ClientCAFile})
	}
	for _, ca := range all {
		var err error
		if tr.byDomain[ca.TrustDomain], err = openRoots(ca.File); err != nil {
			return nil, err
		}
	}
	for _, path := range t.CRLFiles {
		f, err := lastgood.Open(func() ([]*revocations, error) { return readRevocations(path) }, path)
		if err != nil {
			return nil, fmt.Errorf("CRL: %w", err)
		}
		tr.revoked = append(tr.revoked, f)
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

func readRevocations(path string) (all []*revocations, err error) {
	lists, err := certfile.Revocations(path)
	for _, list := range lists {
		r := &revocations{path: path, list: list, at: make(map[string]time.Time, len(list.RevokedCertificateEntries))}
		for _, entry := range list.RevokedCertificateEntries {
			r.at[string(entry.SerialNumber.Bytes())] = entry.RevocationTime
		}
		list.RevokedCertificateEntries = nil
		all = append(all, r)
	}
	return all, err
}

// read reads every file, and reports whether roots or revocations have changed. It calls failed for each file that
// is bad, and for each revocation list that is out of date.
func (t *trust) read(failed func(what, of string, err error)) (changed bool) {
	note := func(what, of string, is bool, err error) {
		if changed = changed || is; err != nil {
			failed(what, of, err)
		}
	}
	for domain, f := range t.byDomain {
		is, err := f.Read()
		note(badCA, domain, is, err)
	}
	for n, f := range t.revoked {
		is, err := f.Read()
		note(badCRL, fmt.Sprint(n), is, err)
		for _, r := range f.Get() {
			if due := r.list.NextUpdate; !due.IsZero() && time.Now().After(due) {
				note(badCRL, r.path, false, fmt.Errorf("%s: the next update was due at %s; the list is still used", r.path, due.UTC().Format(time.RFC3339)))
			}
		}
	}
	return changed
}

// of returns the roots that verify a certificate.
func (t *trust) of(leaf *x509.Certificate) (*x509.CertPool, error) {
	id, _, err := identity.Of(leaf)
	if err != nil {
		return nil, err
	}
	if own := t.byDomain[id.TrustDomain().Name()]; own != nil {
		return own.Get(), nil
	}
	switch {
	case t.api != nil && !id.IsZero():
		if pool := t.api.roots(id.TrustDomain()); pool != nil {
			return pool, nil
		}
	case t.byDomain[""] != nil:
		return t.byDomain[""].Get(), nil
	case id.IsZero():
		return nil, errors.New("the certificate has no SPIFFE ID, and no client CA vouches for other names")
	}
	return nil, fmt.Errorf("no client CA vouches for the trust domain of %s", id)
}

// verify verifies the certificates of a client; the first is its own. It returns the earliest end of a
// certificate in their chain.
func (t *trust) verify(certs []*x509.Certificate) (expires time.Time, err error) {
	pool, err := t.of(certs[0])
	if err != nil {
		return expires, err
	}
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := certs[0].Verify(opts)
	if err != nil {
		return expires, err
	}
	for _, chain := range chains { // one without a revoked certificate is enough
		if revoked := t.revocation(chain); revoked != nil {
			err = revoked
			continue
		}
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(expires) {
			expires = first.NotAfter
		}
	}
	if !expires.IsZero() {
		err = nil
	}
	return expires, err
}

// revokedError is the error for a certificate that a revocation list has.
type revokedError struct {
	cert *x509.Certificate
	at   time.Time
}

func (e *revokedError) Error() string {
	return fmt.Sprintf("the certificate with the serial number %x was revoked at %s", e.cert.SerialNumber, e.at.UTC().Format(time.RFC3339))
}

// revocation returns an error if a certificate of a chain is revoked by its issuer.
func (t *trust) revocation(chain []*x509.Certificate) error {
	for n, cert := range chain[:len(chain)-1] {
		for _, f := range t.revoked {
			for _, r := range f.Get() {
				if at, is := r.at[string(cert.SerialNumber.Bytes())]; is && r.isOf(cert, chain[n+1]) {
					return &revokedError{cert, at}
				}
			}
		}
	}
	return nil
}

// isOf reports whether the list is that of the issuer of a certificate.
func (r *revocations) isOf(cert, issuer *x509.Certificate) bool {
	if !bytes.Equal(r.list.RawIssuer, cert.RawIssuer) {
		return false
	}
	if known := r.signer.Load(); known != nil && known.Equal(issuer) {
		return true
	}
	// CAs of cert-manager lack the key usage that CheckSignatureFrom wants.
	if issuer.CheckSignature(r.list.SignatureAlgorithm, r.list.RawTBSRevocationList, r.list.Signature) != nil {
		return false
	}
	r.signer.Store(issuer)
	return true
}

// vouches returns when the certificate of a peer expires, or an error if the present roots and revocation lists do
// not verify it.
func (t *trust) vouches(p *peer.Peer) (expires time.Time, err error) {
	state, leaf := verified(p)
	if leaf == nil {
		return expires, errNotTrusted
	}
	if expires, err = t.verify(state.PeerCertificates); err == nil {
		return expires, nil
	}
	var revoked *revokedError
	switch now := time.Now(); {
	case errors.As(err, &revoked):
		return expires, refusal.New(refusal.Certificate, codes.Unauthenticated, "the client has shown a certificate that is not valid any more: %v (tls.crlFiles); connect with another", err)
	case now.After(leaf.NotAfter):
		return expires, errExpired(false, leaf.NotAfter)
	}
	return expires, errNotTrusted
}

var errNotTrusted = refusal.New(refusal.Certificate, codes.Unauthenticated,
	"the client certificate is signed by none of the certificates in tls.clientCAFile, tls.clientCAs or of the Workload API any more; connect with another")

// errExpired is the error for a client whose certificate or token has expired.
func errExpired(isToken bool, at time.Time) error {
	if isToken {
		return refusal.New(refusal.Token, codes.Unauthenticated, "the token of the client has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
	}
	return refusal.New(refusal.Certificate, codes.Unauthenticated,
		"the client certificate has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
}
