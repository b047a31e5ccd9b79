package kubernetes

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

// account has the relays that mirror the server be pods of its cluster. It returns the directory of their
// service account.
func (s *apiServer) account(token string) string {
	s.t.Helper()
	server, err := url.Parse(s.http.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Setenv("KUBERNETES_SERVICE_HOST", server.Hostname())
	s.t.Setenv("KUBERNETES_SERVICE_PORT", server.Port())
	dir := s.t.TempDir()
	fakekube.WriteKubeconfig(s.t, filepath.Join(dir, "kubeconfig"), s.http, "") // beside ca.crt
	s.projects(dir, token)
	s.section = func(c *Config) { c.Cluster.InCluster, c.Cluster.Kubeconfig, c.Account = true, "", dir }
	return dir
}

// projects replaces the token of a service account, as a kubelet does.
func (s *apiServer) projects(dir, token string) {
	s.t.Helper()
	fakekube.ReplaceFile(s.t, filepath.Join(dir, "token"), []byte(token+"\n"))
}

// TestAPodUsesItsServiceAccount_K8: its token and its CA, from where they are, also when they are replaced.
func TestAPodUsesItsServiceAccount_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Token = "t"
		s.entry("shop/a", "a.x")
		dir := s.account("t")
		s.pace.grace = time.Hour
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a")
		lists := s.Asked("serviceentries", "sendInitialEvents")
		for i := range 5 {
			token := fmt.Sprint("t", i)
			s.Set(func() { s.Token = token }) // streams that run go on
			s.projects(dir, token)
			w.until("the new token is used", func() bool { return w.detail().Rotations == uint64(i+1) })
			w.arrives(token)
			watches := s.Asked("serviceentries", "watch=true")
			s.Set(func() { s.Stops++ }) // the next watch needs the new token
			w.until("it watches on", func() bool { return s.Asked("serviceentries", "watch=true") > watches })
		}
		w.arrives("last")
		w.synced()
		if n := s.Asked("serviceentries", "sendInitialEvents") - lists; n != 0 {
			t.Errorf("it has listed %d times", n)
		}

		// A token or a CA that is missing does not take the place of the one before.
		for _, file := range []string{"token", "ca.crt"} {
			if err := os.Rename(filepath.Join(dir, file), filepath.Join(dir, "aside")); err != nil {
				t.Fatal(err)
			}
			w.until("it tells that a file is missing", func() bool { return strings.Contains(w.status().LastError, file) })
			w.arrives(file)
			if err := os.Rename(filepath.Join(dir, "aside"), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
			w.until("it is well again", func() bool { return w.status().LastError == "" && w.status().State == upstreams.StateSynced })
		}
		if n := w.detail().Rotations; n != 5 {
			t.Errorf("%d rotations, want 5", n)
		}
	})
}
