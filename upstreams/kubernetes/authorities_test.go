package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
)

// authority is a CA for API servers of this machine.
type authority struct {
	crt *x509.Certificate
	key *ecdsa.PrivateKey
	t   *testing.T
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t}
	crt, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.crt, a.key = crt, key
	return a
}

// sign returns a certificate with its key. The first one signs itself.
func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, by := a.crt, a.key
	if parent == nil {
		parent, by = template, key
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	var crt *x509.Certificate
	if err == nil {
		crt, err = x509.ParseCertificate(der)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return crt, key
}

// server returns a certificate for an API server.
func (a *authority) server() *tls.Certificate {
	crt, key := a.sign(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return &tls.Certificate{Certificate: [][]byte{crt.Raw}, PrivateKey: key}
}

// trust has a file of CAs name some and no other.
func trust(t *testing.T, path string, all ...*authority) {
	t.Helper()
	var text []byte
	for _, a := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.crt.Raw})...)
	}
	fakekube.ReplaceFile(t, path, text)
}

// TestCertificateAuthoritiesRotateWithoutARelist_K8 rotates the CA as clusters do: both are trusted, the
// server has a certificate of the new one, and then the old one is trusted no longer.
func TestCertificateAuthoritiesRotateWithoutARelist_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, after := newAuthority(t, "before"), newAuthority(t, "after")
		var shown, taken atomic.Pointer[tls.Certificate] // of the server, and of its newest connection
		shown.Store(before.server())
		s := newAPIServer(t, func(h *httptest.Server) {
			h.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				crt := shown.Load()
				return &tls.Config{
					Certificates: []tls.Certificate{*crt}, NextProtos: []string{"h2"},
					VerifyConnection: func(tls.ConnectionState) error { taken.Store(crt); return nil },
				}, nil
			}}
		})
		// No outage is so long that something may have been restored, and pauses are longer than a step.
		s.pace.grace, s.pace.Retry, s.pace.RetryMax = time.Hour, 500*time.Millisecond, time.Second
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		ca := filepath.Join(filepath.Dir(w.path), "ca.crt")
		trust(t, ca, before)
		w.synced()
		// Before a watch goes on, the server is asked for one object: whether it has come to that version.
		listed := func() int {
			return s.Asked("serviceentries", "sendInitialEvents") + s.Asked("serviceentries") - s.Asked("serviceentries", "watch=true") - s.Asked("serviceentries", "limit=1&")
		}
		lists, rotations := listed(), w.detail().Rotations
		for _, step := range []struct {
			name   string
			trusts []*authority // none: those of before
			shows  *authority
		}{
			{"both", []*authority{before, after}, before},
			{"replaced", nil, after},
			{"one", []*authority{after}, after},
			{"renewed", nil, after},
		} {
			w.arrives(step.name + "-before") // a reflector lists anew after a short watch without events
			watches := s.Asked("serviceentries", "watch=true")
			s.Set(func() {
				s.Fault = failing("serviceentries", 429, "TooManyRequests")
				s.Stops++
			})
			// A reflector lists anew as well when the connection of a request ends.
			w.until("it waits for the next try", func() bool { return strings.Contains(w.status().LastError, "ServiceEntry") })
			if step.trusts != nil {
				trust(t, ca, step.trusts...)
				rotations++
				w.until("other CAs are trusted", func() bool { return w.detail().Rotations == rotations })
			}
			now := step.shows.server()
			shown.Store(now)
			s.drop()
			w.until("it is connected with the new certificate", func() bool { return taken.Load() == now })
			s.Set(func() { s.Fault = nil })
			w.until("the watch goes on", func() bool { return s.Asked("serviceentries", "watch=true") > watches })
			w.arrives(step.name + "-after")
			w.synced()
			if n := listed() - lists; n != 0 {
				t.Errorf("%s: it has listed %d times", step.name, n)
			}
		}

		// The former CA is trusted no longer, and what the server gave stays.
		gave := w.has()
		shown.Store(before.server())
		s.drop()
		w.until("the former CA is not trusted", func() bool { return strings.Contains(w.status().LastError, "unknown authority") })
		w.serves(gave...)
		shown.Store(after.server())
		w.arrives("back")
		w.synced()
	})
}
