package relay

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/config"
)

// writeCertificate writes a certificate and its key as NAME.pem and NAME-key.pem.
func writeCertificate(t *testing.T, dir, name string, begins, ends time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: begins, NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der2, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der2})
	write(t, filepath.Join(dir, name+".pem"), string(cert))
	write(t, filepath.Join(dir, name+"-key.pem"), string(key))
	return cert, key
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2lnbmF0dXJl"
}

// credentialed returns a config with a certificate of a listener and of two upstreams, two tokens, and an upstream
// with a token that is no JWT.
func credentialed(t *testing.T, dir string, begins, ends time.Time) *config.Config {
	t.Helper()
	writeCertificate(t, dir, "listener", begins, ends)
	writeCertificate(t, dir, "east", begins, ends)
	cert, key := writeCertificate(t, dir, "cluster", begins, ends)
	claims := fmt.Sprintf(`{"iat": %d, "exp": %d}`, begins.Unix(), ends.Unix())
	write(t, filepath.Join(dir, "token"), jwt(claims)+"\n")
	write(t, filepath.Join(dir, "opaque"), "a secret")
	write(t, filepath.Join(dir, "kubeconfig"), fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s, token: %s}}]
`, base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key), jwt(claims)))
	path := filepath.Join(dir, "relay.yaml")
	write(t, path, `node: {id: relay}
downstream:
  listeners:
  - {address: "127.0.0.1:15012", allowAnonymous: true, tls: {certFile: listener.pem, keyFile: listener-key.pem}}
  - {address: "127.0.0.1:15010", plaintext: true}
upstreams:
- {name: east, xds: {addresses: ["127.0.0.1:1"], tls: {certFile: east.pem, keyFile: east-key.pem}, tokenFile: token}}
- {name: west, xds: {addresses: ["127.0.0.1:2"], tls: {caFile: listener.pem}, tokenFile: opaque}}
- {name: cluster, kubernetes: {cluster: {kubeconfig: kubeconfig}}}
- {name: files, file: {path: .}}
`)
	cfg, err := config.Load(path, Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestTheEndOfEachCertificateAndTokenIsAMetric: of listeners and upstreams, by their names in the config. A token
// that is no JWT has no end. A file that can not be read stays as it was.
func TestTheEndOfEachCertificateAndTokenIsAMetric(t *testing.T) {
	dir := t.TempDir()
	begins := time.Unix(1_800_000_000, 0)
	cfg := credentialed(t, dir, begins, begins.Add(time.Hour))
	e := &expiries{config: func() *config.Config { return cfg }, listeners: cfg.Downstream.Listeners}
	if n := testutil.CollectAndCount(e); n != 0 {
		t.Errorf("%d values before the first look", n)
	}
	want := func(ends string) {
		t.Helper()
		if err := testutil.CollectAndCompare(e, strings.NewReader(strings.ReplaceAll(`
