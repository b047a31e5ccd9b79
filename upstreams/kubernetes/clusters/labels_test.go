package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/kubernetes"
)

// TestWhatAFoundClusterMayBringFollowsFromItsLabels: other labels count at once, and outlive a restart.
func TestWhatAFoundClusterMayBringFollowsFromItsLabels(t *testing.T) {
	h, dir, kept := newHub(t), t.TempDir(), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	cfg := h.parse(dir, "- {name: fleet, secrets: {kubeconfig: hub}, import: [{selector: team=shop, profile: routing, hosts: {include: [\"*.shop\"]}}]}")
	f := finds(t, kept, cfg)
	f.has("east found")
	profile := func(want string, hosts int) func() bool {
		return func() bool {
			u := f.upstreams()["east"].Import
			return u.Profile == want && len(u.Hosts.Include) == hosts
		}
	}
	if !profile("services", 0)() {
		t.Errorf("without labels: %+v", f.upstreams()["east"].Import)
	}
	for len(f.Changed()) > 0 {
		<-f.Changed()
	}
	h.label("one", map[string]string{"team": "shop"})
	f.until("its label counts", profile("routing", 1))
	await.Value(t, "the relay is told that upstreams have changed", f.Changed())
	f.until("the disk has it", func() bool {
		text, err := os.ReadFile(filepath.Join(kept, memoryName))
		return err == nil && strings.Contains(string(text), `"team": "shop"`)
	})
	f.stop()
	h.set(func() { h.down = true })
	f = finds(t, kept, cfg)
	if !profile("routing", 1)() {
		t.Errorf("after a restart: %+v", f.upstreams()["east"].Import)
	}
	h.set(func() { h.down = false })
	h.label("one", map[string]string{"team": "shop", "long": strings.Repeat("x", 3000)})
	f.until("too many labels are a problem", func() bool { return strings.Contains(fmt.Sprint(f.Problems()), "its labels have") })
	if !profile("routing", 1)() {
		t.Errorf("labels that are not read: %+v", f.upstreams()["east"].Import)
	}
}

// TestLabelsThatDoNotFitHoldUpNoOtherCluster: the former ones count, and the cluster is named.
func TestLabelsThatDoNotFitHoldUpNoOtherCluster(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	h.secret("two", map[string][]byte{"west": h.kubeconfig("w")})
	f := finds(t, "", h.parse(dir, `- {name: fleet, secrets: {kubeconfig: hub}, import: [{selector: team=shop, namespaces: {include: [shop, east]}}], upstream: {rewrite: {namespaces: {shop: "{cluster}"}}}}`))
	f.has("east found", "west found")
	h.label("one", map[string]string{"team": "shop"})
	f.until("labels that do not fit are named", func() bool { return strings.Contains(fmt.Sprint(f.Problems()), "it does not fit") })
	if n := len(f.upstreams()); n != 2 || len(f.upstreams()["east"].Import.Namespaces.Include) != 0 {
		t.Errorf("%d upstreams, east with %+v", n, f.upstreams()["east"].Import)
	}
}

// TestAFoundClusterDoesNotPassForAnother: the ID of any upstream, and the name, are its own.
func TestAFoundClusterDoesNotPassForAnother(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e"), "west": h.kubeconfig("w"), "North": h.kubeconfig("north"), "south": h.kubeconfig("s")})
	h.secret("two", map[string][]byte{"south": h.kubeconfig("x")})
	cfg := h.parse(dir, "- {name: fleet, secrets: {kubeconfig: hub}}")
	cfg.Upstreams = []config.Upstream{
		{Name: "north", ClusterID: "n", Source: &kubernetes.Config{}}, {Name: "api", ClusterID: "east", Source: &kubernetes.Config{}}, {Name: "istiod", ClusterID: "west", Source: controlPlane{}},
	}
	f := finds(t, "", cfg)
	f.has("south found")
	problems := fmt.Sprint(f.Problems())
	for _, want := range []string{
		"east in secret istio-system/one is not followed: upstream api is the API server of that cluster already",
		"west in secret istio-system/one is not followed: upstream istiod has the clusterID of that cluster already",
		`North in secret istio-system/one is not followed: its upstream would be "north", which is that of upstreams[0]`,
		"south in secret istio-system/two is not followed: cluster south is that of secret istio-system/one already",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("%s\nlacks %s", problems, want)
		}
	}
}

// controlPlane is the section of an upstream that is an istiod.
type controlPlane struct{ config.Source }

func (controlPlane) Kind() string  { return "xds" }
func (controlPlane) Relayed() bool { return true }
