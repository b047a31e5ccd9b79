package clusters

import (
	"fmt"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes"
)

// TestAFoundClusterDoesNotPassForAnother: the ID of any upstream, and the name, are its own.
func TestAFoundClusterDoesNotPassForAnother(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e"), "west": h.kubeconfig("w"), "North": h.kubeconfig("north"), "south": h.kubeconfig("s")})
	h.secret("two", map[string][]byte{"south": h.kubeconfig("x")})
	cfg := h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}")
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
