package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// TestHandshakesAreApprovedOnes_FIPS140 runs a relay in the strictest FIPS 140-3 mode of Go: a listener takes, and
// an upstream is offered, nothing but what NIST SP 800-52r2 approves.
func TestHandshakesAreApprovedOnes_FIPS140(t *testing.T) {
	root := newCA(t, "root")
	cert := root.good()
	offers := make(chan tls.ClientHelloInfo, 1)
	upstream := fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			select {
			case offers <- *hello:
			default:
			}
			return nil, nil
		},
	}))}})

	listener := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	p := newProcess(t, fmt.Sprintf(`
upstreams: [{name: east, xds: {addresses: [%q], tls: {caFile: %q, serverName: %s}}}]
downstream:
  listeners: [{address: %q, tls: {certFile: cert.pem, keyFile: key.pem}, allowAnonymous: true}]
`, upstream.Addr, root.file, istiodName, listener))
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(p.dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.env = []string{"GODEBUG=fips140=only"}
	p.start()
	hello := await.Value(t, "the relay offers a handshake", offers)
	for _, suite := range hello.CipherSuites {
		if name := tls.CipherSuiteName(suite); !approvedSuite(name) {
			t.Errorf("an upstream is offered the suite %s", name)
		}
	}
	for _, curve := range hello.SupportedCurves {
		if !slices.Contains([]tls.CurveID{tls.CurveP256, tls.CurveP384, tls.CurveP521}, curve) && !strings.Contains(curve.String(), "MLKEM") {
			t.Errorf("an upstream is offered the curve %s", curve)
		}
	}
	await.Until(t, "the relay listens", func() bool {
		conn, err := net.Dial("tcp", listener)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	pool := x509.NewCertPool()
	pool.AddCert(root.cert)
	for name, tc := range map[string]struct {
		client *tls.Config
		taken  bool
	}{
		"TLS 1.3 with P-256":                 {&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}, true},
		"TLS 1.2 with AES-GCM":               {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, CurvePreferences: []tls.CurveID{tls.CurveP256}}, true},
		"TLS 1.2 with ChaCha20":              {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}, CurvePreferences: []tls.CurveID{tls.CurveP256}}, false},
		"TLS 1.2 with CBC and SHA-1":         {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}, CurvePreferences: []tls.CurveID{tls.CurveP256}}, false},
		"TLS 1.3 with nothing but X25519":    {&tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, false},
		"TLS 1.1, which nobody should speak": {&tls.Config{MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}, false},
	} {
		tc.client.RootCAs, tc.client.ServerName, tc.client.NextProtos = pool, istiodName, []string{"h2"}
		conn, err := tls.Dial("tcp", listener, tc.client)
		if (err == nil) != tc.taken {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if state := conn.ConnectionState(); !approvedSuite(tls.CipherSuiteName(state.CipherSuite)) {
				t.Errorf("%s: the handshake took %s", name, tls.CipherSuiteName(state.CipherSuite))
			}
			conn.Close()
		}
	}
}

// approvedSuite reports whether a cipher suite is AES-GCM.
func approvedSuite(name string) bool {
	return strings.Contains(name, "AES_") && strings.Contains(name, "_GCM_")
}
