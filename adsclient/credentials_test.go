package adsclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// authority is a certificate authority for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = sign(t, &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true}, nil)
	writePEM(t, a.file("ca"), "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

// issue writes name.pem and name-key.pem.
func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage, hosts ...string) {
	t.Helper()
	cert, key := sign(t, &x509.Certificate{
		DNSNames: hosts, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file(name), "CERTIFICATE", cert.Raw)
	writePEM(t, a.file(name+"-key"), "EC PRIVATE KEY", der)
}

func sign(t *testing.T, template *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	writeFile(t, path, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// writeFile replaces a file at once, as those who rotate credentials do.
func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// serveTLS starts a server that demands a client certificate.
func (a *authority) serveTLS(t *testing.T) *fakexds.Server {
	t.Helper()
	return fakexds.Start(t, &fakexds.Server{Options: a.demands(t)})
}

// demands returns the options of a server that demands a client certificate.
func (a *authority) demands(t *testing.T) []grpc.ServerOption {
	t.Helper()
	a.issue(t, "server", x509.ExtKeyUsageServerAuth, "istiod.istio-system.svc")
	pair, err := tls.LoadX509KeyPair(a.file("server"), a.file("server-key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12,
	}))}
}

func withTLS(t *testing.T, f TLSFiles, serverName string, more ...grpc.DialOption) func(*Config) {
	t.Helper()
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		c.Protocol = SotW
		c.Credentials, c.DialOptions = f.Credentials(slog.New(slog.DiscardHandler)), append([]grpc.DialOption{grpc.WithAuthority(serverName)}, more...)
	}
}

func TestTokenIsReadAgainForEachStream_C19(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	s := a.serveTLS(t)
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, "first\n")
	h := newRecorder()
	files := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	start(t, h, withTLS(t, files, "istiod.istio-system.svc", grpc.WithPerRPCCredentials(TokenFile(token))), s.Addr)
	h.awaitResponses(t, 3)
	writeFile(t, token, "second\n")
	s.End(status.Error(codes.Unavailable, "rotate"))
	h.awaitResponses(t, 6)
	for _, r := range s.Requests() {
		want := []string{"", "Bearer first", "Bearer second"}[r.Stream]
		if got := strings.Join(r.Header.Get("authorization"), ","); got != want {
			t.Fatalf("stream %d came with %q, want %q", r.Stream, got, want)
		}
	}
}

func TestATokenThatCannotBeReadIsADenial_C19(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	s := a.serveTLS(t)
	files := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	empty := filepath.Join(t.TempDir(), "empty")
	writeFile(t, empty, " \n")
	for _, path := range []string{empty, filepath.Join(t.TempDir(), "missing")} {
		h := newRecorder()
		start(t, h, withTLS(t, files, "istiod.istio-system.svc", grpc.WithPerRPCCredentials(TokenFile(path))), s.Addr)
		h.await(t, "denied, naming the file", func() bool {
			return h.last().Phase == Denied && strings.Contains(h.last().Err.Error(), path)
		})
	}
	if n := s.Streams(); n != 0 {
		t.Errorf("%d streams were opened without a token", n)
	}
}

func TestTheServersNameIsVerified_C19(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	s := a.serveTLS(t)
	h := newRecorder()
	files := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	start(t, h, withTLS(t, files, "somebody.else"), s.Addr)
	h.await(t, "a failure", func() bool { return h.last().Phase == Disconnected })
	if n := s.Streams(); n != 0 {
		t.Errorf("%d streams were opened to a server with another name", n)
	}
}

