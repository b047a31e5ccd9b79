package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakexds"
)

// ca is a certificate authority for tests.
type ca struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	// file has the root in PEM form.
	file string
}

func newCA(t *testing.T, name string) *ca {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &ca{t, key, cert, file}
}

// issue returns a certificate for a name, valid from a time on for a duration.
func (c *ca) issue(name string, from time.Time, lasts time.Duration) tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: from.Add(lasts),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, c.cert.Raw}, PrivateKey: key}
}

const istiodName = "istiod.istio-system.svc"

// good is a certificate for istiodName that is valid now.
func (c *ca) good() tls.Certificate {
	return c.issue(istiodName, time.Now().Add(-time.Hour), 24*time.Hour)
}

// tlsServer starts a fake istiod with a certificate.
func tlsServer(t *testing.T, cert tls.Certificate) *fakexds.Server {
	t.Helper()
	return fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.Creds(credentials.NewServerTLSFromCert(&cert))}})
}

// jwt returns a file with a token that has these claims and no valid signature.
func jwt(t *testing.T, claims map[string]any) string {
	t.Helper()
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	text := "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString(body) + ".canarysignature"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// goodClaims are the claims of a token that an istiod accepts.
func goodClaims() map[string]any {
	now := time.Now()
	return map[string]any{
		"aud": []string{"istio-ca"}, "sub": "system:serviceaccount:istio-system:relay",
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// examined runs doctor over a config with one upstream and returns what it finds, by check.
func examined(t *testing.T, section, more string) (code int, found []doctor.Finding) {
	t.Helper()
	ports := freePorts(t, 2)
	dir := t.TempDir()
	text := fmt.Sprintf("node: {id: relay, namespace: istio-system}\nadmin: {address: \"127.0.0.1:%d\", socket: %s}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams:\n- name: east\n  %s\n%s\n",
		ports[0], filepath.Join(dir, "own", "s"), ports[1], section, more)
	if !strings.Contains(more, "state:") {
		text += fmt.Sprintf("state: {dir: %s}\n", filepath.Join(dir, "state"))
	}
	return examine1(t, text)
}

func examine1(t *testing.T, text string) (code int, found []doctor.Finding) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code = execute([]string{"doctor", "-c", file, "-o", "json", "--timeout", "2m"}, &stdout, &stderr)
	if strings.Contains(stdout.String()+stderr.String(), "canary") {
		t.Errorf("a secret is shown: %s %s", stdout.String(), stderr.String())
	}
	var all report
	if err := json.Unmarshal(stdout.Bytes(), &all); err != nil {
		t.Fatalf("%v: %s %s", err, stdout.String(), stderr.String())
	}
	return code, all.Findings
}

// wantOne checks that exactly one finding has the level, and that its check, text and fix match.
func wantOne(t *testing.T, code int, found []doctor.Finding, level doctor.Level, check, what, cure string) {
	t.Helper()
	want := map[doctor.Level]int{doctor.OK: 0, doctor.Warning: 2, doctor.Failed: 1}[level]
	if code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	for _, f := range found {
		if f.Level == doctor.OK {
			continue
		}
		if f.Check == check && f.Level == level && regexp.MustCompile(what).MatchString(f.What+" | "+f.Why) && strings.Contains(f.Fix, cure) {
			return
		}
	}
	t.Errorf("no finding %s %s %q with the cure %q: %+v", level, check, what, cure, found)
}

func overTLS(address, roots, name, rest string) string {
	return fmt.Sprintf("xds: {addresses: [%q], tls: {caFile: %s, serverName: %q}%s}", address, roots, name, rest)
}

func TestDoctorPassesWhereEverythingIsRight(t *testing.T) {
	root := newCA(t, "root of east")
	s := tlsServer(t, root.good())
	code, found := examined(t, overTLS(s.Addr, root.file, istiodName, ", tokenFile: "+jwt(t, goodClaims())), "")
	if code != 0 || len(found) < 8 {
		t.Errorf("exit code %d: %+v", code, found)
	}
}

func TestDoctorNamesAWrongPort(t *testing.T) {
	closed := freePorts(t, 1)[0]
	code, found := examined(t, fmt.Sprintf("xds: {addresses: [\"127.0.0.1:%d\"], plaintext: true}", closed), "")
	wantOne(t, code, found, doctor.Failed, "tcp", "refused", "15012")

	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	code, found = examined(t, fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", web.Listener.Addr()), "")
	wantOne(t, code, found, doctor.Failed, "plaintext", "HTTP server", "15010")

	https := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(https.Close)
	file := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	code, found = examined(t, overTLS(https.Listener.Addr().String(), file, "example.com", ""), "")
	wantOne(t, code, found, doctor.Failed, "tls", "HTTPS server", "15012")
}

func TestDoctorNamesAHostThatDoesNotResolve(t *testing.T) {
	code, found := examined(t, `xds: {addresses: ["istiod.east.invalid:15012"], plaintext: true}`, "")
	wantOne(t, code, found, doctor.Failed, "dns", "does not resolve", "addresses")
}

func TestDoctorNamesPlaintextAgainstTLSBothWays(t *testing.T) {
	root := newCA(t, "root")
	secure := tlsServer(t, root.good())
	code, found := examined(t, fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", secure.Addr), "")
	wantOne(t, code, found, doctor.Failed, "plaintext", "wants TLS", "section tls")

	open := fakexds.Start(t, &fakexds.Server{})
	code, found = examined(t, overTLS(open.Addr, root.file, istiodName, ""), "")
	wantOne(t, code, found, doctor.Failed, "tls", "plaintext there", "plaintext: true")
}

func TestDoctorNamesAWrongRoot(t *testing.T) {
	east, west := newCA(t, "root of east"), newCA(t, "root of west")
	s := tlsServer(t, east.good())
	code, found := examined(t, overTLS(s.Addr, west.file, istiodName, ""), "")
	wantOne(t, code, found, doctor.Failed, "tls", "root of east.*"+regexp.QuoteMeta(west.file), "istio-ca-root-cert")
}

func TestDoctorNamesAWrongServerName(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.good())
	code, found := examined(t, overTLS(s.Addr, root.file, "istiod.other.svc", ""), "")
	wantOne(t, code, found, doctor.Failed, "tls", "not for istiod.other.svc.*"+istiodName, "tls.serverName")
}

func TestDoctorNamesATokenThatIsExpiredOrForOthers(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.good())
	for name, tc := range map[string]struct {
		key        string
		value      any
		what, cure string
	}{
		"expired":   {"exp", time.Now().Add(-2 * time.Hour).Unix(), "expired 2h", "renew"},
		"audience":  {"aud", []string{"https://kubernetes.default.svc"}, "another audience.*kubernetes.default", "audience: istio-ca"},
		"namespace": {"sub", "system:serviceaccount:shop:relay", "namespace shop", "node.namespace: shop"},
	} {
		claims := goodClaims()
		claims[tc.key] = tc.value
		section := overTLS(s.Addr, root.file, istiodName, ", tokenFile: "+jwt(t, claims))
		s.Fail(status.Error(codes.Unauthenticated, "authentication failure"))
		code, found := examined(t, section, "")
		t.Log(name)
		wantOne(t, code, found, doctor.Failed, "token", tc.what, tc.cure)
		wantOne(t, code, found, doctor.Failed, "identity", "does not accept", "tokenFile")

		s.Fail(nil) // a server that does not look at it, such as a relay
		code, found = examined(t, section, "")
		wantOne(t, code, found, doctor.Warning, "token", tc.what+".*accepts it all the same", tc.cure)
	}
}

func TestDoctorNamesAnAPIGeneratorThatIsClosedToOurIdentity(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.good())
	s.Fail(status.Error(codes.PermissionDenied, "api generator is for the control plane"))
	code, found := examined(t, overTLS(s.Addr, root.file, istiodName, ", tokenFile: "+jwt(t, goodClaims())), "")
	wantOne(t, code, found, doctor.Failed, "identity", "api generator is closed", "ENABLE_XDS_API_GENERATOR_AUTH=false")
	wantOne(t, code, found, doctor.Failed, "identity", "api generator is closed", "istio-system")
}

func TestDoctorNamesAClockThatIsWrong(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.issue(istiodName, time.Now().Add(2*time.Hour), 24*time.Hour))
	code, found := examined(t, overTLS(s.Addr, root.file, istiodName, ""), "")
	wantOne(t, code, found, doctor.Failed, "clock", "valid only in (2h0m|1h5.m)", "clock of this host")

	good := tlsServer(t, root.good())
	claims := goodClaims()
	claims["iat"] = time.Now().Add(time.Hour).Unix()
	claims["exp"] = time.Now().Add(2 * time.Hour).Unix()
	good.Fail(status.Error(codes.Unauthenticated, "no"))
	code, found = examined(t, overTLS(good.Addr, root.file, istiodName, ", tokenFile: "+jwt(t, claims)), "")
	wantOne(t, code, found, doctor.Failed, "clock", "in the future", "clock of this host")
}

