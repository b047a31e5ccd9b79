package clusters

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
)

// A rename takes nothing away that is served: not while the relay runs, and not over a restart.
func TestARenamedPartKeepsItsClusters(t *testing.T) {
	h, dir, state := newHub(t), t.TempDir(), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e"), "west": h.kubeconfig("w")})
	f := finds(t, state, h.parse(dir, fleet))
	f.has("east found", "west found")
	before := f.upstreams()
	h.set(func() { h.down = true })
	h.http.CloseClientConnections()
	f.until("the hub is down", func() bool { return f.Status()[0].Error != "" })

	renamed := strings.Replace(fleet, "name: fleet", "name: mesh", 1)
	f.cfg = h.parse(dir, renamed)
	if after := f.upstreams(); !reflect.DeepEqual(after, before) {
		t.Errorf("the config before it is adopted: %+v", after)
	}
	f.Adopt(f.cfg)
	if got := f.of(); !slices.Equal(got, []string{"mesh: east found", "mesh: west found"}) {
		t.Errorf("%q", got)
	}
	if after := f.upstreams(); !reflect.DeepEqual(after, before) {
		t.Errorf("%+v", after)
	}
	f.stop()

	cfg := h.parse(dir, strings.Replace(fleet, "name: fleet", "name: third", 1))
	f = finds(t, state, cfg)
	if got := f.of(); !slices.Equal(got, []string{"third: east found", "third: west found"}) {
		t.Errorf("after a restart: %q", got)
	}
}

func TestPartsAreTheSameBySourceThenByName(t *testing.T) {
	secrets := func(name string, s config.ClusterSecrets) config.Clusters {
		return config.Clusters{Name: name, Secrets: &s}
	}
	own := config.ClusterSecrets{Cluster: config.Cluster{InCluster: true}, Namespace: "istio-system", Selector: "a"}
	other := config.ClusterSecrets{Cluster: config.Cluster{Kubeconfig: "/hub", Context: "x"}, Namespace: "istio-system"}
	selected, elsewhere, context := own, own, other
	there, far := own, own
	there.Namespace, far.Namespace = "a", "b"
	selected.Selector, elsewhere.Namespace, context.Cluster.Context = "b", "fleet", "y"
	for name, tc := range map[string]struct {
		before, after []config.Clusters
		want          string
	}{
		"the same":                          {[]config.Clusters{secrets("a", there)}, []config.Clusters{secrets("a", there)}, "a=a"},
		"a new name":                        {[]config.Clusters{secrets("a", own)}, []config.Clusters{secrets("b", own)}, "b=a"},
		"a new name and selector":           {[]config.Clusters{secrets("a", own)}, []config.Clusters{secrets("b", selected)}, "b=a"},
		"a new source":                      {[]config.Clusters{secrets("a", own)}, []config.Clusters{secrets("a", there)}, "a=a"},
		"all is new":                        {[]config.Clusters{secrets("a", own)}, []config.Clusters{secrets("b", elsewhere)}, "b="},
		"another context":                   {[]config.Clusters{secrets("a", other)}, []config.Clusters{secrets("b", context)}, "b="},
		"the name is that of a new one":     {[]config.Clusters{secrets("a", own)}, []config.Clusters{secrets("a", there), secrets("b", own)}, "a= b=a"},
		"names are swapped":                 {[]config.Clusters{secrets("a", own), secrets("b", far)}, []config.Clusters{secrets("b", own), secrets("a", far)}, "b=a a=b"},
		"two of one source keep their name": {[]config.Clusters{secrets("a", there), secrets("b", there)}, []config.Clusters{secrets("b", there), secrets("a", there)}, "b=b a=a"},
	} {
		var all []former
		for _, c := range tc.before {
			all = append(all, former{kept: kept{Name: c.Name, Source: sourceOf(c)}})
		}
		var got []string
		for i, f := range succeed(all, tc.after) {
			got = append(got, fmt.Sprint(tc.after[i].Name, "=", f.Name))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %s", name, got, tc.want)
		}
	}
}

// A copy of the state has which clusters there are. Unpacked, the next start knows them.
func TestABackupHasTheClusters(t *testing.T) {
	h, dir, state := newHub(t), t.TempDir(), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("SECRET"), "west": h.kubeconfig("SECRET")})
	f := finds(t, state, h.parse(dir, fleet))
	f.has("east found", "west found")
	h.secret("one", map[string][]byte{"east": h.kubeconfig("SECRET")})
	f.has("east found", "west orphaned")
	name, text := f.Backup()
	if strings.Contains(string(text), "SECRET") {
		t.Fatalf("%s", text)
	}
	restored := t.TempDir()
	path := filepath.Join(restored, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	h.set(func() { h.down = true })
	f = finds(t, restored, f.cfg)
	f.has("east found", "west orphaned")
	f.stop()

	// Where nobody knows which clusters there were, the copy is none of an empty set.
	if err := os.WriteFile(path, []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
	f = finds(t, restored, f.cfg)
	_, text = f.Backup()
	f.stop()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, whole := New(restored, slog.New(slog.DiscardHandler)); whole {
		t.Errorf("what nobody knows counts as whole: %s", text)
	}
	none, _ := New("", slog.New(slog.DiscardHandler))
	if _, text := none.Backup(); text != nil {
		t.Errorf("without clusters: %s", text)
	}
}
