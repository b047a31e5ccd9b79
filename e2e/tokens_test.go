package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWhatInitPrintsIsEnoughForTheTokensOfAnIstiod: an API server that asks RBAC takes it, and gives the relay tokens that the
// newest istiod accepts from its root namespace. The identity may do nothing else than read, and ask for its own tokens.
func TestWhatInitPrintsIsEnoughForTheTokensOfAnIstiod(t *testing.T) {
	t.Parallel()
	k, secure, dir := newKubernetesWith(t, "east", "RBAC"), freePort(t), t.TempDir()
	k.createNamespace("istio-system")
	k.defineKinds("newest")
	east := newIstiod(t, "east")
	east.args = append(east.args, "--registries=Kubernetes", "--kubeconfig", k.kubeconfig, "--secureGRPCAddr", secure)
	east.newest().env = append(east.env, "ENABLE_XDS_API_GENERATOR_AUTH=true", "ENABLE_CA_SERVER=true")
	east.write(t, "a", "a.example")
	east.start().ready()
	root := filepath.Join(dir, "root.pem")
	eventually(t, "the root is in its ConfigMap", func() error {
		answer, err := k.ask(http.MethodGet, "/api/v1/namespaces/istio-system/configmaps/istio-ca-root-cert", "", nil)
		var m struct{ Data map[string]string }
		if err == nil {
			err = json.Unmarshal(answer, &m)
		}
		writeFile(t, root, m.Data["root-cert.pem"])
		return err
	})

	initiate := func(args ...string) string {
		t.Helper()
		file, err := os.ReadFile(k.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		var now struct {
			Context string `json:"current-context"`
		}
		if err := yaml.Unmarshal(file, &now); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"init", "--from-kubeconfig", k.kubeconfig, "--cluster", now.Context, "--name", "east"}, args...)
		out, err := exec.CommandContext(t.Context(), binary(t, "RELAY_BIN", "../bin/relay"), args...).Output()
		if err != nil {
			t.Fatalf("relay %s: %v", strings.Join(args, " "), err)
		}
		return string(out)
	}
	for _, doc := range strings.Split(initiate(), "\n---\n") {
		k.apply(doc)
	}
	// A cluster has a controller that does this.
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(k.kubeconfig), "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	k.apply(fmt.Sprintf(`{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {namespace: istio-system, name: relay-reader-token,
  annotations: {kubernetes.io/service-account.name: relay-reader}}, data: {token: %s, ca.crt: %s}}`,
		base64.StdEncoding.EncodeToString([]byte(k.token("istio-system", "relay-reader"))), base64.StdEncoding.EncodeToString(ca)))
	var secret struct{ StringData map[string]string }
	if err := yaml.Unmarshal([]byte(initiate("--secret")), &secret); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	writeFile(t, kubeconfig, secret.StringData["east"])

	const upstreams = `upstreams:
- {name: east, xds: {addresses: [%q], tls: {caFile: %q, serverName: istiod.istio-system.svc}, token: {cluster: {kubeconfig: %q}, serviceAccount: %s}}}
`
	r := newRelayOf(t, "hub", fmt.Sprintf(upstreams, secure, root, kubeconfig, "relay-reader")).start().ready()
	eventually(t, "what the istiod has is served", func() error {
		if c := r.configs()["networking.istio.io/ServiceEntry shop/a"]; !strings.Contains(c, "a.example") {
			return fmt.Errorf("it is %q", c)
		}
		return nil
	})
	if out, _ := r.command("status"); strings.Contains(out, "token") {
		t.Errorf("the status has a problem:\n%s", out)
	}
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: istiod}}")
	other := newRelayOf(t, "other", fmt.Sprintf(upstreams, secure, root, kubeconfig, "istiod")).start()
	eventually(t, "tokens of another account are refused", func() error {
		if out, _ := other.command("status"); !strings.Contains(out, "no new token from the cluster of "+kubeconfig) || !strings.Contains(out, "serviceaccounts/token") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
