package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/internal/testing/fakekube"
)

func TestPromoteAndAdoptChangeNothingUnlessAsked(t *testing.T) {
	s := fakekube.New()
	s.Define("coordination.k8s.io", "Lease", "leases", "v1")
	s.Selects = true
	s.Put("networking.istio.io/serviceentries", fakekube.Object("shop", "a", `{}`, `{"metadata":{"labels":{"meshrelay.io/sink":"dr"}}}`))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, s.Start(t), "t")
	file := filepath.Join(t.TempDir(), "relay.yaml")
	err := os.WriteFile(file, fmt.Appendf(nil, `upstreams: [{name: east, xds: {addresses: ["127.0.0.1:1"], tls: {caFile: absent, serverName: x}}}]
views: [{name: all}]
sinks: [{name: dr, namespace: mesh, view: all, writesPerSecond: 7, cluster: {kubeconfig: %q}}]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
`, kubeconfig), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	version := s.Version
	for line, want := range map[string]string{
		"promote dr --kubeconfig KUBE":                                "sink dr would be promoted\nnothing was changed: use --yes to change it\nexit code 2",
		"promote dr --kubeconfig KUBE --dry-run":                      "sink dr would be promoted\n",
		"promote dr -c FILE --dry-run":                                "sink dr would be promoted\n",
		"adopt dr -c FILE --dry-run":                                  "sink dr would be the relay's again, frozen\n",
		"adopt east -c FILE --yes":                                    "has no sink \"east\"",
		"adopt dr -c FILE --yes --kubeconfig KUBE":                    "can not be combined",
		"promote other --kubeconfig KUBE --dry-run":                   "no object has the label meshrelay.io/sink=other",
		"adopt other --kubeconfig KUBE --yes":                         "no object has the label meshrelay.io/sink=other",
		"disown dr --kubeconfig KUBE --yes":                           "sink dr is not promoted, and its relay would label the objects again: run relay sink promote dr first",
		"promote ../x --kubeconfig KUBE --yes":                        "write 1 to 40 lower-case letters",
		"promote dr --kubeconfig KUBE.absent --yes":                   "no such file",
		"disown dr --kubeconfig KUBE --yes --writes-per-second -1":    "--writes-per-second: -1: want 1 or more",
		"promote dr --kubeconfig KUBE --context absent --yes":         "absent",
		"promote --kubeconfig KUBE":                                   "missing NAME: relay sink promote NAME",
		"promote dr --kubeconfig KUBE --yes --reason " + long("x", 9): "--reason: ",
	} {
		root, out := newRoot(), &bytes.Buffer{}
		root.SetArgs(append([]string{"sink"}, strings.Fields(strings.NewReplacer("KUBE", kubeconfig, "FILE", file).Replace(line))...))
		root.SetOut(out)
		root.SetErr(out)
		err := root.ExecuteContext(t.Context())
		if err != nil {
			out.WriteString(err.Error())
		}
		if got := out.String(); !strings.Contains(got, want) || (err == nil) != strings.HasSuffix(want, "\n") && !strings.Contains(line, "json") {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if s.Version != version {
		t.Error("a command has changed something")
	}
}

// TestDisownTellsWhatWasDoneBeforeAnError, and that the next run does the rest.
func TestDisownTellsWhatWasDoneBeforeAnError(t *testing.T) {
	s := fakekube.New()
	s.Define("coordination.k8s.io", "Lease", "leases", "v1")
	s.Selects = true
	for _, name := range []string{"a", "b"} {
		s.Put("networking.istio.io/serviceentries", fakekube.Object("shop", name, `{}`, `{"metadata":{"labels":{"meshrelay.io/sink":"dr"}}}`))
	}
	s.Put("coordination.k8s.io/leases", fakekube.Object("istio-system", "meshrelay-sink-dr", `{"holderIdentity":"promoted"}`))
	patches := 0
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			patches++
		}
		if patches > 1 {
			fakekube.Fail(w, http.StatusForbidden, "Forbidden")
		}
		return patches > 1
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, s.Start(t), "t")
	root, out := newRoot(), &bytes.Buffer{}
	root.SetArgs([]string{"sink", "disown", "dr", "--yes", "--kubeconfig", kubeconfig})
	root.SetOut(out)
	root.SetErr(out)
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(out.String(), "1 of 2 objects disowned before the error. The next run does the rest") {
		t.Errorf("%v: %s", err, out)
	}
}

// long returns a text of 2 to the power of n bytes.
func long(text string, n int) string { return strings.Repeat(text, 1<<n) }
