package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestAConditionTellsWhoAppliesThatItHasArrived: a relay with the rights that the documents name writes it into the
// status of a real API server, and "relay wait" waits for the same.
func TestAConditionTellsWhoAppliesThatItHasArrived(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "reported", "RBAC")
	k.defineIstio()
	k.createNamespace("shop")
	k.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: relay-status}, rules: [
{apiGroups: [networking.istio.io], resources: [serviceentries], verbs: [get, list, watch]},
{apiGroups: [networking.istio.io], resources: [serviceentries/status], verbs: [patch]},
{apiGroups: [""], resources: [namespaces], resourceNames: [kube-system], verbs: [get]}]}`)
	k.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: relay-status},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: relay-status}, subjects: [{kind: User, name: relay, apiGroup: rbac.authorization.k8s.io}]}`)
	k.entry("shop/a", "a.example")
	hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: reported, kubernetes: {cluster: {kubeconfig: %q}, status: meshrelay.io/Distributed}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.relayKubeconfig())).start().ready()
	newRelay(t, "leaf", []string{"hub=" + hub.xds}).start().ready()
	const path = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries/a"
	has := func(generation int) {
		t.Helper()
		eventually(t, "the condition is there", func() error {
			text, err := k.ask("GET", path, "", nil)
			if err != nil {
				return err
			}
			for _, part := range []string{`"type":"meshrelay.io/Distributed"`, `"status":"True"`, `"message":"all clients have it"`, fmt.Sprintf(`"observedGeneration":%d`, generation)} {
				if !strings.Contains(string(text), part) {
					log := hub.must(0, "explain se a -n shop")
					return fmt.Errorf("%s is not in %s\n%s", part, text, log)
				}
			}
			return nil
		})
	}
	has(1)
	k.entry("shop/a", "b.example")
	has(2)
	hub.must(0, "wait se a -n shop --for distributed")
}
