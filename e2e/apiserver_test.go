package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// define has an API server serve a kind. It wants to know whether the definition of a kind of
// Kubernetes, such as those of the Gateway API, is approved.
func (k *kubernetes) define(group, kind, plural, version string) {
	k.t.Helper()
	k.apply(fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s, annotations: {api-approved.kubernetes.io: "unapproved, of a test"}}
spec:
  group: %[1]s
  names: {kind: %[2]s, listKind: %[2]sList, plural: %[3]s, singular: %[4]s}
  scope: Namespaced
  versions:
  - name: %[5]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, kind, plural, strings.ToLower(kind), version))
	eventually(k.t, plural+" are served", func() error {
		return k.do("GET", "/apis/"+group+"/"+version+"/"+plural, "", nil)
	})
}

// entry creates or changes a ServiceEntry.
func (k *kubernetes) entry(name, host string) {
	k.t.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	k.apply(fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: %s, name: %s}, spec: {hosts: [%s]}}", namespace, name, host))
}

// relayKubeconfig writes a kubeconfig of the relay's identity.
func (k *kubernetes) relayKubeconfig() string {
	k.t.Helper()
	path := filepath.Join(filepath.Dir(k.kubeconfig), "relay.kubeconfig")
	writeFile(k.t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: tls.crt}}]
users: [{name: relay, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: relay}}]
current-context: c
`, k.url, relayToken))
	return path
}

// TestAPIServersAreFederated has one relay mirror two real API servers, and another one follow it
// over a delta stream. Whatever happens to the servers, nothing disappears but what they delete.
func TestAPIServersAreFederated(t *testing.T) {
	t.Parallel()
	east, west := newKubernetes(t, "east"), newKubernetesWith(t, "west", "RBAC")
	for _, k := range []*kubernetes{east, west} {
		k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
		k.createNamespace("shop")
	}
	west.createNamespace("pay")
	const role = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: relay-source}, rules: [
{apiGroups: [networking.istio.io], resources: [serviceentries], verbs: [list, watch]},
{apiGroups: [""], resources: [namespaces], resourceNames: [kube-system], verbs: [get]}]}`
	const binding = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: relay-source},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: relay-source}, subjects: [{kind: User, name: relay, apiGroup: rbac.authorization.k8s.io}]}`
	west.apply(role)
	west.apply(binding)
	for i := range 12 {
		east.entry(fmt.Sprintf("shop/east-%02d", i), "east.example")
		west.entry(fmt.Sprintf("pay/west-%02d", i), "west.example")
	}
	east.entry("shop/both", "first.example")
	west.entry("shop/both", "second.example")

	hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
- {name: west, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, east.kubeconfig, west.relayKubeconfig())).start().ready()
	leaf := newRelay(t, "leaf", []string{"hub=" + hub.xds}).start().ready()
	has := func(what string, want int, texts ...string) {
		t.Helper()
		eventually(t, what, func() error {
			c, err := configz(leaf.admin)
			if err != nil {
				return err
			}
			if len(c) != want {
				return fmt.Errorf("%d resources, want %d", len(c), want)
			}
			all := fmt.Sprint(c)
			for _, text := range texts {
				if !strings.Contains(all, text) {
					return fmt.Errorf("%q is not there", text)
				}
			}
			return nil
		})
	}
	has("both clusters are merged", 25, "first.example", "shop/east-11", "pay/west-11")
	if strings.Contains(fmt.Sprint(leaf.configs()), "second.example") {
		t.Error("the second upstream has taken the place of the first")
	}
	east.entry("shop/new", "new.example")
	has("a new object follows", 26, "new.example")
	east.delete("networking.istio.io/v1", "ServiceEntry", "shop", "new")
	has("a deleted object goes", 25)

	east.server.kill()
	eventually(t, "the relay tells that east is lost", func() error {
		out, _ := hub.command("status")
		if !strings.Contains(out, "disconnected") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	west.entry("pay/west-00", "changed.example")
	has("the other cluster goes on, and nothing is gone", 25, "changed.example", "shop/east-00")
	east.serve()
	east.entry("shop/back", "back.example")
	has("east follows again", 26, "back.example")

	// Streams go on when permissions are withdrawn; a server that starts asks for them anew.
	west.do("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/relay-source", "", nil) //nolint:errcheck // the next step shows it
	west.server.kill()
	west.serve()
	eventually(t, "the relay tells that west denies it", func() error {
		out, _ := hub.command("status")
		if !strings.Contains(out, "denied") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	has("nothing is gone", 26, "changed.example", "pay/west-11")
	west.apply(binding)
	west.entry("pay/late", "late.example")
	has("west follows again", 27, "late.example")

	// A definition that is deleted takes its objects one by one: the guard lets ten of them go within
	// a minute, and holds the others.
	hub.pause(func() { // on a slow machine it would take minutes
		const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/serviceentries.networking.istio.io"
		if err := west.do("DELETE", definition, "", nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the definition is gone", func() error {
			if err := west.do("GET", definition, "", nil); err == nil || !strings.Contains(err.Error(), "404") {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	})
	eventually(t, "the guard holds", func() error {
		out, _ := hub.command("upstreams", "--held", "west")
		if !strings.Contains(out, "deletions of 14 resources") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if all := leaf.configs(); len(all) < 27-10 || !strings.Contains(fmt.Sprint(all), "shop/east-11") {
		t.Errorf("a deleted definition has left %d of 27 resources", len(all))
	}
}

// TestNamespacesAreChosenAndDefinitionsComeLater has a relay mirror a real API server that serves no
// Istio kind at first, and namespaces whose labels change.
func TestNamespacesAreChosenAndDefinitionsComeLater(t *testing.T) {
	t.Parallel()
	namespacesAreChosen(t, newKubernetes(t, "choice"))
}

// TestServersWithoutStreamingListsAreMirroredAlike: they came with Kubernetes 1.32, or later.
func TestServersWithoutStreamingListsAreMirroredAlike(t *testing.T) {
	t.Parallel()
	namespacesAreChosen(t, newKubernetesWith(t, "pages", "AlwaysAllow", "--feature-gates=WatchList=false"))
}

func namespacesAreChosen(t *testing.T, k *kubernetes) {
	label := func(namespace, value string) {
		t.Helper()
		k.apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {mesh: %q}}}", namespace, value))
	}
	label("shop", "on")
	label("pay", "off")
	hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: cluster, kubernetes: {cluster: {kubeconfig: %q}, discoverySelectors: [mesh=on]}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig)).start().ready()
	serves := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, func() error {
			c, err := configz(hub.admin)
			if err != nil {
				return err
			}
			all := fmt.Sprint(c)
			for _, host := range []string{"shop.example", "pay.example"} {
				if is := strings.Contains(all, host); is != slices.Contains(want, host) {
					return fmt.Errorf("%s is there: %v", host, is)
				}
			}
			return nil
		})
	}
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	k.entry("shop/a", "shop.example")
	k.entry("pay/b", "pay.example")
	serves("a kind that came later is there, of one namespace", "shop.example")
	label("pay", "on")
	serves("the other namespace is chosen", "shop.example", "pay.example")
	label("shop", "off")
	serves("the first one is not any more", "pay.example")
	k.server.kill()
	k.serve()
	label("shop", "on")
	serves("a server that was killed goes on", "shop.example", "pay.example")
}
