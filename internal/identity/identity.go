// Package identity has what a client can prove, reads the identities in a verified certificate, and matches
// identities with patterns.
//
// An identity is a text: a SPIFFE ID or dns:NAME. The package must not decide the rights of an identity.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	spiffe = "spiffe://"
	dns    = "dns:"
)

// Of returns the SPIFFE ID of a certificate, or zero, and its DNS names as identities. A SPIFFE ID
// must be the only URI of the certificate (X.509-SVID), and must have a path.
func Of(cert *x509.Certificate) (id spiffeid.ID, names []string, err error) {
	for _, u := range cert.URIs {
		if !strings.EqualFold(u.Scheme, "spiffe") {
			continue
		}
		if len(cert.URIs) > 1 {
			return spiffeid.ID{}, nil, errors.New("the certificate has a SPIFFE ID and other URIs: a SPIFFE ID must be the only URI")
		}
		if id, err = spiffeid.FromURI(u); err != nil {
			return spiffeid.ID{}, nil, fmt.Errorf("the URI of the certificate is not a SPIFFE ID: %w", err)
		}
		if id.Path() == "" {
			return spiffeid.ID{}, nil, fmt.Errorf("the SPIFFE ID %s of the certificate has no path", id)
		}
	}
	for _, name := range cert.DNSNames {
		if !strings.Contains(name, "*") { // a wildcard identifies nobody
			names = append(names, dns+strings.ToLower(name))
		}
	}
	return id, names, nil
}

// CheckTrustDomain returns an error if a text is not a trust domain.
func CheckTrustDomain(text string) error {
	td, err := spiffeid.TrustDomainFromString(text)
	if err == nil && td.Name() != text {
		err = fmt.Errorf("write %q", td.Name())
	}
	return err
}
