package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// remoteSecret returns what "istioctl create-remote-secret" writes for a cluster, with a token of it.
func (k *kubernetes) remoteSecret(token string) string {
	k.t.Helper()
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(k.kubeconfig), "tls.crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	// The controller that would fill in the secret of a service account does not run.
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: istio-reader-service-account}}")
	k.apply(fmt.Sprintf(`{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token,
metadata: {namespace: istio-system, name: reader, annotations: {kubernetes.io/service-account.name: istio-reader-service-account}},
data: {token: %s, ca.crt: %s}}`, base64.StdEncoding.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString(ca)))
	return istioctl(k.t, "--kubeconfig", k.kubeconfig, "create-remote-secret", "--name", k.name, "--create-service-account=false", "--secret-name", "reader")
}

// TestClustersOfRemoteSecretsAreFollowed has a relay find a real API server by the Secret that
// istioctl makes for it, in another one.
func TestClustersOfRemoteSecretsAreFollowed(t *testing.T) {
	t.Parallel()
	hub, east := newKubernetes(t, "hub"), newKubernetes(t, "east")
	east.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	for _, k := range []*kubernetes{hub, east} {
		k.createNamespace("istio-system")
	}
	east.createNamespace("shop")
	east.entry("shop/a", "a.example")
	r := relayOf(t, "relay", fmt.Sprintf(`clusters:
- name: fleet
  secrets: {cluster: {kubeconfig: %q}}
  allowServers: [127.0.0.0/8]
  upstream: {rewrite: {labels: {set: {found-in: "{cluster}"}}}}
state: {dir: DIR/state}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, hub.kubeconfig)).start().ready() // nobody waits for clusters
	serves := func(what string, want int, texts ...string) {
		t.Helper()
		eventually(t, what, func() error {
			c, err := configz(r.admin)
			if err != nil {
				return err
			}
			all := fmt.Sprint(c)
			for _, text := range texts {
				if !strings.Contains(all, text) {
					return fmt.Errorf("%q is not there", text)
				}
			}
			if len(c) != want {
				return fmt.Errorf("%d resources, want %d", len(c), want)
			}
			return nil
		})
	}
	shows := func(what string, texts ...string) {
		t.Helper()
		eventually(t, what, func() error {
			for _, text := range texts {
				if out, code := r.command("clusters", "-o", "json"); code != 0 || !strings.Contains(out, text) {
					return fmt.Errorf("%q is not in %s", text, out)
				}
			}
			return nil
		})
	}
	shows("the hub is read", `"readAt"`)
	serves("there is no cluster yet", 0)

	hub.apply(east.remoteSecret(adminToken))
	serves("its secret appears", 1, "a.example", "found-in")
	shows("it is found", `"origin": "secret istio-system/istio-remote-secret-east"`, `"state": "found"`)

	hub.apply(east.remoteSecret(relayToken))
	shows("its secret is rotated", `"rotations": 1`)
	eventually(t, "the new kubeconfig is used", func() error {
		if out, code := r.command("upstreams", "east", "-o", "json"); code != 0 || !strings.Contains(out, `"rotations": 1`) {
			return fmt.Errorf("not yet: %s", out)
		}
		return nil
	})
	east.entry("shop/b", "b.example")
	serves("it goes on", 2, "a.example", "b.example")

	hub.delete("v1", "Secret", "istio-system", "istio-remote-secret-east")
	shows("its secret is gone", `"state": "orphaned"`, `"removeAt"`)
	serves("what it gave stays", 2, "a.example", "b.example")
	east.entry("shop/c", "c.example")
	serves("it is followed meanwhile", 3, "c.example")
	if out, code := r.command("status"); code != 0 || !strings.Contains(out, "cluster east is orphaned since") {
		t.Error(out)
	}

	r.terminate()
	r.start().ready()
	serves("it stays over a restart", 3, "a.example", "b.example", "c.example")
	shows("and is shown", `"state": "orphaned"`)
	if out, code := r.command("release", "cluster/fleet/east"); code != 0 {
		t.Fatal(out)
	}
	serves("an operator removes it", 0)
}
