package clusters

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/await"
)

// withProgram returns a kubeconfig that names a program.
func (h *hubServer) withProgram(command string) []byte {
	return []byte(strings.Replace(string(h.kubeconfig("t")), "{token: t}", "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: "+command+"}}", 1))
}

func TestDoctorLooksAtThePlacesOfClusters(t *testing.T) {
	const secrets = "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}%s}"
	plain := func(h *hubServer) map[string][]byte { return map[string][]byte{"east": h.kubeconfig("e")} }
	for name, tc := range map[string]struct {
		parts   string
		secret  func(h *hubServer) map[string][]byte
		prepare func(h *hubServer, dir string)
		level   doctor.Level
		check   string
		what    string // and why
		fix     string
	}{
		"all is well":        {parts: fmt.Sprintf(secrets, ""), secret: plain, level: doctor.OK, check: "permissions", what: "secrets in istio-system can be listed"},
		"a cluster is found": {parts: fmt.Sprintf(secrets, ""), secret: plain, level: doctor.OK, check: "clusters", what: "found: east"},
		"no list": {parts: fmt.Sprintf(secrets, ""), secret: plain, level: doctor.Failed, check: "permissions", what: "may not list secrets in istio-system", fix: "rbac-hub.yaml",
			prepare: func(h *hubServer, _ string) {
				h.forbidden = func(r *http.Request) bool { return r.URL.Query().Get("watch") == "" }
			}},
		"nobody there": {parts: fmt.Sprintf(secrets, ""), level: doctor.Failed, check: "tcp", what: "refused", fix: "port of the server",
			prepare: func(h *hubServer, _ string) { h.http.Close() }},
		"no kubeconfig of the hub": {parts: fmt.Sprintf(secrets, ""), level: doctor.Failed, check: "credentials", what: "no such file", fix: "correct kubeconfig",
			prepare: func(_ *hubServer, dir string) { _ = os.Remove(filepath.Join(dir, "hub")) }},
		"no secret": {parts: fmt.Sprintf(secrets, ""), level: doctor.Warning, check: "clusters", what: "no cluster is found", fix: "istioctl create-remote-secret"},
		"a program that is not allowed": {parts: fmt.Sprintf(secrets, ""), level: doctor.Warning, check: "kubeconfig", what: "cluster west is not followed", fix: "clusters[].allowExec",
			secret: func(h *hubServer) map[string][]byte { return map[string][]byte{"west": h.withProgram("plugin")} }},
		"an allowed program that is not there": {parts: fmt.Sprintf(secrets, ", allowExec: [no-such-plugin]"), secret: plain, level: doctor.Warning, check: "program", what: "an allowed program", fix: "PATH"},
		"programs without servers":             {parts: fmt.Sprintf(secrets, ", allowExec: [sh], allowServers: []"), secret: plain, level: doctor.Warning, check: "servers", what: "clusters[].allowServers is missing", fix: "in clusters[].allowServers"},
		"a program whose credential could go anywhere": {parts: fmt.Sprintf(secrets, ", allowExec: [sh], allowServers: []"), level: doctor.Warning, check: "kubeconfig", what: "cluster west is not followed", fix: "allow its server or proxy in clusters[].allowServers",
			secret: func(h *hubServer) map[string][]byte { return map[string][]byte{"west": h.withProgram("sh")} }},
		"a server that is not allowed": {parts: fmt.Sprintf(secrets, ", allowServers: [\"*.example\"]"), secret: plain, level: doctor.Warning, check: "kubeconfig", what: "127.0.0.1 is a loopback, link-local or unspecified address", fix: "allow its server or proxy in clusters[].allowServers"},
		"a rotten kubeconfig": {parts: fmt.Sprintf(secrets, ""), level: doctor.Warning, check: "kubeconfig", what: "it is not a kubeconfig", fix: "correct the kubeconfig",
			secret: func(*hubServer) map[string][]byte { return map[string][]byte{"west": []byte("rotten")} }},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHub(t), t.TempDir()
			if tc.secret != nil {
				h.secret("one", tc.secret(h))
			}
			cfg := h.parse(dir, tc.parts)
			if tc.prepare != nil {
				tc.prepare(h, dir)
			}
			found := doctor.Run(t.Context(), await.Limit, Probe(cfg))
			if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
				return f.Clusters == "fleet" && f.Level == tc.level && f.Check == tc.check && strings.Contains(f.What+" | "+f.Why, tc.what) && strings.Contains(f.Fix, tc.fix)
			}) {
				t.Errorf("%+v", found)
			}
			if tc.level == doctor.OK && doctor.Worst(found) != doctor.OK {
				t.Errorf("not all is well: %+v", found)
			}
		})
	}
}

func TestDoctorNamesAFewClustersAndCountsTheRest(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	good, bad := map[string][]byte{}, map[string][]byte{}
	for i := range 20 {
		good[fmt.Sprintf("good%02d", i)], bad[fmt.Sprintf("bad%02d", i)] = h.kubeconfig("t"), []byte("rotten")
	}
	h.secret("good", good)
	h.secret("bad", bad)
	found := doctor.Run(t.Context(), await.Limit, Probe(h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}")))
	text := fmt.Sprint(found)
	if len(found) != 8 || !strings.Contains(text, "15 more are not followed") || !strings.Contains(text, "found: good00, good01, good02, good03, good04 and 15 more") {
		t.Errorf("%d findings: %s", len(found), text)
	}
}

func TestDoctorTellsThatTheClustersOfBeforeCanNotBeRead(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a link":      func(path string) error { return os.Symlink("elsewhere", path) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"damaged":     func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"others can write to it": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("[]"), 0o600), os.Chmod(path, 0o622))
		},
	} {
		dir := t.TempDir()
		cfg := &config.Config{State: config.State{Dir: dir}}
		if found := doctor.Run(t.Context(), await.Limit, Probe(cfg)); len(found) > 0 {
			t.Errorf("before: %+v", found)
		}
		path := filepath.Join(dir, memoryName)
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		found := doctor.Run(t.Context(), await.Limit, Probe(cfg))
		if len(found) != 1 || found[0].Level != doctor.Warning || found[0].Clusters != "" || !strings.Contains(found[0].Why, memoryName) || !strings.Contains(found[0].Fix, "chown -R USER "+dir) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