func TestDoctorNamesCertificatesThatHaveExpired(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.issue(istiodName, time.Now().Add(-20*time.Hour), time.Hour))
	code, found := examined(t, overTLS(s.Addr, root.file, istiodName, ""), "")
	wantOne(t, code, found, doctor.Failed, "tls", "expired 19h", "renew")

	late := tlsServer(t, root.issue(istiodName, time.Now().Add(-20*time.Hour), 21*time.Hour))
	code, found = examined(t, overTLS(late.Addr, root.file, istiodName, ""), "")
	wantOne(t, code, found, doctor.Warning, "tls", "expires in", "renew")
}

func TestDoctorNamesAStateThatCanNotBeWritten(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	plaintext := fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", s.Addr)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, found := examined(t, plaintext, fmt.Sprintf("state: {dir: %s}", filepath.Join(file, "state")))
	wantOne(t, code, found, doctor.Failed, "state", "is a file", "set state.dir")
	code, found = examined(t, plaintext, "state: {dir: /proc/relay}")
	wantOne(t, code, found, doctor.Failed, "state", "", "set state.dir")
}

// A directory instead of a file fails also for root. For other users, a file of another user does.
func TestDoctorNamesAStateWhoseFilesCanNotBeUsed(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	plaintext := fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", s.Addr)
	for _, name := range []string{"relay.lock", "relay.state", "upstream-east.state", "events.log"} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		code, found := examined(t, plaintext, fmt.Sprintf("state: {dir: %s}", dir))
		wantOne(t, code, found, doctor.Failed, "state", "can not be used.*"+regexp.QuoteMeta(filepath.Join(dir, name)), "chown -R USER "+dir)
	}
}

