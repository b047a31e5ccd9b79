package adsclient

import (
	"crypto/x509"
	"testing"

	"meshrelay/internal/testing/fakexds"
)

// TestAConnectedStateHasTheServersVerifiedCertificate: of a plaintext server there is none.
func TestAConnectedStateHasTheServersVerifiedCertificate(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	encrypted, plain := a.serveTLS(t), fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, withTLS(t, TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}, "istiod.istio-system.svc"), encrypted.Addr)
	h.await(t, "a connection", func() bool { return h.last().Phase == Connected })
	if c := h.last().Server; c == nil || len(c.DNSNames) != 1 || c.DNSNames[0] != "istiod.istio-system.svc" {
		t.Errorf("the certificate is %v", c)
	}
	h = newRecorder()
	start(t, h, func(c *Config) { c.Protocol = SotW }, plain.Addr)
	h.await(t, "a connection", func() bool { return h.last().Phase == Connected })
	if c := h.last().Server; c != nil {
		t.Errorf("a plaintext server has the certificate %v", c)
	}
}
