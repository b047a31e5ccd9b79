package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/kubernetes/clusters/registry"
	"meshrelay/upstreams/kubernetes/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClustersOfSecretsAreFoundRotatedAndOrphaned(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e1"), "west": h.kubeconfig("w1")})
	h.secret("two", map[string][]byte{"north": h.kubeconfig("n1"), "south": h.kubeconfig("s1"), "bad": []byte("rotten")}, priorityAnnotation, "-5")
	f := finds(t, "", h.parse(dir, fleet))
	f.has("north found", "south found", "east found", "west found")
	before := f.upstreams()
	if u := before["east"]; u.ClusterID != "east" || u.Rewrite.NamespacePrefix != "east-" || u.FirstSync != config.FirstSyncOptional {
		t.Errorf("%+v", u)
	}
	f.until("the bad one is named", func() bool {
		return strings.Contains(fmt.Sprint(f.Problems()), "bad in secret istio-system/two is not followed: it is not a kubeconfig")
	})

	h.secret("one", map[string][]byte{"east": h.kubeconfig("e2"), "west": []byte("rotten")})
	f.until("the rotation is seen", func() bool { return f.Status()[0].Clusters[2].Rotations == 1 })
	f.has("north found", "south found", "east found", "west found")
	if after := f.upstreams(); !reflect.DeepEqual(after, before) {
		t.Error("a rotation has changed an upstream")
	}
	f.until("the bad one is named", func() bool {
		return strings.Contains(fmt.Sprint(f.Problems()), "cluster west: the new kubeconfig in secret istio-system/one is not used, the last good one is: it is not a kubeconfig")
	})

	h.secret("one", map[string][]byte{"east": h.kubeconfig("e2")})
	f.has("north found", "south found", "east found", "west orphaned")
	if after := f.upstreams(); !reflect.DeepEqual(after, before) {
		t.Error("an orphan has changed an upstream")
	}
	if !strings.Contains(fmt.Sprint(f.Problems()), "cluster west is orphaned since ") {
		t.Errorf("%q", f.Problems())
	}
	if err := f.Remove("fleet", "west"); err != nil {
		t.Fatal(err)
	}
	f.has("north found", "south found", "east found")

	h.set(func() { h.down = true })
	h.http.CloseClientConnections()
	f.until("the hub is down", func() bool { return f.Status()[0].Error != "" })
	f.has("north found", "south found", "east found")
	h.set(func() { h.down, h.objects = false, map[string]map[string]any{} })
	f.has("north held", "south held", "east held")
	if n, err := f.Release("fleet"); n != 3 || err != nil {
		t.Error(n, err)
	}
	f.has("north orphaned", "south orphaned", "east orphaned")
	if _, err := f.Release("other"); err == nil || f.Remove("other", "a") == nil {
		t.Error("orders about no clusters are carried out")
	}
	err := testutil.CollectAndCompare(f, strings.NewReader(`# HELP relay_clusters Clusters that were found, by what is the case with them.
# TYPE relay_clusters gauge
relay_clusters{clusters="fleet",state="found"} 0
relay_clusters{clusters="fleet",state="held"} 0
relay_clusters{clusters="fleet",state="orphaned"} 3
relay_clusters{clusters="fleet",state="refused"} 0
# HELP relay_clusters_readable Whether it can be read now which clusters there are.
# TYPE relay_clusters_readable gauge
relay_clusters_readable{clusters="fleet"} 1
`), "relay_clusters", "relay_clusters_readable")
	if err != nil {
		t.Error(err)
	}
}

