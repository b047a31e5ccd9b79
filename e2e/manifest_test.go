package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// deployed is a Kubernetes object of a manifest.
type deployed map[string]any

// at returns a value inside of the object, nil when it is not there.
func (o deployed) at(path ...string) any {
	var v any = map[string]any(o)
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func (o deployed) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func (o deployed) String() string { return o.text("kind") + " " + o.text("metadata", "name") }

func readManifest(t *testing.T, path string) (all []deployed) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.SplitSeq(string(b), "\n---\n") {
		var o deployed
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			t.Fatalf("%s: %v in\n%s", path, err, text)
		}
		all = append(all, o)
	}
	return all
}

func find(t *testing.T, all []deployed, name string) deployed {
	t.Helper()
	i := slices.IndexFunc(all, func(o deployed) bool { return o.String() == name })
	if i < 0 {
		t.Fatalf("no %s in %v", name, all)
	}
	return all[i]
}

// relayNamespace is where the manifests of these tests are applied.
const relayNamespace = "istio-system"

// applyStrictly applies an object to relayNamespace, as kubectl apply --server-side
// --validate=strict would.
func (k *kubernetes) applyStrictly(o deployed, dryRun bool) error {
	path := objectPath(o.text("apiVersion"), o.text("kind"), relayNamespace, o.text("metadata", "name")) + "?fieldManager=kubectl&fieldValidation=Strict"
	if dryRun {
		path += "&dryRun=All"
	}
	return k.do(http.MethodPatch, path, "application/apply-patch+yaml", []byte(encode(k.t, o)))
}

// selected returns the names of the pods that a selector selects: a map of labels, or one
// with matchLabels.
func (k *kubernetes) selected(selector any) (names []string) {
	k.t.Helper()
	labels, _ := selector.(map[string]any)
	if inner, ok := labels["matchLabels"].(map[string]any); ok {
		labels = inner
	}
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, fmt.Sprintf("%s=%v", key, labels[key]))
	}
	if len(terms) == 0 {
		k.t.Fatalf("the selector %v selects everything", selector)
	}
	answer, err := k.ask(http.MethodGet, "/api/v1/namespaces/"+relayNamespace+"/pods?labelSelector="+url.QueryEscape(strings.Join(terms, ",")), "", nil)
	if err != nil {
		k.t.Fatal(err)
	}
	var list struct{ Items []deployed }
	if err := json.Unmarshal(answer, &list); err != nil {
		k.t.Fatal(err)
	}
	for _, o := range list.Items {
		names = append(names, o.text("metadata", "name"))
	}
	slices.Sort(names)
	return names
}

// podOf returns the pod that a controller would make of a Deployment or a StatefulSet, with
// the labels and volumes that it would add.
func podOf(t *testing.T, owner deployed, name string, labels map[string]any) deployed {
	t.Helper()
	var template deployed
	if err := json.Unmarshal([]byte(encode(t, owner.at("spec", "template"))), &template); err != nil {
		t.Fatal(err)
	}
	meta, spec := template.at("metadata").(map[string]any), template.at("spec").(map[string]any)
	meta["name"] = name
	maps.Copy(meta["labels"].(map[string]any), labels)
	claims, _ := owner.at("spec", "volumeClaimTemplates").([]any)
	for _, c := range claims {
		claim := deployed(c.(map[string]any)).text("metadata", "name")
		spec["volumes"] = append(spec["volumes"].([]any), map[string]any{
			"name": claim, "persistentVolumeClaim": map[string]any{"claimName": claim + "-" + name},
		})
	}
	return deployed{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
}

// TestAnAPIServerTakesTheManifest applies deploy/kubernetes/relay.yaml to a real API server. What the controllers
// would make of it (pods, claims) the test makes, as no controllers run.
func TestAnAPIServerTakesTheManifest(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "manifest")
	k.createNamespace(relayNamespace)
	now := readManifest(t, "../deploy/kubernetes/relay.yaml")
	set := find(t, now, "StatefulSet meshrelay")
	replica := podOf(t, set, "meshrelay-0", map[string]any{"statefulset.kubernetes.io/pod-name": "meshrelay-0"})
	claim := deployed(set.at("spec", "volumeClaimTemplates").([]any)[0].(map[string]any))
	volume := deployed{
		"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": map[string]any{"name": claim.text("metadata", "name") + "-meshrelay-0"}, "spec": claim.at("spec"),
	}
	all := append(slices.Clone(now), replica, volume)
	for _, o := range all {
		if err := k.applyStrictly(o, true); err != nil {
			t.Errorf("%s: %v", o, err)
		}
	}

	// That was worth something only if a mistake is noticed.
	wrong := podOf(t, set, "meshrelay-0", nil)
	wrong.at("spec").(map[string]any)["terminationGracePeriod"] = 30
	if err := k.applyStrictly(wrong, true); err == nil || !strings.Contains(err.Error(), "terminationGracePeriod") {
		t.Errorf("a pod with a field that does not exist: %v", err)
	}

	for _, o := range all {
		if err := k.applyStrictly(o, false); err != nil {
			t.Fatalf("%s: %v", o, err)
		}
	}
	for _, o := range now {
		if err := k.do(http.MethodGet, objectPath(o.text("apiVersion"), o.text("kind"), relayNamespace, o.text("metadata", "name")), "", nil); err != nil {
			t.Errorf("%s: %v", o, err)
		}
	}

	for object, field := range map[string]string{
		"Service relay": "selector", "PodDisruptionBudget relay": "selector", "NetworkPolicy relay": "podSelector",
		"StatefulSet meshrelay": "selector", "Service meshrelay": "selector",
	} {
		if got := k.selected(find(t, now, object).at("spec", field)); !slices.Equal(got, []string{"meshrelay-0"}) {
			t.Errorf("%s selects %v", object, got)
		}
	}

	// A pod with two budgets could not be evicted at all.
	answer, err := k.ask(http.MethodGet, "/apis/policy/v1/namespaces/"+relayNamespace+"/poddisruptionbudgets", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var budgets struct{ Items []deployed }
	if err := json.Unmarshal(answer, &budgets); err != nil {
		t.Fatal(err)
	}
	if len(budgets.Items) != 1 {
		t.Errorf("%d disruption budgets: %v", len(budgets.Items), budgets.Items)
	}
}
