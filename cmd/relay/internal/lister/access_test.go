package lister

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meshrelay/internal/testing/fakexds"
	"meshrelay/internal/testing/testca"
)

// certificate writes a self-signed certificate for a name and its key to files.
func certificate(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, typ string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
}

func TestListOverTLSWithAToken_C19(t *testing.T) {
	certFile, keyFile := certificate(t, "istiod.istio-system.svc")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s := fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.Creds(credentials.NewServerTLSFromCert(&pair))}})
	s.Set(seV1, entry("shop/a", "a"))
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(a Access) ([]string, error) {
		a.Server = s.Addr
		cfg := config(s)
		if err := a.Apply(&cfg); err != nil {
			return nil, err
		}
		got, _, err := List(t.Context(), cfg)
		return names(got), err
	}
	got, err := list(Access{CAFile: certFile, ServerName: "istiod.istio-system.svc", TokenFile: token})
	if err != nil || len(got) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	if auth := s.Requests()[0].Header.Get("authorization"); len(auth) != 1 || auth[0] != "Bearer secret" {
		t.Errorf("authorization %q", auth)
	}
	if _, err := list(Access{CAFile: certFile, ServerName: "other"}); err == nil {
		t.Error("a server of another name was trusted")
	}
	if _, err := list(Access{}); err == nil {
		t.Error("plaintext worked with a TLS server")
	}
}

func TestPlaintextIsOnlyTakenForGrantedOnLoopback(t *testing.T) {
	yes, no := true, false
	for name, tc := range map[string]struct {
		a    Access
		want string // part of an error
	}{
		"loopback":                {Access{Server: "127.0.0.1:1"}, ""},
		"loopback by name":        {Access{Server: "localhost:1"}, ""},
		"elsewhere":               {Access{Server: "192.0.2.1:1"}, ""},
		"elsewhere, plaintext":    {Access{Server: "192.0.2.1:1", Plaintext: &yes}, ""},
		"loopback, TLS":           {Access{Server: "127.0.0.1:1", Plaintext: &no}, ""},
		"no port":                 {Access{Server: "127.0.0.1"}, "want host:port"},
		"plaintext and a token":   {Access{Server: "127.0.0.1:1", Plaintext: &yes, TokenFile: "x"}, "need TLS"},
		"certificate without key": {Access{Server: "127.0.0.1:1", CertFile: "x"}, "both"},
		"missing CA":              {Access{Server: "127.0.0.1:1", CAFile: filepath.Join(t.TempDir(), "none.pem")}, "none.pem"},
	} {
		err := tc.a.Apply(&Config{})
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestTheNamespaceIsThatOfTheCertificate_C12: a server refuses another one.
func TestTheNamespaceIsThatOfTheCertificate_C12(t *testing.T) {
	ca := testca.New(t)
	for name, want := range map[string]string{
		"spiffe://east.example/ns/ops/sa/tool": "ops",
		"spiffe://east.example/tool":           "",
		"tool.example":                         "",
	} {
		files := ca.Issue(t, t.TempDir(), name, time.Now().Add(time.Hour))
		if got := (Access{CertFile: files.Cert, KeyFile: files.Key}).Namespace(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := (Access{}).Namespace(); got != "" {
		t.Errorf("no certificate: %q", got)
	}
}
