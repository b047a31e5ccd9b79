package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entrySchema defines ServiceEntries with a schema, so that the server refuses others.
const entrySchema = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: serviceentries.networking.istio.io}
spec:
  group: networking.istio.io
  names: {kind: ServiceEntry, listKind: ServiceEntryList, plural: serviceentries, singular: serviceentry}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [hosts]
            properties:
              hosts: {type: array, items: {type: string, maxLength: 40}}
              location: {type: string}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// sinkStatus is what the test reads of a sink.
type sinkStatus struct {
	State           string         `json:"state"`
	Problems        []string       `json:"problems"`
	Leader          bool           `json:"leader"`
	Desired         int            `json:"desired"`
	Objects         int            `json:"objects"`
	Todo            map[string]int `json:"todo"`
	TroublesByState map[string]int `json:"troublesByState"`
	Drifted         int            `json:"drifted"`
	Added           int            `json:"added"`
	Held            *struct {
		ID       string `json:"id"`
		Removals int    `json:"removals"`
	} `json:"held"`
}

// sinkOf returns the state of a sink.
func sinkOf(r *relay, name string) (s sinkStatus, err error) {
	out, code := r.command("sink", name, "-o", "json")
	var all []sinkStatus
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != 1 {
		return s, fmt.Errorf("%d, %w: %s", code, err, out)
	}
	return all[0], nil
}

