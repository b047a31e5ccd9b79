package e2e

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// leeway is for how long a server takes a token that has expired.
const leeway = time.Minute

// until returns a token as another one, but for when it expires. TokenRequest gives none that lasts less
// than ten minutes, so it is signed here, with the key of the server.
func (k *kubernetes) until(token string, end time.Time) string {
	k.t.Helper()
	dir := filepath.Dir(k.kubeconfig)
	text, err := os.ReadFile(filepath.Join(dir, "tls.key"))
	if err != nil {
		k.t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		k.t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]any
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	claims["exp"] = end.Unix()
	if body, err = json.Marshal(claims); err != nil {
		k.t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(body)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		k.t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestATokenThatExpiresRemovesNothing_K4 has the token of a relay expire while everything runs: nobody
// restarts, and nothing is cut. What it gave stays, the relay tells that the server does not accept it, and
// a new token in the kubeconfig is enough.
func TestATokenThatExpiresRemovesNothing_K4(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "east", "RBAC")
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	k.createNamespace("shop")
	for i := range 12 {
		k.entry(fmt.Sprintf("shop/entry-%02d", i), "shop.example")
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	k.readerKubeconfig(kubeconfig)
	r := relayOf(t, "reader", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, kubeconfig))
	// The token lasts until the relay has started, and everything is mirrored: if need be, the next one lasts for longer.
	var end time.Time
	for lasts := 10 * time.Second; ; lasts *= 2 {
		end = time.Now().Add(lasts)
		k.tokenKubeconfig(kubeconfig, k.until(k.token("istio-system", "relay-reader"), end.Add(-leeway)))
		r.start()
		eventually(t, "the relay serves, or its token has expired", func() error {
			if code, body := r.readiness(); code != http.StatusOK && time.Now().Before(end) {
				return fmt.Errorf("%d: %s", code, body)
			}
			return nil
		})
		if all, err := configz(r.admin); err == nil && len(all) == 12 && time.Now().Before(end) {
			break
		}
		if lasts > patience {
			t.Fatalf("it does not serve everything within %v", lasts)
		}
		r.kill()
	}
	follower := dial(t, r.xds).follow("networking.istio.io/v1/ServiceEntry", nil)
	eventually(t, "the relay tells that its token is not accepted any more", func() error {
		out, _ := r.command("upstreams", "east")
		if !strings.Contains(out, "denied") || !strings.Contains(out, "does not accept the relay's identity") {
			return fmt.Errorf("it tells\n%s", out)
		}
		return nil
	})
	if time.Now().Before(end) {
		t.Error("it was denied before the token had expired")
	}
	r.logs("API server can not be used, last content served", "renew the token or certificate in "+kubeconfig)
	if n := len(r.configs()); n < 12 {
		t.Errorf("%d of 12 resources are left", n)
	}
	k.tokenKubeconfig(kubeconfig, k.token("istio-system", "relay-reader"))
	k.entry("shop/late", "late.example")
	eventually(t, "a new token is enough", func() error {
		out, code := r.command("status", "--exit-code")
		if all := r.configs(); len(all) != 13 || code != 0 {
			return fmt.Errorf("%d resources, exit code %d:\n%s", len(all), code, out)
		}
		return nil
	})
	if events := follower.events(); strings.Contains(events, "-shop/") {
		t.Errorf("a client was told that something is gone: %s", events)
	}
}

// allowed returns whether a service account in istio-system may do something.
func (k *kubernetes) allowed(account, verb, group, resource, namespace string) bool {
	k.t.Helper()
	b, err := k.ask(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", fmt.Appendf(nil,
		`{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "system:serviceaccount:istio-system:%s",
"groups": ["system:authenticated", "system:serviceaccounts"], "resourceAttributes": {"verb": %q, "group": %q, "resource": %q, "namespace": %q}}}`, account, verb, group, resource, namespace))
	var answer struct{ Status struct{ Allowed bool } }
	if err == nil {
		err = json.Unmarshal(b, &answer)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return answer.Status.Allowed
}

// tokenKubeconfig writes a kubeconfig with a token, which has all in itself as those of Secrets must.
func (k *kubernetes) tokenKubeconfig(path, token string) string {
	k.t.Helper()
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(k.kubeconfig), "tls.crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: relay, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: relay}}]
current-context: c
`, k.url, base64.StdEncoding.EncodeToString(ca), token)
	writeFile(k.t, path, text)
	return text
}

// TestTheRoleOfAHubLetsTheRelayFindClustersAndNothingElse_K9 has a relay find a cluster with the
// manifest for hubs, on an API server that asks RBAC, by a Secret.
func TestTheRoleOfAHubLetsTheRelayFindClustersAndNothingElse_K9(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "hub", "RBAC")
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	for _, namespace := range []string{"istio-system", "shop"} {
		k.createNamespace(namespace)
	}
	k.entry("shop/a", "a.example")
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: relay}}")
	k.applyFile("../deploy/kubernetes/rbac-hub.yaml")
	k.applyFile("../deploy/kubernetes/rbac-remote-reader.yaml")
	dir := t.TempDir()
	hub := filepath.Join(dir, "hub.kubeconfig")
	k.tokenKubeconfig(hub, k.token("istio-system", "relay"))
	r := relayOf(t, "relay", fmt.Sprintf(`clusters:
- {name: fleet, secrets: {cluster: {kubeconfig: %[1]q}}, allowServers: [127.0.0.0/8]}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, hub)).start().ready()
	shows := func(what string, texts ...string) {
		t.Helper()
		eventually(t, what, func() error {
			out, code := r.command("clusters", "-o", "json")
			for _, text := range texts {
				if code != 0 || strings.Count(out, text) == 0 {
					return fmt.Errorf("%q is not in %s", text, out)
				}
			}
			if strings.Contains(out, `"error"`) {
				return fmt.Errorf("it can not be read: %s", out)
			}
			return nil
		})
	}
	eventually(t, "the Secrets can be read", func() error {
		if out, _ := r.command("clusters", "-o", "json"); strings.Count(out, `"readAt"`) != 1 {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: istio-system, name: east, labels: {istio/multiCluster: \"true\"}}, data: {east: %s}}",
		base64.StdEncoding.EncodeToString([]byte(k.tokenKubeconfig(filepath.Join(dir, "east"), k.token("istio-system", "relay-reader"))))))
	shows("the Secret is noticed", `"origin": "secret istio-system/east"`, `"state": "found"`)
	eventually(t, "the cluster is mirrored", func() error {
		if all := r.configs(); len(all) != 1 {
			out, _ := r.command("upstreams", "east")
			return fmt.Errorf("%d resources:\n%s", len(all), out)
		}
		return nil
	})
	if !k.allowed("relay", "list", "", "secrets", "istio-system") {
		t.Error("the role does not grant what it is for")
	}
	for _, no := range [][4]string{
		{"get", "", "secrets", "istio-system"}, {"list", "", "secrets", "shop"}, {"list", "", "secrets", ""}, {"create", "", "secrets", "istio-system"},
		{"update", "", "secrets", "istio-system"}, {"delete", "", "secrets", "istio-system"}, {"list", "", "configmaps", "istio-system"},
		{"list", "networking.istio.io", "serviceentries", "shop"}, {"create", "", "serviceaccounts/token", "istio-system"},
	} {
		if k.allowed("relay", no[0], no[1], no[2], no[3]) {
			t.Errorf("the hub's identity may %s %s of %q in %q", no[0], no[2], no[1], no[3])
		}
	}
}

// TestRolesOfNamespacesAreEnough_K2 gives a relay rights in two namespaces and nowhere else: no kind
// may be listed in all, and not even the name of the cluster may be read.
func TestRolesOfNamespacesAreEnough_K2(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "east", "RBAC")
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	k.define("networking.istio.io", "VirtualService", "virtualservices", "v1")
	role := func(namespace string) {
		t.Helper()
		k.apply(fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: %s, name: relay}, rules: [
{apiGroups: [networking.istio.io], resources: [serviceentries, virtualservices], verbs: [list, watch]}]}`, namespace))
		k.apply(fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: %s, name: relay},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: relay}, subjects: [{kind: User, name: relay, apiGroup: rbac.authorization.k8s.io}]}`, namespace))
	}
	for _, namespace := range []string{"shop", "pay", "other"} {
		k.createNamespace(namespace)
		k.entry(namespace+"/a", namespace+".example")
	}
	role("shop")
	role("pay")
	config := fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}, namespaces: [shop, pay]}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.relayKubeconfig())
	r := relayOf(t, "reader", config).start().ready()
	has := func(what string, want int, lacks string) {
		t.Helper()
		eventually(t, what, func() error {
			out, _ := r.command("upstreams", "east")
			if all := r.configs(); len(all) != want || strings.Contains(fmt.Sprint(all), lacks) {
				return fmt.Errorf("%d resources, want %d: %v\n%s", len(all), want, all, out)
			}
			return nil
		})
	}
	has("both namespaces are mirrored, and no other one", 2, "other.example")
	if out, code := r.command("upstreams", "east"); code != 0 || strings.Contains(out, "denied") {
		t.Errorf("something is denied:\n%s", out)
	}
	k.entry("shop/b", "b.example")
	has("a new object follows", 3, "other.example")
	k.delete("networking.istio.io/v1", "ServiceEntry", "shop", "a")
	has("a deleted one goes", 2, "shop.example")

	// The rights in one of them are withdrawn: what it has stays, and the other one goes on.
	if err := k.do(http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/namespaces/pay/rolebindings/relay", "", nil); err != nil {
		t.Fatal(err)
	}
	k.server.kill()
	k.serve()
	eventually(t, "the relay names the namespace that it may not read", func() error {
		out, _ := r.command("upstreams", "east", "-o", "json")
		if !strings.Contains(out, `"state": "denied"`) || !strings.Contains(out, `"namespace": "pay"`) {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	k.entry("shop/c", "c.example")
	has("the other namespace goes on, and nothing is gone", 3, "other.example")
	if !strings.Contains(fmt.Sprint(r.configs()), "pay.example") {
		t.Error("what a namespace had that may not be read any more is gone")
	}
}
