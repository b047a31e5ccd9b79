package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// foundClusters are found clusters.
type foundClusters struct{}

func (foundClusters) Status() []clusters.Status {
	return []clusters.Status{{Name: "fleet", From: "secrets in istio-system", Clusters: []clusters.ClusterStatus{
		{Cluster: registry.Cluster{ID: "west", Name: "west", Origin: "secret istio-system/west", State: registry.Held, Since: time.Unix(100, 0)}},
	}}}
}

func (foundClusters) Release(name string) (int, error) {
	if name != "fleet" {
		return 0, fmt.Errorf("%w %q", clusters.ErrUnknown, name)
	}
	return 1, nil
}

func (foundClusters) Remove(_, cluster string) error {
	if cluster != "west" {
		return fmt.Errorf("%w: there is no cluster %q", registry.ErrNotPossible, cluster)
	}
	return nil
}

func TestClustersAreShownAndOrderedAbout(t *testing.T) {
	f := newFixture(t, Config{})
	var parts []clusters.Status
	if err := json.Unmarshal([]byte(f.get(t, "/debug/clusters")), &parts); err != nil || len(parts) != 1 || parts[0].Clusters[0].ID != "west" || parts[0].Clusters[0].State != registry.Held {
		t.Errorf("%v: %+v", err, parts)
	}
	for path, want := range map[string]string{
		"/clusters/fleet/release":             `200 "clusters": 1`,
		"/clusters/fleet/remove?cluster=west": "200 {}",
		"/clusters/fleet/remove?cluster=east": `409 not possible: there is no cluster "east"`,
		"/clusters/other/release":             `404 the config has no clusters "other": there are fleet`,
	} {
		code, body, _ := f.do(t, request{method: http.MethodPost, path: path, peer: &peer{}})
		number, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(code) != number || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %s", path, code, body, want)
		}
		if code, _, _ := f.do(t, request{method: http.MethodPost, path: path}); code != http.StatusForbidden {
			t.Errorf("%s over TCP: %d", path, code)
		}
	}
}
