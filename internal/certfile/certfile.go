// Package certfile reads certificates and keys from files, and reports mistakes in them. It must
// not depend on the users of the files.
package certfile

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"meshrelay/internal/smallfile"
)

// maxBytes limits the size of a file. The system's root certificates are about 250 KiB.
const maxBytes = 4 << 20

// Roots returns the certificates in a file as trusted roots.
func Roots(path string) (*x509.CertPool, error) {
	text, err := smallfile.Read(path, maxBytes)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, noCertificate(path, text)
	}
	return roots, nil
}

// Pair returns the certificate in certFile with its key in keyFile. If the mistake is in the key, the
// error is a *KeyError.
func Pair(certFile, keyFile string) (pair tls.Certificate, err error) {
	cert, err := smallfile.Read(certFile, maxBytes)
	if err != nil {
		return pair, err
	}
	if _, err := First(certFile, cert); err != nil {
		return pair, err
	}
	key, err := smallfile.Read(keyFile, maxBytes)
	if err != nil {
		return pair, &KeyError{err}
	}
	if block(key, isKey) == nil {
		return pair, &KeyError{fmt.Errorf("%s has no private key in PEM form: want the key of the certificate, without a password, from -----BEGIN PRIVATE KEY----- on", keyFile)}
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		return pair, &KeyError{fmt.Errorf("%s does not fit the certificate in %s: %w; give the key that the certificate was issued for", keyFile, certFile, err)}
	}
	return pair, nil
}

// Renewing returns a function that reads Pair again and again. It fails while a new certificate waits, see Waits.
func Renewing(certFile, keyFile string) func() (tls.Certificate, error) {
	var used *x509.Certificate
	return func() (tls.Certificate, error) {
		pair, err := Pair(certFile, keyFile)
		if err != nil {
			return pair, err
		}
		if err = Waits(used, pair.Leaf, time.Now()); err == nil {
			used = pair.Leaf
		}
		return pair, err
	}
}

// Waits returns an error if a new certificate is not valid yet, and used, which may be nil, is. Then used stays.
func Waits(used, renewed *x509.Certificate, now time.Time) error {
	if used == nil || renewed == nil || now.Before(used.NotBefore) || now.After(used.NotAfter) || !now.Before(renewed.NotBefore) {
		return nil
	}
	return fmt.Errorf("the new certificate is valid from %s: the one before, which ends at %s, is used until then",
		renewed.NotBefore.UTC().Format(time.RFC3339), used.NotAfter.UTC().Format(time.RFC3339))
}

// Leaf returns the first certificate in a file. It does not look at the key.
func Leaf(path string) (*x509.Certificate, error) {
	text, err := smallfile.Read(path, maxBytes)
	if err != nil {
		return nil, err
	}
	return First(path, text)
}

// First returns the first certificate in a text in PEM form. Errors begin with place.
func First(place string, text []byte) (*x509.Certificate, error) {
	first := block(text, isCertificate)
	if first == nil {
		return nil, noCertificate(place, text)
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: the certificate does not decode: %w; issue it again", place, err)
	}
	return cert, nil
}

// KeyError is the error for a wrong key, or for a key that does not fit a valid certificate.
type KeyError struct{ err error }

// Error implements error.
func (e *KeyError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *KeyError) Unwrap() error { return e.err }

func noCertificate(path string, text []byte) error {
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return fmt.Errorf("%s is empty: want certificates in PEM form, from -----BEGIN CERTIFICATE----- on", path)
	case block(text, isKey) != nil:
		return fmt.Errorf("%s has a private key and no certificate in PEM form: give the file with the certificate", path)
	}
	if _, err := x509.ParseCertificate(text); err == nil {
		return fmt.Errorf("%s has no certificate in PEM form, but one in DER form: convert it with openssl x509 -inform der", path)
	}
	return fmt.Errorf("%s has no certificate in PEM form: want text from -----BEGIN CERTIFICATE----- on", path)
}

func isCertificate(b *pem.Block) bool { return b.Type == "CERTIFICATE" }

// isKey reports whether crypto/tls would accept a block as a key.
func isKey(b *pem.Block) bool {
	return b.Type == "PRIVATE KEY" || strings.HasSuffix(b.Type, " PRIVATE KEY")
}

// block returns the first wanted block, or nil.
func block(text []byte, wanted func(*pem.Block) bool) *pem.Block {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil || wanted(b) {
			return b
		}
	}
}