func TestAnotherRootIsNotTrusted_C19(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	s := a.serveTLS(t)
	h := newRecorder()
	files := TLSFiles{CAFile: other.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	start(t, h, withTLS(t, files, "istiod.istio-system.svc"), s.Addr)
	h.await(t, "a failure", func() bool { return h.last().Phase == Disconnected })
	if n := s.Streams(); n != 0 {
		t.Errorf("%d streams were opened to a server that nobody vouches for", n)
	}
}

// TestWhatIsWrongWithTLSIsSaid: what the libraries say of it does not tell what to do.
func TestWhatIsWrongWithTLSIsSaid_C19(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	encrypted, plain := a.serveTLS(t), fakexds.Start(t, &fakexds.Server{})
	all := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	const name = "istiod.istio-system.svc"
	for _, tc := range []struct {
		name, address, want string
		change              func(*Config)
	}{
		{"TLS to a plaintext port", plain.Addr, "plaintext: true", withTLS(t, all, name)},
		{"plaintext to a port for TLS", encrypted.Addr, "set tls", nil},
		{"a server of another name", encrypted.Addr, "tls.serverName", withTLS(t, all, "somebody.else")},
		{"a server of another root", encrypted.Addr, "tls.caFile", withTLS(t, TLSFiles{CAFile: other.file("ca"), CertFile: all.CertFile, KeyFile: all.KeyFile}, name)},
		{"no client certificate", encrypted.Addr, "tls.certFile", withTLS(t, TLSFiles{CAFile: all.CAFile}, name)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newRecorder()
			start(t, h, tc.change, tc.address)
			h.await(t, "an error with "+tc.want, func() bool { return h.last().Err != nil && strings.Contains(h.last().Err.Error(), tc.want) })
		})
	}
}

func TestCertificateFilesAreReadAgain_C19(t *testing.T) {
	old, next := newAuthority(t), newAuthority(t)
	s := old.serveTLS(t)
	// The files start as those of an authority that the server does not know.
	next.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	old.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	dir := t.TempDir()
	files := TLSFiles{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "client.pem"), KeyFile: filepath.Join(dir, "client-key.pem")}
	use := func(a *authority) {
		for _, name := range []string{"ca", "client", "client-key"} {
			b, err := os.ReadFile(a.file(name))
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(dir, name+".pem"), string(b))
		}
	}
	use(next)
	h := newRecorder()
	start(t, h, func(c *Config) {
		c.Protocol = SotW
		c.Credentials, c.DialOptions = files.Credentials(slog.New(slog.DiscardHandler)), []grpc.DialOption{grpc.WithAuthority("istiod.istio-system.svc")}
	}, s.Addr)
	h.await(t, "a failure", func() bool { return h.last().Phase == Disconnected })
	use(old)
	h.awaitResponses(t, 3)
	// Files that are broken now do not replace the good ones.
	for _, path := range []string{files.CAFile, files.CertFile, files.KeyFile} {
		writeFile(t, path, "junk")
	}
	for stream := range 20 {
		s.End(status.Error(codes.Unavailable, "again"))
		h.awaitResponses(t, 3*(stream+2))
	}
}

func TestBadCredentialFilesAreErrorsAtOnce(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	junk := filepath.Join(a.dir, "junk.pem")
	writeFile(t, junk, "not a certificate")
	for name, f := range map[string]TLSFiles{
		"CA is missing":         {CAFile: a.file("missing")},
		"CA is junk":            {CAFile: junk},
		"certificate is junk":   {CAFile: a.file("ca"), CertFile: junk, KeyFile: a.file("client-key")},
		"key is missing":        {CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("missing")},
		"key of somebody else":  {CAFile: a.file("ca"), CertFile: a.file("ca"), KeyFile: a.file("client-key")},
		"certificate and no CA": {CAFile: junk, CertFile: a.file("client"), KeyFile: a.file("client-key")},
	} {
		if err := f.Check(); err == nil {
			t.Errorf("%s: no error", name)
		} else if !strings.Contains(err.Error(), ".pem") {
			t.Errorf("%s: the error names no file: %v", name, err)
		}
	}
}

func TestATokenIsNotSentInPlaintext_C19(t *testing.T) {
	if !TokenFile("token").RequireTransportSecurity() {
		t.Error("a token may be sent without TLS")
	}
}

func TestNewCredentialsDoNotWaitOutThePauseAfterADenial_C19(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	s := a.serveTLS(t)
	files := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, "")
	h := newRecorder()
	start(t, h, func(c *Config) {
		withTLS(t, files, "istiod.istio-system.svc", grpc.WithPerRPCCredentials(TokenFile(token)))(c)
		c.DeniedBackoff = 24 * time.Hour
		c.Stamp = func() string {
			text, _ := os.ReadFile(token)
			return string(text)
		}
	}, s.Addr)
	h.await(t, "denied", func() bool { return h.last().Phase == Denied })
	writeFile(t, token, "renewed")
	h.awaitResponses(t, 3)
}