func TestDoctorNamesAStateThatAnotherRelayHas(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	dir := filepath.Join(t.TempDir(), "state")
	config := func(node string) string {
		ports := freePorts(t, 2)
		return fmt.Sprintf("node: {id: %s}\nadmin: {address: \"127.0.0.1:%d\"}\nstate: {dir: %s}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n",
			node, ports[0], dir, ports[1], s.Addr)
	}
	one, other := config("one"), config("other")
	stop := serveConfig(t, one)
	s.Await("the relay asks", func(fakexds.Request) bool { return true })
	code, found := examine1(t, other)
	wantOne(t, code, found, doctor.Failed, "lock", "in use by another process", "fuser -v "+filepath.Join(dir, "relay.lock"))
	stop()
	if code, found = examine1(t, other); code != 0 {
		t.Errorf("after the end of the other one: exit code %d: %+v", code, found)
	}
}

func TestDoctorNamesATakenPort(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	text := fmt.Sprintf("node: {id: relay}\nadmin: {address: %q}\nstate: {dir: %s}\ndownstream: {listeners: [{address: %q, plaintext: true}]}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n",
		fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0]), t.TempDir(), taken.Addr(), s.Addr)
	code, found := examine1(t, text)
	wantOne(t, code, found, doctor.Failed, "port", "taken", "ss -ltnp")
}

