package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// applyFile applies the documents of a file.
func (k *kubernetes) applyFile(path string) {
	k.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, doc := range strings.Split(string(b), "\n---\n") {
		k.apply(doc)
	}
}

// token returns a token of a service account, as "kubectl create token" does.
func (k *kubernetes) token(namespace, account string) string {
	k.t.Helper()
	b, err := k.ask(http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", "application/json",
		[]byte(`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}`))
	if err != nil {
		k.t.Fatal(err)
	}
	var made struct{ Status struct{ Token string } }
	if err := json.Unmarshal(b, &made); err != nil || made.Status.Token == "" {
		k.t.Fatalf("%v: %s", err, b)
	}
	return made.Status.Token
}

// readerKubeconfig gives the API server the manifest for relays elsewhere, and writes a kubeconfig
// of the identity in it.
func (k *kubernetes) readerKubeconfig(path string) {
	k.t.Helper()
	k.createNamespace("istio-system")
	k.applyFile("../deploy/kubernetes/rbac-remote-reader.yaml")
	writeFile(k.t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: relay, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: relay}}]
current-context: c
`, k.url, filepath.Join(filepath.Dir(k.kubeconfig), "tls.crt"), k.token("istio-system", "relay-reader")))
}

// TestExampleKubernetes runs examples/kubernetes with two API servers that ask RBAC, and an istiod
// that reads from the relay.
func TestExampleKubernetes(t *testing.T) {
	t.Parallel()
	x := newExample(t, "kubernetes")
	for name, namespaces := range map[string][]string{"east": {"shop"}, "west": {"payments", "shop"}} {
		k := newKubernetesWith(t, name, "RBAC")
		k.defineIstio()
		k.readerKubeconfig(filepath.Join(x.dir, name+".kubeconfig"))
		for _, namespace := range namespaces {
			k.createNamespace(namespace)
		}
		files, err := filepath.Glob(filepath.Join(x.dir, name, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files of %s: %v", name, err)
		}
		for _, path := range files {
			k.applyFile(path)
		}
	}
	if out, err := x.command("validate", "-c", "relay.yaml"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	r := x.relay("relay.yaml").start().ready()
	consumer := newIstiod(t, "consumer", r.xds).start().ready()
	const net = "networking.istio.io/"
	want := []string{
		net + "DestinationRule shop/web", net + "ServiceEntry payments/cards", net + "ServiceEntry shop/carrier", net + "VirtualService shop/web",
		"security.istio.io/AuthorizationPolicy payments/shop-only",
	}
	eventually(t, "the istiod has what both clusters have", func() error {
		if got := slices.Sorted(maps.Keys(consumer.configs())); !slices.Equal(got, want) {
			return fmt.Errorf("the keys are %q, want %q", got, want)
		}
		return nil
	})
	x.shows(t, "explain")
	x.shows(t, "plan") // it asks the API servers itself
}

// TestRolesLetTheRelayReadAndNothingElse_K9 has the relay use each manifest that lets it read a cluster, on
// an API server that asks RBAC: every kind is followed, and the identity may do no more.
func TestRolesLetTheRelayReadAndNothingElse_K9(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "east", "RBAC")
	k.defineIstio()
	for _, namespace := range []string{"istio-system", "shop"} {
		k.createNamespace(namespace)
	}
	k.entry("shop/one", "one.example")
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: relay}}")
	for manifest, account := range map[string]string{
		"rbac-remote-reader.yaml": "relay-reader", // which the manifest makes
		"rbac-source.yaml":        "relay",        // that of the pods, which relay.yaml makes
	} {
		t.Run(manifest, func(t *testing.T) {
			k.applyFile("../deploy/kubernetes/" + manifest)
			k.letsReadAndNothingElse(t, account)
		})
	}
}

// letsReadAndNothingElse runs a relay with a service account in istio-system, and looks at what that may do.
func (k *kubernetes) letsReadAndNothingElse(t *testing.T, account string) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	k.tokenKubeconfig(kubeconfig, k.token("istio-system", account))
	r := relayOf(t, "reader", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, kubeconfig)).start().ready()
	out, code := r.command("upstreams", "east")
	if code != 0 || strings.Contains(out, "denied") || strings.Contains(out, "may not") || len(r.configs()) != 1 {
		t.Errorf("exit code %d: not everything may be read:\n%s", code, out)
	}
	if !k.allowed(account, "watch", "networking.istio.io", "virtualservices", "") {
		t.Error("VirtualServices may not be watched")
	}
	for _, no := range [][3]string{
		{"list", "", "secrets"}, {"get", "", "secrets"}, {"list", "", "configmaps"}, {"list", "", "pods"}, {"list", "", "namespaces"}, {"get", "", "namespaces"},
		{"get", "networking.istio.io", "virtualservices"}, {"create", "networking.istio.io", "virtualservices"}, {"update", "networking.istio.io", "serviceentries"},
		{"patch", "networking.istio.io", "serviceentries"}, {"delete", "networking.istio.io", "serviceentries"}, {"deletecollection", "security.istio.io", "authorizationpolicies"},
		{"create", "", "serviceaccounts/token"}, {"escalate", "rbac.authorization.k8s.io", "clusterroles"},
	} {
		for _, namespace := range []string{"shop", "istio-system", ""} {
			if k.allowed(account, no[0], no[1], no[2], namespace) {
				t.Errorf("the relay may %s %s of %q in %q", no[0], no[2], no[1], namespace)
			}
		}
	}
}