# HELP relay_certificate_expiry_timestamp_seconds When the certificate of a listener or for an upstream ends.
# TYPE relay_certificate_expiry_timestamp_seconds gauge
relay_certificate_expiry_timestamp_seconds{where="listener 127.0.0.1:15012"} 1.8000036e+09
relay_certificate_expiry_timestamp_seconds{where="upstream cluster"} 1.8000036e+09
relay_certificate_expiry_timestamp_seconds{where="upstream east"} ENDS
# HELP relay_certificate_lifetime_seconds Time from the begin to the end of that certificate.
# TYPE relay_certificate_lifetime_seconds gauge
relay_certificate_lifetime_seconds{where="listener 127.0.0.1:15012"} 3600
relay_certificate_lifetime_seconds{where="upstream cluster"} 3600
relay_certificate_lifetime_seconds{where="upstream east"} 3600
# HELP relay_token_expiry_timestamp_seconds When the token for an upstream ends, if it is a JWT with an end.
# TYPE relay_token_expiry_timestamp_seconds gauge
relay_token_expiry_timestamp_seconds{upstream="cluster"} 1.8000036e+09
relay_token_expiry_timestamp_seconds{upstream="east"} 1.8000036e+09
# HELP relay_token_lifetime_seconds Time from the begin to the end of that token, if it has a begin.
# TYPE relay_token_lifetime_seconds gauge
relay_token_lifetime_seconds{upstream="cluster"} 3600
relay_token_lifetime_seconds{upstream="east"} 3600
`, "ENDS", ends))); err != nil {
			t.Error(err)
		}
	}
	e.look()
	want("1.8000036e+09")

	writeCertificate(t, dir, "east", begins.Add(time.Hour), begins.Add(2*time.Hour))
	write(t, filepath.Join(dir, "listener.pem"), "torn")
	e.look()
	want("1.8000072e+09")
}

// TestARenewalThatIsLateIsAProblem of status and /ready, in the last tenth of a life and the last seven days.
func TestARenewalThatIsLateIsAProblem(t *testing.T) {
	dir := t.TempDir()
	begins := time.Unix(1_800_000_000, 0)
	const year = 365 * 24 * time.Hour
	cfg := credentialed(t, dir, begins, begins.Add(year))
	e := &expiries{config: func() *config.Config { return cfg }, listeners: cfg.Downstream.Listeners[:1]}
	e.look()
	day := 24 * time.Hour
	if got := e.problems(begins.Add(year - 8*day)); len(got) != 0 {
		t.Errorf("eight days before the end: %q", got)
	}
	want := []string{
		`listener 127.0.0.1:15012: its certificate expires at 2028-01-15T08:00:00Z; renew the file, which the relay reads again by itself; see "relay help runbook RelayCredentialExpires"`,
		`upstream east: its certificate expires at 2028-01-15T08:00:00Z; renew the file, which the relay reads again by itself; see "relay help runbook RelayCredentialExpires"`,
		`upstream east: its token expires at 2028-01-15T08:00:00Z; renew the file, which the relay reads again by itself; see "relay help runbook RelayCredentialExpires"`,
		`upstream cluster: its certificate expires at 2028-01-15T08:00:00Z; renew the file, which the relay reads again by itself; see "relay help runbook RelayCredentialExpires"`,
		`upstream cluster: its token expires at 2028-01-15T08:00:00Z; renew the file, which the relay reads again by itself; see "relay help runbook RelayCredentialExpires"`,
	}
	if d := cmp.Diff(want, e.problems(begins.Add(year-6*day))); d != "" {
		t.Error(d)
	}
	if got := e.problems(begins.Add(year)); len(got) != 5 || !strings.Contains(got[0], "its certificate expired at") {
		t.Errorf("at the end: %q", got)
	}

	cfg = credentialed(t, dir, begins, begins.Add(time.Hour))
	e.look()
	if got := e.problems(begins.Add(50 * time.Minute)); len(got) != 0 {
		t.Errorf("ten minutes before the end of an hour: %q", got)
	}
	if got := e.problems(begins.Add(55 * time.Minute)); len(got) != 5 {
		t.Errorf("five minutes before the end of an hour: %q", got)
	}
}

// TestACertificateThatIsNotValidYetIsAProblem of status and /ready, and the end of the one that is used stays the metric.
func TestACertificateThatIsNotValidYetIsAProblem(t *testing.T) {
	dir := t.TempDir()
	begins := time.Now().Add(-time.Hour).Truncate(time.Second)
	cfg := credentialed(t, dir, begins, begins.Add(10*time.Hour))
	e := &expiries{config: func() *config.Config { return cfg }, listeners: cfg.Downstream.Listeners[:1]}
	e.look()
	writeCertificate(t, dir, "listener", begins.Add(5*time.Hour), begins.Add(30*time.Hour))
	for range 2 {
		e.look()
		want := []string{fmt.Sprintf("listener 127.0.0.1:15012: its new certificate is valid from %s; the one before, which ends at %s, is used until then; look at the clocks, or issue it again",
			begins.Add(5*time.Hour).UTC().Format(time.RFC3339), begins.Add(10*time.Hour).UTC().Format(time.RFC3339))}
		if d := cmp.Diff(want, e.problems(time.Now())); d != "" {
			t.Error(d)
		}
	}
	writeCertificate(t, dir, "listener", begins, begins.Add(30*time.Hour))
	if e.look(); len(e.problems(time.Now())) != 0 {
		t.Errorf("%q after another one", e.problems(time.Now()))
	}
}