func TestFoundClustersOutliveARestartWithoutTheirKubeconfigs(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	state := t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("SECRET"), "west": h.kubeconfig("SECRET"), "north": h.kubeconfig("SECRET"), "south": h.kubeconfig("SECRET")})
	f := finds(t, state, h.parse(dir, fleet))
	f.has("east found", "north found", "south found", "west found")
	h.secret("one", map[string][]byte{"east": h.kubeconfig("SECRET"), "north": h.kubeconfig("SECRET"), "south": h.kubeconfig("SECRET")})
	f.has("east found", "north found", "south found", "west orphaned")
	since := f.Status()[0].Clusters[3].Since
	f.stop()
	kept, err := os.ReadFile(filepath.Join(state, memoryName))
	if err != nil || strings.Contains(string(kept), "SECRET") || strings.Contains(string(kept), h.http.URL) {
		t.Fatalf("%v: %s", err, kept)
	}
	info, err := os.Stat(filepath.Join(state, memoryName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v: mode %v", err, info.Mode())
	}

	h.set(func() { h.down = true })
	f = finds(t, state, h.parse(dir, fleet))
	f.until("the hub is down", func() bool { return f.Status()[0].Error != "" })
	f.has("east found", "north found", "south found", "west orphaned")
	if len(f.upstreams()) != 4 || !f.Status()[0].Clusters[3].Since.Equal(since) {
		t.Errorf("%+v", f.Status())
	}
	h.set(func() { h.down = false })
	f.until("the hub is read", func() bool { return f.Status()[0].Error == "" && !f.Status()[0].ReadAt.IsZero() })
	f.has("east found", "north found", "south found", "west orphaned")
	f.stop()

	if err := os.WriteFile(filepath.Join(state, memoryName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, whole := New(state, slog.New(slog.DiscardHandler)); whole {
		t.Error("what is rotten counts as whole")
	}
	if err := os.WriteFile(filepath.Join(state, memoryName), []byte(`[{"name":"fleet","clusters":[{"id":"a/b","name":"x","state":"found"},{"id":"east","name":"east","state":"found"}]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	other, whole := New(state, slog.New(slog.DiscardHandler))
	if all, err := other.Upstreams(f.cfg); !whole || err != nil || len(all) != 1 || all[0].Name != "east" {
		t.Errorf("%v: %+v", err, all)
	}
}

func TestAMemoryThatOthersCouldHaveWrittenIsNotUsed(t *testing.T) {
	const text = `[{"name":"fleet","clusters":[{"id":"east","name":"east","state":"found"}]}]`
	for name, write := range map[string]func(path string) error{
		"others may write": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, 0o622))
		},
		"a link": func(path string) error {
			return errors.Join(os.WriteFile(path+"2", []byte(text), 0o600), os.Symlink(path+"2", path))
		},
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"too large":   func(path string) error { return os.WriteFile(path, make([]byte, maxMemory+1), 0o600) },
	} {
		m := memory{dir: t.TempDir()}
		if err := write(filepath.Join(m.dir, memoryName)); err != nil {
			t.Fatal(err)
		}
		if kept, err := m.load(); err == nil || len(kept) > 0 {
			t.Errorf("%s: %v: %v", name, err, kept)
		}
	}
}

func TestAReloadTakesOverOtherRulesOfClusters(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e"), "West_1": h.kubeconfig("w")})
	f := finds(t, "", h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}"))
	f.has("West_1 found", "east found")
	before := f.upstreams()

	// A template that does not fit a cluster is refused, before anything has changed.
	if _, err := f.Upstreams(h.parse(dir, fleet)); err == nil || !strings.Contains(err.Error(), "clusters fleet: cluster West_1: upstream.rewrite.namespacePrefix: ") {
		t.Errorf("%v", err)
	}
	f.has("West_1 found", "east found")
	f.cfg = h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}, ignore: [West_1], upstream: {rewrite: {namespacePrefix: \"{cluster}-\"}}}")
	f.Adopt(f.cfg)
	f.has("east found")
	after := f.upstreams()["east"]
	if after.Rewrite.NamespacePrefix != "east-" || after.Source.(*kubernetes.Config).Found != before["east"].Source.(*kubernetes.Config).Found {
		t.Errorf("%+v", after)
	}
	// Without ignore the other one does not fit.
	f.cfg = h.parse(dir, fleet)
	f.Adopt(f.cfg)
	f.until("it does not fit", func() bool {
		return strings.Contains(fmt.Sprint(f.Problems()), "West_1 in secret istio-system/one is not followed: it does not fit: ")
	})
	f.has("east found")
	h.secretIn("more", "two", map[string][]byte{"north": h.kubeconfig("n1")})
	f.cfg = h.parse(dir, "- {name: other, secrets: {cluster: {kubeconfig: hub}, namespace: more}}")
	f.Adopt(f.cfg)
	f.has("north found")
}

func TestTwoPartsDoNotFollowOneClusterTwice(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secretIn("more", "two", map[string][]byte{"east": h.kubeconfig("e"), "west": h.kubeconfig("w"), "empty": nil})
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	f := finds(t, "", h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}\n- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: more}}"))
	f.has("east found", "west found")
	f.until("who has it", func() bool {
		return strings.Contains(fmt.Sprint(f.Problems()), "empty in secret more/two is not followed: the kubeconfig is empty")
	})
	all, err := f.Upstreams(f.cfg)
	if err != nil || len(all) != 2 {
		t.Errorf("%v: %+v", err, all)
	}
	if got := f.Mark([]upstreams.Status{{Name: "west", Type: "kubernetes"}})[0].Found; got == nil || got.Clusters != "more" || got.Origin != "secret more/two" {
		t.Errorf("%+v", got)
	}
}

func TestAClusterThatOnePartRemovesIsFreeForTheNext(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secretIn("more", "two", map[string][]byte{"east": h.kubeconfig("east")})
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	f := finds(t, "", h.parse(dir, "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}}\n- {name: more, secrets: {cluster: {kubeconfig: hub}, namespace: more}}"))
	f.until("the first part has it", func() bool { return len(f.Status()[1].Refused) == 1 && len(f.Status()[0].Clusters) == 1 })
	h.secret("one", nil)
	f.has("east orphaned")
	if err := f.Remove("fleet", "east"); err != nil {
		t.Fatal(err)
	}
	if first, next := f.Status()[0], f.Status()[1]; len(first.Clusters) > 0 || len(next.Clusters) != 1 || next.Refused != nil {
		t.Errorf("%+v %+v: the upstream of the cluster goes, and comes later", first, next)
	}
	f.stop()

	// So it is when the time of an orphan is over.
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	f = finds(t, "", f.cfg)
	f.until("the first part has it", func() bool { return len(f.Status()[1].Refused) == 1 && len(f.Status()[0].Clusters) == 1 })
	h.secret("one", nil)
	f.has("east orphaned")
	f.mu.Lock()
	first := f.parts[0]
	orphan := first.registry.Clusters()[0]
	orphan.Since = orphan.Since.Add(-25 * time.Hour)
	_, _ = first.registry.Step(orphan.Since, registry.Restored{Clusters: []registry.Cluster{orphan}})
	first.due = time.Now()
	f.mu.Unlock()
	f.turn()
	if first, next := f.Status()[0], f.Status()[1]; len(first.Clusters) > 0 || len(next.Clusters) != 1 {
		t.Errorf("%+v %+v", first, next)
	}
}

// The config is valid, and the other clusters of the place are followed.
func TestClustersWithProgramsAreNotFollowedWithoutServers(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e"), "west": h.withProgram("sh")})
	part := "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}, allowExec: [sh], allowServers: [%s]}"
	f := finds(t, "", h.parse(dir, fmt.Sprintf(part, "127.0.0.1")))
	f.has("east found", "west found")
	f.stop()

	f = finds(t, "", h.parse(dir, fmt.Sprintf(part, "10.0.0.0/8")))
	f.until("both are refused", func() bool { return f.Status()[0].RefusedTotal == 2 })
	f.Adopt(h.parse(dir, fmt.Sprintf(part, "127.0.0.1")))
	f.has("east found", "west found")
	f.stop()

	f = finds(t, "", h.parse(dir, fmt.Sprintf(part, "")))
	f.until("all is refused", func() bool {
		text := fmt.Sprint(f.Problems())
		return strings.Contains(text, `west in secret istio-system/one is not followed: user "u": it runs the program "sh", whose credential could go to any server: list the servers that may get it in clusters[].allowServers`) &&
			strings.Contains(text, "east in secret istio-system/one is not followed: 127.0.0.1 is a loopback, link-local or unspecified address: add it to clusters[].allowServers")
	})
}

func TestOnceFindsWhatThereIsNow(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	cfg := h.parse(dir, fleet)
	all, err := Once(context.Background(), cfg)
	if err != nil || len(all) != 1 || all[0].Name != "east" {
		t.Errorf("%v: %+v", err, all)
	}
	h.set(func() { h.down = true })
	if _, err := Once(context.Background(), cfg); err == nil || !strings.HasPrefix(err.Error(), "clusters fleet: ") {
		t.Error(err)
	}
}

func TestASecretThatIsRottenTakesNoClusterAway(t *testing.T) {
	o := &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Data: []byte(`{"east": 1}`)}
	got := secretEntries(o)
	if len(got) != 1 || got[0].ID != "" || got[0].Origin != "secret a/b" || !strings.Contains(got[0].Problem, "the secret can not be read") {
		t.Errorf("%+v", got)
	}
	if got := secretEntries(&object.Object{ObjectMeta: metav1.ObjectMeta{Name: "b"}}); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if _, note := priorityOf(&object.Object{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{priorityAnnotation: "high"}}}); !strings.Contains(note, `"high": it is no whole number`) {
		t.Error(note)
	}
	if state := registry.Found; state != "found" { // package upstreams compares it as text
		t.Error(state)
	}
}
