package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kindsOf1_23 are the kinds that an istiod 1.23 mirrors from a config source.
var kindsOf1_23 = []string{
	"AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication", "DestinationRule", "Gateway", "ServiceEntry",
	"Sidecar", "VirtualService", "WorkloadEntry", "WorkloadGroup", "EnvoyFilter", "ProxyConfig", "Telemetry", "WasmPlugin",
}

const seV1, seV1beta1, seV1alpha3 = "networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1beta1/ServiceEntry", "networking.istio.io/v1alpha3/ServiceEntry"

// copySamples gives an istiod the shop's configs of one cluster.
func copySamples(t *testing.T, cluster, dir string) {
	t.Helper()
	paths, err := filepath.Glob("../samples/" + cluster + "/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples of %s: %v", cluster, err)
	}
	for _, p := range paths {
		if filepath.Base(p) == "mesh.yaml" {
			continue // an istiod's MeshConfig is not among its configs
		}
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, filepath.Base(p)), string(b))
	}
}

// serviceEntry is a config that differs by host. Its creation time is given: an
// istiod's file store would otherwise take the time at which it starts.
func serviceEntry(name, host string, labels ...string) string {
	l := ""
	for _, kv := range labels {
		k, v, _ := strings.Cut(kv, "=")
		l += fmt.Sprintf("    %s: %q\n", k, v)
	}
	if l != "" {
		l = "  labels:\n" + l
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: %s
  namespace: shop
  creationTimestamp: "2024-05-01T10:00:00Z"
%sspec:
  hosts: [%s]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 443, name: tls, protocol: TLS}]
`, name, l, host)
}

func (i *istiod) write(t *testing.T, name, host string, labels ...string) {
	t.Helper()
	writeFile(t, filepath.Join(i.configDir, name+".yaml"), serviceEntry(name, host, labels...))
}

func (i *istiod) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(i.configDir, name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// TestTwoIstiodsArriveInAThird is the main job: two istiods, the relay, and an istiod
// that has nothing but the relay.
func TestTwoIstiodsArriveInAThird(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	copySamples(t, "east", east.configDir)
	copySamples(t, "west", west.configDir)
	east.start().ready()
	west.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc, "west=" + west.grpc}).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()

	want := union(east.configs(), west.configs())
	for _, kind := range kindsOf1_23 {
		found := false
		for key := range want {
			found = found || strings.Contains(key, "/"+kind+" ")
		}
		if !found {
			t.Errorf("the samples have no %s that an istiod 1.23 accepts", kind)
		}
	}
	eventually(t, "the third istiod has the union", func() error { return differs(third.configs(), want) })

	// Additions, changes and deletions of both arrive.
	east.write(t, "new", "new.example")
	west.write(t, "db", "db-1.example")
	arrives := func() {
		t.Helper()
		eventually(t, "the upstreams' changes arrive", func() error {
			now := union(east.configs(), west.configs())
			return differs(third.configs(), now)
		})
	}
	has := func(key, part string) {
		t.Helper()
		eventually(t, key+" has "+part, func() error {
			if c := third.configs()[key]; !strings.Contains(c, part) {
				return fmt.Errorf("it is %q", c)
			}
			return nil
		})
	}
	has("networking.istio.io/ServiceEntry shop/new", "new.example")
	has("networking.istio.io/ServiceEntry shop/db", "db-1.example")
	west.write(t, "db", "db-2.example")
	has("networking.istio.io/ServiceEntry shop/db", "db-2.example")
	east.remove(t, "new")
	eventually(t, "the deletion arrives", func() error {
		if c, ok := third.configs()["networking.istio.io/ServiceEntry shop/new"]; ok {
			return fmt.Errorf("still there: %s", c)
		}
		return nil
	})
	arrives()
}

// TestLabelChangeAloneArrives_S10: an istiod as client ignores an update that comes
// under the version it has.
func TestLabelChangeAloneArrives_S10(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a.yaml"), serviceEntry("a", "a.example", "tier=front"))
	r := newRelay(t, "hub", []string{"files=" + dir}).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	const key = "networking.istio.io/ServiceEntry shop/a"
	for _, tier := range []string{"front", "back", "front"} {
		writeFile(t, filepath.Join(dir, "a.yaml"), serviceEntry("a", "a.example", "tier="+tier))
		eventually(t, "the label "+tier+" arrives", func() error {
			if c := third.configs()[key]; !strings.Contains(c, `"tier":"`+tier+`"`) {
				return fmt.Errorf("%s is %q", key, c)
			}
			return nil
		})
	}
}

func TestEveryVersionOfAKindBringsTheSame_C1_S13(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	copySamples(t, "east", east.configDir)
	east.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc}).start().ready()
	c := dial(t, r.xds)
	var first string
	for _, url := range []string{seV1, seV1beta1, seV1alpha3} {
		got, err := c.list(url)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			t.Errorf("%s brings nothing", url)
		}
		s := fmt.Sprint(got)
		if first == "" {
			first = s
		}
		if s != first {
			t.Errorf("%s brings\n%s\nand not\n%s", url, s, first)
		}
	}
}

func TestRelayBehindRelay(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	copySamples(t, "east", east.configDir)
	east.start().ready()
	near := newRelay(t, "near", []string{"east=" + east.grpc}).start()
	far := newRelay(t, "far", []string{"near=" + near.xds}).start().ready()
	third := newIstiod(t, "third", far.xds).start().ready()
	eventually(t, "the third istiod has what the first has", func() error { return differs(third.configs(), east.configs()) })
	east.write(t, "new", "new.example")
	eventually(t, "a change passes both relays", func() error {
		if _, ok := third.configs()["networking.istio.io/ServiceEntry shop/new"]; !ok {
			return fmt.Errorf("not there")
		}
		return differs(third.configs(), east.configs())
	})
}

// TestFirstUpstreamWinsAndTheOtherTakesOver_S27: the take-over is an update, not a
// deletion and an addition.
func TestFirstUpstreamWinsAndTheOtherTakesOver_S27(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	east.write(t, "db", "db.east.example")
	west.write(t, "db", "db.west.example")
	east.start().ready()
	west.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc, "west=" + west.grpc}).start().ready()
	f := dial(t, r.xds).follow(seV1, nil)
	host := func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return fmt.Sprint(f.all["shop/db"].GetBody())
	}
	if !strings.Contains(host(), "db.east.example") {
		t.Errorf("east does not win: %s", host())
	}
	eventually(t, "west is shown as shadowed", func() error {
		body, err := httpGet("http://" + r.admin + "/debug/conflicts")
		if err == nil && (!strings.Contains(string(body), `"west"`) || !strings.Contains(string(body), `"db"`)) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	f.mark()
	east.remove(t, "db")
	eventually(t, "west takes over", func() error {
		if h := host(); !strings.Contains(h, "db.west.example") {
			return fmt.Errorf("%s", h)
		}
		return nil
	})
	if got := f.events(); got != "+shop/db" {
		t.Errorf("the take-over came as %q, want one update", got)
	}
}
