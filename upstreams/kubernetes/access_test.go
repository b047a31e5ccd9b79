package kubernetes

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
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
func (s *apiServer) mirrorsFound(access *apiserver.Kubeconfig) *world {
	s.t.Helper()
	w := &world{apiServer: s, t: s.t, aggregate: mirror.NewAggregate()}
	cfg, err := config.Parse("relay.yaml", []byte(`clusters: [{name: fleet, secrets: {cluster: {inCluster: true}}, upstream: {guard: {percent: 100}}}]
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
		w.source = newSource(u, env)
		return w.source, nil
	}
	if w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, nil, slog.New(slog.DiscardHandler)); err != nil {
		s.t.Fatal(err)
	}
	w.run(w.manager.Run, w.aggregate.Run)
	return w
}

func TestAFoundKubeconfigRotatesWithoutARelist_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Set(func() { s.Token = "t0" })
		s.entry("shop/a", "a.x")
		access := apiserver.NewKubeconfig("not read yet")
		w := s.mirrorsFound(access)
		w.until("it waits for a kubeconfig", func() bool {
			return w.status().State == upstreams.StateFailed && strings.Contains(w.status().LastError, "not read yet")
		})
		access.Set(foundKubeconfig(s.http, "{token: t0}"), apiserver.Trust{AllowServers: []string{"127.0.0.1"}})
		w.synced()
		w.serves("ServiceEntry shop/a")
		lists := s.Asked("serviceentries")
		for i := range 1000 {
			token := fmt.Sprint("t", i+1)
			s.Set(func() { s.Token = token }) // streams that run go on
			access.Set(foundKubeconfig(s.http, "{token: "+token+"}"), apiserver.Trust{AllowServers: []string{"127.0.0.1"}})
			if err := w.source.client.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.source.client.Rotations(); n < 1000 {
			t.Errorf("%d rotations were noticed", n)
		}
		s.entry("shop/b", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		if now := s.Asked("serviceentries"); now != lists {
			t.Errorf("the objects were asked for %d times meanwhile", now-lists)
		}
		access.Set([]byte("rotten"), apiserver.Trust{AllowServers: []string{"127.0.0.1"}})
		w.until("it is told that the kubeconfig is rotten", func() bool { return strings.Contains(w.status().LastError, "not a kubeconfig") })
		s.entry("shop/c", "c.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/c")
	})
}

// A program that hangs blocks neither requests nor streams with the credentials of before.
func TestAProgramThatHangsBlocksNothing_K8(t *testing.T) {
	s := newAPIServer(t)
	s.Token = "t"
	s.entry("shop/a", "a.x")
	program := filepath.Join(t.TempDir(), "login")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nsleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := s.mirrors(fmt.Sprintf(", allowExec: [%q]", program), "")
	w.synced()
	text, err := os.ReadFile(w.source.section.Cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: IfAvailable}}`, program)
	fakekube.ReplaceFile(t, w.source.section.Cluster.Kubeconfig, []byte(strings.Replace(string(text), `{token: "t"}`, user, 1)))
	s.Compact()
	s.drop()
	s.entry("shop/b", "b.x")
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	w.synced()
}

// refusesPoor refuses the objects of a kind to the token "poor".
func refusesPoor(w http.ResponseWriter, r *http.Request) bool {
	poor := r.Header.Get("Authorization") == "Bearer poor" && strings.HasSuffix(r.URL.Path, "/serviceentries")
	if poor {
		fakekube.Fail(w, http.StatusForbidden, "Forbidden")
	}
	return poor
}

func TestAnIdentityWithoutRightsDoesNotReplaceOneWithThem_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Set(func() { s.Fault = refusesPoor })
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		kept := func() {
			t.Helper()
			w.until("it tells that the credentials of before are used", func() bool {
				st := w.status()
				return st.State == upstreams.StateSynced && strings.Contains(st.LastError, "stay in use") && st.Kept == st.LastError
			})
			w.arrives(fmt.Sprint("a", len(w.has())))
		}
		fakekube.WriteKubeconfig(t, w.path, s.http, "poor")
		w.until("the new ones are read", func() bool { return w.detail().Rotations == 1 })
		s.drop()
		kept()
		fakekube.WriteKubeconfig(t, w.path, s.http, "poorer") // is refused everything
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") != "Bearer poorer" {
					return refusesPoor(w, r)
				}
				fakekube.Fail(w, http.StatusUnauthorized, "Unauthorized")
				return true
			}
		})
		w.until("these are read", func() bool { return w.detail().Rotations == 2 })
		s.drop()
		kept()
		fakekube.WriteKubeconfig(t, w.path, s.http, "rich")
		w.until("others are used", func() bool { return w.detail().Rotations == 3 && w.status().LastError == "" })
		s.drop()
		w.arrives("rich")
		// Those of before end, too.
		s.Set(func() { s.Token = "poor" })
		fakekube.WriteKubeconfig(t, w.path, s.http, "poor")
		s.drop()
		w.until("it is denied", func() bool { return w.status().State == upstreams.StateDenied })
	})
}

func TestGoodCredentialsDoNotWaitOutThePauseAfterADenial_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.pace.Retry, s.pace.RetryMax = time.Hour, 24*time.Hour
		s.Set(func() { s.Fault = refusesPoor })
		s.entry("shop/a", "a.x")
		w := s.upstream("", "")
		fakekube.WriteKubeconfig(t, w.path, s.http, "poor")
		w.run(w.manager.Run, w.aggregate.Run, w.journal.Run)
		w.until("it is denied", func() bool { return w.status().State == upstreams.StateDenied })
		began := time.Now()
		fakekube.WriteKubeconfig(t, w.path, s.http, "rich")
		w.synced()
		w.serves("ServiceEntry shop/a")
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}
