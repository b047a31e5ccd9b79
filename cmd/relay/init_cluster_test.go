package main

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// inits runs relay init, and returns what it prints.
func inits(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root, out := newRoot(), &bytes.Buffer{}
	root.SetArgs(append([]string{"init"}, args...))
	root.SetOut(out)
	root.SetErr(&bytes.Buffer{})
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestInitPrintsTheRightsOfAReader: those of deploy, and the one to ask for tokens of the account.
func TestInitPrintsTheRightsOfAReader(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, fakekube.New().Start(t), "t")
	got, err := inits(t, "--cluster", "east", "--from-kubeconfig", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	deployed, err := os.ReadFile("../../deploy/kubernetes/rbac-remote-reader.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, objects, _ := strings.Cut(string(deployed), "\napiVersion"); objects == "" || !strings.Contains(got, "\napiVersion"+objects) {
		t.Errorf("it lacks what deploy/kubernetes/rbac-remote-reader.yaml has:\n%s", got)
	}
	file := filepath.Join(dir, "rights.yaml")
	if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
		t.Fatal(err)
	}
	if rights := fakekube.ReadRights(t, file, "relay-reader-tokens").Unused(""); !slices.Equal(rights, []string{"create /serviceaccounts/token relay-reader"}) {
		t.Errorf("the right for tokens is %q", rights)
	}
	other, err := inits(t, "--cluster", "east", "--from-kubeconfig", kubeconfig, "--namespace", "mesh")
	if err != nil || strings.Contains(other, "namespace: istio-system") || strings.Count(other, "namespace: mesh") != 6 {
		t.Errorf("with a namespace: %v\n%s", err, other)
	}
}

// TestInitPrintsTheKubeconfigOfACluster: with the token that the cluster made, for found clusters and for files.
func TestInitPrintsTheKubeconfigOfACluster(t *testing.T) {
	s := fakekube.New()
	api := s.Start(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, api, "t")
	s.Set(func() { s.Token = "t" })
	const missing = "cluster east has no token for a relay yet: relay init --cluster east | kubectl --context east apply -f -"
	secret := func(args ...string) (string, error) {
		return inits(t, append([]string{"--cluster", "east", "--secret", "--from-kubeconfig", kubeconfig}, args...)...)
	}
	if _, err := secret(); err == nil || err.Error() != missing {
		t.Errorf("without a Secret: %v", err)
	}
	data := map[string]any{}
	s.Put("/secrets", map[string]any{"metadata": map[string]any{"namespace": "istio-system", "name": "relay-reader-token"}, "data": data})
	if _, err := secret(); err == nil || err.Error() != missing {
		t.Errorf("with an empty Secret: %v", err)
	}
	s.Set(func() {
		data["token"] = base64.StdEncoding.EncodeToString([]byte("of.the.reader"))
		data["ca.crt"] = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}))
	})
	for name, tc := range map[string]struct {
		args       []string
		id, server string
	}{
		"by itself": {nil, "east", api.URL},
		"named":     {[]string{"--name", "eu.1", "--server", "https://east.example:6443"}, "eu.1", "https://east.example:6443"},
	} {
		text, err := secret(tc.args...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var o struct {
			Kind     string
			Metadata struct {
				Name, Namespace string
				Labels          map[string]string
			}
			StringData map[string]string `yaml:"stringData"`
		}
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found := o.StringData[tc.id]
		if o.Kind != "Secret" || o.Metadata.Name != "relay-cluster-"+tc.id || o.Metadata.Namespace != "istio-system" || o.Metadata.Labels["meshrelay.io/cluster"] != "true" {
			t.Errorf("%s: %+v", name, o)
		}
		if err := apiserver.CheckKubeconfig([]byte(found), apiserver.Trust{AllowServers: []string{"127.0.0.1", "*.example"}}); err != nil {
			t.Errorf("%s: it can not be used: %v\n%s", name, err, found)
		}
		for _, want := range []string{fmt.Sprintf("server: %q", tc.server), `token: "of.the.reader"`} {
			if !strings.Contains(found, want) {
				t.Errorf("%s: it lacks %s:\n%s", name, want, found)
			}
		}
	}
	for line, want := range map[string]string{
		"--cluster absent --from-kubeconfig KUBE":                              `context "absent" does not exist`,
		"--cluster east --from-kubeconfig KUBE --name A/b":                     "use other --name",
		"--cluster east --from-kubeconfig KUBE --namespace A":                  "use other --name and --namespace",
		"--cluster east --from-kubeconfig KUBE --file configs":                 "[cluster file]",
		"--cluster east --from-kubeconfig KUBE --istiod a:1":                   "[cluster istiod]",
		"--cluster east --from-kubeconfig KUBE --secret -o secret.yaml":        "[cluster output]",
		"--secret --from-kubeconfig KUBE -o -":                                 "--secret belongs to --cluster",
		"--cluster east --from-kubeconfig KUBE.absent":                         "no such file",
		"--cluster east --from-kubeconfig KUBE --secret --namespace forbidden": "get secrets forbidden/relay-reader-token",
	} {
		s.Set(func() {
			if s.Token = "t"; strings.Contains(line, "forbidden") {
				s.Token = "another"
			}
		})
		if out, err := inits(t, strings.Fields(strings.ReplaceAll(line, "KUBE", kubeconfig))...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %v, want %s; it prints %q", line, err, want, out)
		}
	}
}