// TestATokenThatIsDeniedDoesNotReplaceOneThatWasTaken_C19: a token that can not be read does not, either.
func TestATokenThatIsDeniedDoesNotReplaceOneThatWasTaken_C19(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "client", x509.ExtKeyUsageClientAuth, "relay")
	var denies atomic.Value
	denies.Store("poor")
	s := fakexds.Start(t, &fakexds.Server{Options: append(a.demands(t), grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		if token := strings.TrimPrefix(strings.Join(md.Get("authorization"), ","), "Bearer "); strings.Contains(denies.Load().(string), token) {
			return status.Error(codes.PermissionDenied, "it is "+token)
		}
		return next(srv, ss)
	}))})
	files := TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}
	path := filepath.Join(t.TempDir(), "token")
	writeFile(t, path, "first")
	token, h := TokenFile(path), newRecorder()
	start(t, h, func(c *Config) {
		withTLS(t, files, "istiod.istio-system.svc", grpc.WithPerRPCCredentials(token), grpc.WithChainStreamInterceptor(token.Stream))(c)
		c.DeniedBackoff = 24 * time.Hour
		c.Stamp = func() string {
			text, _ := os.ReadFile(path)
			return token.Kept() + string(text)
		}
	}, s.Addr)
	h.awaitResponses(t, 3)
	for n, test := range []struct{ file, kept string }{
		{"poor", "it is poor"},
		{"", "is empty"},
		{"second", ""},
	} {
		writeFile(t, path, test.file)
		s.End(status.Error(codes.Unavailable, "rotate"))
		h.awaitResponses(t, 3*(n+2))
		if kept := token.Kept(); !strings.Contains(kept, test.kept) || kept != "" && test.kept == "" {
			t.Errorf("with the token %q it tells %q, want %q", test.file, kept, test.kept)
		}
	}
	denies.Store("second third")
	writeFile(t, path, "third")
	s.End(status.Error(codes.Unavailable, "rotate"))
	h.await(t, "denied: the one before is denied, too", func() bool { return h.last().Phase == Denied && token.Kept() == "" })
	denies.Store("")
	writeFile(t, path, "fourth")
	h.awaitResponses(t, 15)
}

// TestATokenIsJudgedForEachServer: what one server denies, another may take. After a while a denied token is tried again, and a
// file that is mended is no problem any more.
func TestATokenIsJudgedForEachServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		f := TokenFile(path)
		sends := func(target string) string {
			s := &tokenStream{target: target}
			if _, err := f.GetRequestMetadata(context.WithValue(t.Context(), tokenKey{}, s)); err != nil {
				return err.Error()
			}
			return s.token
		}
		no := status.Error(codes.PermissionDenied, "no")
		writeFile(t, path, "old")
		f.judge("a", "old", no) // it has taken none
		f.judge("b", "old", nil)
		writeFile(t, path, "new")
		f.judge("a", "new", no)
		if kept := f.Kept(); sends("a") != "new" || sends("b") != "new" || kept != "" {
			t.Errorf("a is sent %s, b %s: %s", sends("a"), sends("b"), kept)
		}
		f.judge("b", "new", no)
		if sends("b") != "old" || !strings.Contains(f.Kept(), "b: ") {
			t.Errorf("b is sent %s: %s", sends("b"), f.Kept())
		}
		await.Pass(deniedFor + time.Second)
		if sends("b") != "new" {
			t.Errorf("later b is sent %s", sends("b"))
		}
		if f.judge("b", "new", nil); f.Kept() != "" {
			t.Error(f.Kept())
		}
		writeFile(t, path, " ")
		if sends("b") != "new" || !strings.Contains(f.Kept(), "is empty") {
			t.Errorf("b is sent %s: %s", sends("b"), f.Kept())
		}
		if writeFile(t, path, "new"); f.Kept() != "" {
			t.Errorf("the file is mended: %s", f.Kept())
		}
	})
}