func TestDoctorRunsBesideTheRelayAndChangesNothing(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	ports := freePorts(t, 2)
	dir := t.TempDir()
	text := fmt.Sprintf("node: {id: relay}\nadmin: {address: \"127.0.0.1:%d\"}\nstate: {dir: %s}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n",
		ports[0], filepath.Join(dir, "state"), ports[1], s.Addr)
	code, found := examine1(t, text)
	if entries, err := os.ReadDir(dir); code != 0 || err != nil || len(entries) != 0 {
		t.Errorf("exit code %d, %v %v: %+v", code, entries, err, found)
	}
	serveConfig(t, text)
	s.Await("the relay asks", func(r fakexds.Request) bool { return true })
	await.Until(t, "the relay answers operators", func() bool {
		return execute([]string{"upstreams", "--admin", fmt.Sprintf("127.0.0.1:%d", ports[0])}, io.Discard, io.Discard) == 0
	})
	code, found = examine1(t, text)
	if code != 0 {
		t.Errorf("beside the relay: exit code %d: %+v", code, found)
	}
}

func TestDoctorIsBoundedWhereAServerIsSilent(t *testing.T) {
	t.Parallel() // it waits
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	root := newCA(t, "root")
	text := fmt.Sprintf("node: {id: relay}\nadmin: {address: \"127.0.0.1:%d\"}\nstate: {dir: %s}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nupstreams:\n", freePorts(t, 1)[0], t.TempDir(), freePorts(t, 1)[0])
	for i := range 20 {
		text += fmt.Sprintf("- {name: u%d, %s}\n", i, overTLS(silent.Addr().String(), root.file, istiodName, ""))
	}
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := execute([]string{"doctor", "-c", file, "--timeout", "1s"}, &stdout, &stderr)
	if n := strings.Count(stdout.String(), "no answer to the TLS handshake"); code != 1 || n != 20 {
		t.Errorf("exit code %d, %d findings: %s", code, n, stdout.String())
	}
}

func TestDoctorPrintsEveryMistakeOfAConfigFile(t *testing.T) {
	code, found := examine1(t, "upstreams: []\nbogus: 1\n")
	if code != 1 || doctor.Count(found, doctor.Failed) < 2 {
		t.Errorf("exit code %d: %+v", code, found)
	}
}

func TestDoctorLooksAtClusters(t *testing.T) {
	dir := t.TempDir()
	hub := fakekube.New()
	hub.Define("", "Secret", "secrets", "v1")
	fakekube.WriteKubeconfig(t, filepath.Join(dir, "hub"), hub.Start(t), "t")
	ports := freePorts(t, 2)
	text := fmt.Sprintf("node: {id: relay}\nadmin: {address: \"127.0.0.1:%d\", socket: %s}\ndownstream: {listeners: [{address: \"127.0.0.1:%d\", plaintext: true}]}\nstate: {dir: %s}\nclusters:\n- {name: mounted, secrets: {cluster: {kubeconfig: %s}}}\n",
		ports[0], filepath.Join(dir, "own", "s"), ports[1], filepath.Join(dir, "state"), filepath.Join(dir, "hub"))
	code, found := examine1(t, text)
	wantOne(t, code, found, doctor.Warning, "clusters", "no cluster is found", "look at namespace and selector")
	if last := found[len(found)-1]; last.Clusters != "mounted" {
		t.Errorf("it is not told which clusters: %+v", last)
	}
	if page := cliview.Doctor(found); !strings.Contains(page, "\n\nclusters mounted\n") {
		t.Error(page)
	}
}