// sinkIs waits until a sink is so.
func sinkIs(t *testing.T, r *relay, name, what string, is func(s sinkStatus) bool) {
	t.Helper()
	eventually(t, what, func() error {
		s, err := sinkOf(r, name)
		if err == nil && !is(s) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

// TestASinkKeepsARealCluster goes through what happens to the objects of a sink on a real API server.
func TestASinkKeepsARealCluster(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "dr")
	k.apply(entrySchema)
	eventually(t, "ServiceEntries are served", func() error { return k.do("GET", "/apis/networking.istio.io/v1/serviceentries", "", nil) })
	k.createNamespace("istio-system")
	k.createNamespace("shop")
	dir := t.TempDir()
	write := func(name, namespace, host string) {
		t.Helper()
		writeFile(t, filepath.Join(dir, name+".yaml"), fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: %s, name: %s}, spec: {hosts: [%s]}}\n", namespace, name, host))
	}
	for i := range 20 {
		write(fmt.Sprintf("n%02d", i), "shop", "a.example")
	}
	write("refused", "shop", strings.Repeat("long", 20)+".example")
	write("homeless", "nowhere", "a.example")
	write("foreign", "shop", "ours.example")
	k.entry("shop/foreign", "theirs.example")
	config := func(settings string) string {
		return fmt.Sprintf(`upstreams: [{name: files, file: {path: %q}}]
views: [{name: all}]
sinks: [{name: dr, view: all, mode: apply, prune: true, guard: {count: 2, percent: 5}, writesPerSecond: 1000, cluster: {kubeconfig: %q}%s}]
state: {dir: %q}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, dir, k.kubeconfig, settings, filepath.Join(t.TempDir(), "state"))
	}
	r := relayOf(t, "hub", config("")).start().ready()
	wants := func(what string, is func(s sinkStatus) bool) {
		t.Helper()
		sinkIs(t, r, "dr", what, is)
	}
	get := func(name string) string {
		out, _ := k.ask(http.MethodGet, objectPath("networking.istio.io/v1", "ServiceEntry", "shop", name), "", nil)
		return string(out)
	}
	shows := func(what, name, text string) {
		t.Helper()
		eventually(t, what, func() error {
			if out := get(name); !strings.Contains(out, text) {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}

	wants("all that can be is created, and the rest is told", func(s sinkStatus) bool {
		return s.Leader && s.Objects == 20 && s.TroublesByState["refused"] == 1 && s.TroublesByState["namespaceMissing"] == 1 && s.TroublesByState["foreign"] == 1
	})
	if out := get("foreign"); !strings.Contains(out, "theirs.example") || strings.Contains(out, "meshrelay") {
		t.Errorf("a foreign object was touched: %s", out)
	}
	if out := get("n00"); strings.Contains(out, `"operation":"Update"`) || !strings.Contains(out, `"manager":"meshrelay-sink-dr"`) {
		t.Errorf("the managers: %s", out)
	}
	write("n00", "shop", "changed.example")
	shows("a change", "n00", "changed.example")

	const drift = `[{"op":"replace","path":"/spec/hosts","value":["theirs.example"]}]`
	edit := func(name string) {
		t.Helper()
		if err := k.do(http.MethodPatch, objectPath("networking.istio.io/v1", "ServiceEntry", "shop", name)+"?fieldManager=kubectl-edit", "application/json-patch+json", []byte(drift)); err != nil {
			t.Fatal(err)
		}
	}
	edit("n01")
	wants("a conflict is told", func(s sinkStatus) bool { return s.TroublesByState["conflict"] == 1 })
	if out, _ := r.command("sink", "dr"); !strings.Contains(out, "kubectl-edit") || !strings.Contains(out, "spec.hosts") {
		t.Error(out)
	}
	if out, code := r.command("sink", "diff", "dr"); code != 0 || !strings.Contains(out, "homeless") || !strings.Contains(out, "namespaces") {
		t.Error(out, code)
	}
	k.delete("networking.istio.io/v1", "ServiceEntry", "shop", "n02")
	shows("a deletion by others is put right", "n02", "a.example")

	r.terminate()
	written := k.version("n05")
	r.start().ready()
	wants("a restart writes nothing", func(s sinkStatus) bool {
		return s.Leader && s.Objects == 20 && s.TroublesByState["conflict"] == 1
	})
	if now := k.version("n05"); now != written {
		t.Errorf("a restart writes: version %s, and it was %s", now, written)
	}

	config1 := config(", conflicts: take, adopt: true, createNamespaces: true")
	rewritten := relayOf(t, "again", config1)
	r.terminate()
	r = rewritten.start().ready()
	shows("the conflict is taken", "n01", "a.example")
	shows("the foreign object is adopted", "foreign", "ours.example")
	wants("the namespace is created", func(s sinkStatus) bool { return s.Objects == 22 && s.TroublesByState["namespaceMissing"] == 0 })
	edit("n03")
	wants("drift is put right", func(s sinkStatus) bool { return s.Drifted == 2 }) // the other one is that of the conflict
	shows("drift is put right", "n03", "a.example")

	if err := os.Remove(filepath.Join(dir, "n10.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one deletion is pruned", func() error {
		if out := get("n10"); !strings.Contains(out, "NotFound") && out != "" && strings.Contains(out, "hosts") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	r.pause(func() { // else the guard may let some go before it sees the others
		for i := 11; i < 16; i++ {
			if err := os.Remove(filepath.Join(dir, fmt.Sprintf("n%d.yaml", i))); err != nil {
				t.Fatal(err)
			}
		}
	})
	wants("more are held", func(s sinkStatus) bool { return s.Held != nil && s.Held.Removals == 5 })
	s, err := sinkOf(r, "dr")
	if err != nil {
		t.Fatal(err)
	}
	if out, code := r.command("release", "sink/dr", "--hold", s.Held.ID); code != 0 {
		t.Fatal(out, code)
	}
	wants("the released ones are gone", func(s sinkStatus) bool { return s.Held == nil && s.Objects == 16 })
}

// version returns the resourceVersion of a ServiceEntry of the namespace shop.
func (k *kubernetes) version(name string) string {
	k.t.Helper()
	out, err := k.ask(http.MethodGet, objectPath("networking.istio.io/v1", "ServiceEntry", "shop", name), "", nil)
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err == nil {
		err = json.Unmarshal(out, &o)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return o.Metadata.ResourceVersion
}
