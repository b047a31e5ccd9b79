package kubernetes

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

// probed returns what doctor finds about a section.
func probed(t *testing.T, section *Config, of ...config.Services) []doctor.Finding {
	t.Helper()
	env, u := upstreams.Env{Log: slog.New(slog.DiscardHandler)}, config.Upstream{Name: "east", Source: section}
	for _, u.Services = range of { // one at most
	}
	return doctor.Run(context.Background(), await.Limit, probe(u, env))
}

func TestDoctorLooksAtAnAPIServer(t *testing.T) {
	s := newAPIServer(t)
	s.http = s.Start(t) // doctor dials
	s.Token = "good"
	refuse := func(path string, code int, reason string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, path) {
				return false
			}
			fakekube.Fail(w, code, reason)
			return true
		}
	}
	late := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		return false
	}
	closed := newAPIServer(t)
	closed.http = closed.Start(t) // doctor dials
	gone := closed.kubeconfig("good")
	closed.http.Close()
	for name, tc := range map[string]struct {
		kubeconfig string
		fault      func(http.ResponseWriter, *http.Request) bool
		level      doctor.Level
		check      string
		what, fix  string
	}{
		"all is well":   {s.kubeconfig("good"), nil, doctor.OK, "permissions", "1 kinds can be listed", ""},
		"a bad token":   {s.kubeconfig("stolen"), nil, doctor.Failed, "identity", "does not accept", "renew the token"},
		"no permission": {s.kubeconfig("good"), refuse("serviceentries", 403, "Forbidden"), doctor.Failed, "permissions", "may not list and watch serviceentries", "grant list and watch"},
		"no discovery":  {s.kubeconfig("good"), refuse("/apis", 403, "Forbidden"), doctor.Failed, "identity", "refuses discovery", "system:discovery"},
		"errors":        {s.kubeconfig("good"), refuse("serviceentries", 500, "InternalError"), doctor.Failed, "permissions", "could not be asked", "log of the API server"},
		"nobody there":  {gone, nil, doctor.Failed, "tcp", "refused", "port of the server"},
		"another clock": {s.kubeconfig("good"), late, doctor.Failed, "clock", "behind", "clock of this host"},
		"no file":       {"none", nil, doctor.Failed, "credentials", "can not be used", "kubeconfig"},
	} {
		s.Set(func() { s.Fault = tc.fault })
		found := probed(t, &Config{Cluster: config.Cluster{Kubeconfig: tc.kubeconfig}})
		ok := false
		for _, f := range found {
			ok = ok || f.Level == tc.level && f.Check == tc.check && strings.Contains(f.What, tc.what) && strings.Contains(f.Fix, tc.fix) && f.Upstream == "east"
			if strings.Contains(f.What+f.Why+f.Fix, "stolen") {
				t.Errorf("%s: a token is shown: %+v", name, f)
			}
		}
		if !ok || (doctor.Worst(found) == doctor.OK) != (tc.level == doctor.OK) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// What Ingresses and the choice of namespaces need holds clients up as well, so doctor asks for it too.
func TestDoctorAsksForTheInputsToo(t *testing.T) {
	s := ingressServer(t)
	s.http = s.Start(t) // doctor dials
	s.Define("", "Namespace", "namespaces", "v1")
	for denied, want := range map[string]string{
		"": "", "services": "may not list and watch services", "ingresses": "may not list and watch ingresses.networking.k8s.io",
		"namespaces": "may not list and watch namespaces", "configmaps/istio": "the MeshConfig can not be read",
	} {
		s.mesh("istio", "{}")
		s.Set(func() { s.Fault = failing("/"+denied, 403, "Forbidden") })
		if denied == "" {
			s.Set(func() { s.Fault = nil })
		}
		found := probed(t, &Config{Cluster: config.Cluster{Kubeconfig: s.kubeconfig("t")}, DiscoverySelectors: []string{"mesh=on"}, Ingress: Ingress{Mode: modeMesh, Namespace: "istio-system"}})
		is := slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Level == doctor.Failed && strings.Contains(f.What, want) })
		if is != (denied != "") {
			t.Errorf("%q is denied: %+v", denied, found)
		}
	}
}

// Services have endpoints without Pods and Nodes, so these are in doubt.
func TestDoctorAsksForWhatServicesAreMadeOf(t *testing.T) {
	s := serviceServer(t)
	s.http = s.Start(t) // doctor dials
	for denied, want := range map[string]doctor.Level{
		"services": doctor.Failed, "endpointslices": doctor.Failed, "pods": doctor.Warning, "nodes": doctor.Warning,
	} {
		s.Set(func() { s.Fault = failing("/"+denied, 403, "Forbidden") })
		found := probed(t, &Config{Cluster: config.Cluster{Kubeconfig: s.kubeconfig("t")}}, config.Services{Mode: config.ServicesDiscover})
		if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
			return f.Level == want && strings.Contains(f.What, "may not list and watch "+denied)
		}) {
			t.Errorf("%s are denied: %+v", denied, found)
		}
		if found = probed(t, &Config{Cluster: config.Cluster{Kubeconfig: s.kubeconfig("t")}}); doctor.Worst(found) != doctor.OK {
			t.Errorf("%s are denied, and nothing needs them: %+v", denied, found)
		}
	}
}

func TestDoctorLooksForServiceExports(t *testing.T) {
	s := serviceServer(t)
	s.http = s.Start(t) // doctor dials
	found := func(is bool, level doctor.Level, what string) {
		t.Helper()
		found := probed(t, &Config{Cluster: config.Cluster{Kubeconfig: s.kubeconfig("t")}}, config.Services{Mode: config.ServicesDiscover, Only: config.ServicesExported})
		if is != slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Level == level && strings.Contains(f.What, what) }) {
			t.Errorf("%+v", found)
		}
	}
	found(true, doctor.Warning, noExports)
	s.export("shop/db", "v1beta1")
	found(false, doctor.Warning, noExports)
	found(true, doctor.OK, "kinds can be listed and watched")
	s.Set(func() { s.Fault = failing("/serviceexports", 403, "Forbidden") })
	found(true, doctor.Failed, "may not list and watch serviceexports.multicluster.x-k8s.io")
}

// TestDoctorNamesTheNameOfAnAPIServer: the certificate of httptest is for 127.0.0.1 and example.com.
func TestDoctorNamesTheNameOfAnAPIServer(t *testing.T) {
	s := newAPIServer(t)
	s.http = s.Start(t) // doctor dials
	path := s.kubeconfig("good")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "certificate-authority:", "tls-server-name: east.invalid, certificate-authority:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	found := probed(t, &Config{Cluster: config.Cluster{Kubeconfig: path}})
	if len(found) != 1 || found[0].Check != "tls" || !strings.Contains(found[0].What, "another name") {
		t.Errorf("%+v", found)
	}
	// Without certificate-authority, the roots of the host count.
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), ", certificate-authority: ca.crt", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	found = probed(t, &Config{Cluster: config.Cluster{Kubeconfig: path}})
	if len(found) != 1 || found[0].Check != "tls" || !strings.Contains(found[0].Fix, "certificate-authority") {
		t.Errorf("%+v", found)
	}
}
