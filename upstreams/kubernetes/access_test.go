package kubernetes

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// foundKubeconfig returns a kubeconfig with all that it needs, as a Secret has it.
func foundKubeconfig(server *httptest.Server, user string) []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server.URL, base64.StdEncoding.EncodeToString(ca), user)
}

// mirrorsFound runs an upstream of the server whose kubeconfig was found.
func (s *apiServer) mirrorsFound(access *Access) *world {
	s.t.Helper()
	w := &world{apiServer: s, t: s.t, aggregate: mirror.NewAggregate()}
	cfg, err := config.Parse("relay.yaml", []byte(`clusters: [{name: fleet, directory: {path: .}, upstream: {guard: {percent: 100, empty: pass}}}]
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`), &Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	section := *cfg.Clusters[0].Upstream.Source.(*Config)
	section.Found = access
	u, err := cfg.Clusters[0].For("east", "east", &section)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.Upstreams = []config.Upstream{u}
	kind := Kind()
	kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		w.source = New(u, env)
		w.source.pace = quick
		return w.source, nil
	}
	if w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, nil, slog.New(slog.DiscardHandler)); err != nil {
		s.t.Fatal(err)
	}
	w.run(w.manager.Run, w.aggregate.Run)
	return w
}

func TestAFoundKubeconfigRotatesWithoutARelist_K8(t *testing.T) {
	s := newAPIServer(t)
	s.set(func() { s.token = "t0" })
	s.entry("shop/a", "a.x")
	access := NewAccess("not read yet")
	w := s.mirrorsFound(access)
	w.eventually("it waits for a kubeconfig", func() bool {
		return w.status().State == upstreams.StateFailed && strings.Contains(w.status().LastError, "not read yet")
	})
	access.Set(foundKubeconfig(s.http, "{token: t0}"), Trust{})
	w.synced()
	w.serves("ServiceEntry shop/a")
	lists := s.asked("serviceentries")
	for i := range 1000 {
		token := fmt.Sprint("t", i+1)
		s.set(func() { s.token = token }) // streams that run go on
		access.Set(foundKubeconfig(s.http, "{token: "+token+"}"), Trust{})
		if err := w.source.client.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.source.client.rotated(); n < 1000 {
		t.Errorf("%d rotations were noticed", n)
	}
	s.entry("shop/b", "b.x")
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	if now := s.asked("serviceentries"); now != lists {
		t.Errorf("the objects were asked for %d times meanwhile", now-lists)
	}
	access.Set([]byte("rotten"), Trust{})
	w.eventually("it is told that the kubeconfig is rotten", func() bool { return strings.Contains(w.status().LastError, "not a kubeconfig") })
	s.entry("shop/c", "c.x")
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/c")
	access.Miss("gone") // it has one
	if _, _, err := access.get(); err != nil {
		t.Error(err)
	}
}

func TestAFoundKubeconfigRunsNothingAndReadsNoFile(t *testing.T) {
	s := newAPIServer(t)
	good := string(foundKubeconfig(s.http, "{token: t}"))
	with := func(old, replaced string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in %s", old, good)
		}
		return strings.Replace(good, old, replaced, 1)
	}
	const exec = `{exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}}`
	for text, want := range map[string]string{
		good:                     "",
		with("{token: t}", exec): `runs the program "aws": name it in allowExec`,
		with("{token: t}", "{}"): "",
		with("certificate-authority-data", "insecure-skip-tls-verify: true, x"):                      "insecure-skip-tls-verify is not accepted",
		with("certificate-authority-data", "certificate-authority: /etc/ca, x"):                      "names files of the relay's own host (certificate-authority)",
		with("{token: t}", "{tokenFile: /etc/passwd, client-key: /etc/shadow}"):                      "(client-key, tokenFile)",
		with("{token: t}", "{client-certificate: /etc/passwd}"):                                      "(client-certificate)",
		with("{token: t}", "{auth-provider: {name: gcp}}"):                                           `the auth-provider "gcp" is not accepted`,
		with("certificate-authority-data", "proxy-url: 'http://evil:1', certificate-authority-data"): "set allowProxy: true",
		with("https://", "http://"):                                                                  "credentials are not sent in the clear",
		with("certificate-authority-data: ", "certificate-authority-data: AAAA"):                     "certificate",
		with("current-context: x", ""):                                                               "no current-context",
		"":                                                                                           "is empty",
		"a: [":                                                                                       "it is not a kubeconfig",
		good + strings.Repeat("#", MaxKubeconfig):                                                    "larger than 256 KiB",
	} {
		err := CheckKubeconfig([]byte(text), Trust{AllowExec: []string{"gke"}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.400s\n%v, want %s", text, err, want)
		}
	}
	if err := CheckKubeconfig([]byte(with("{token: t}", exec)), Trust{AllowExec: []string{"aws"}}); err != nil {
		t.Error(err)
	}
	if err := CheckKubeconfig([]byte(with("certificate-authority-data", "proxy-url: 'http://p:1', certificate-authority-data")), Trust{AllowProxy: true}); err != nil {
		t.Error(err)
	}
	if err := CheckKubeconfig([]byte("token: SECRET: ["), Trust{}); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the error quotes the kubeconfig: %v", err)
	}
	for _, proxy := range []string{"http://relay:SECRET@proxy:port", "ftp://relay:SECRET@proxy:1"} {
		text := with("certificate-authority-data", "proxy-url: '"+proxy+"', certificate-authority-data")
		if err := CheckKubeconfig([]byte(text), Trust{AllowProxy: true}); err == nil || !strings.Contains(err.Error(), "proxy-url") || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("the error quotes a password: %v", err)
		}
	}
}
