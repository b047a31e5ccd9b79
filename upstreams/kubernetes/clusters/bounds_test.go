package clusters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"meshrelay/upstreams/kubernetes/clusters/registry"
	"meshrelay/upstreams/kubernetes/object"
)

func TestTheTextsOfAHubAreBounded(t *testing.T) {
	long := strings.Repeat("long", 1<<14)
	exec := `{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: ` + long + `}}`
	h := newHub(t)
	kubeconfig := bytes.Replace(h.kubeconfig("t"), []byte("{token: t}"), []byte(exec), 1)
	for _, e := range (&reader{}).check([]registry.Entry{
		{ID: "program", Kubeconfig: kubeconfig}, {ID: "note", Kubeconfig: h.kubeconfig("t"), Note: long}, {ID: "problem", Problem: long},
	}) {
		if n := len(e.Problem) + len(e.Note); n == 0 || n > 1000 {
			t.Errorf("%s: %d bytes are told", e.ID, n)
		}
	}
}

func TestAMemoryThatCanNotBeReadStaysUntilAllIsRead(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	path := filepath.Join(dir, memoryName)
	if err := os.WriteFile(path, []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.set(func() { h.down = true })
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	f := finds(t, dir, h.parse(dir, fleet))
	f.until("the hub is down", func() bool { return f.Status()[0].Error != "" })
	f.stop()
	if _, whole := New(dir, slog.New(slog.DiscardHandler)); !whole {
		h.set(func() { h.down = false })
	} else {
		t.Fatal("the next start takes the clusters that could not be read for none")
	}
	f = finds(t, dir, f.cfg)
	f.has("east found")
	f.stop()
	if again, whole := New(dir, slog.New(slog.DiscardHandler)); !whole || len(again.restore) != 1 || len(again.restore[0].Clusters) != 1 {
		t.Errorf("%v: %+v", whole, again.restore)
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// secretOf returns a Secret with some data, which is JSON.
func secretOf(data string) *object.Object {
	o := &object.Object{Data: []byte(data)}
	o.Namespace, o.Name = "istio-system", "east"
	return o
}

// keysOf returns the data of a Secret with some keys.
func keysOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":"",`, i)
	}
	return "{" + strings.TrimSuffix(b.String(), ",") + "}"
}

// TestTheKeysOfASecretAreCountedBeforeTheyAreDecoded: 64 MiB of empty keys are six million clusters.
func TestTheKeysOfASecretAreCountedBeforeTheyAreDecoded(t *testing.T) {
	if all := secretEntries(secretOf(keysOf(maxKeys))); len(all) != maxKeys || all[0].Problem != "" {
		t.Errorf("%d entries: %s", len(all), all[0].Problem)
	}
	for _, o := range []*object.Object{secretOf(keysOf(maxKeys + 1)), secretOf(keysOf(800_000)), secretOf(`{"a":[` + strings.Repeat("1,", 800_000) + `1]}`)} {
		var all []registry.Entry
		if used := allocated(func() { all = secretEntries(o) }); used > 1<<20 {
			t.Errorf("%d bytes have %d MiB allocated", len(o.Data), used>>20)
		}
		if len(all) != 1 || all[0].ID != "" || all[0].Origin != "secret istio-system/east" || !strings.Contains(all[0].Problem, "it has more than 1000 keys: keep kubeconfigs in several secrets") {
			t.Errorf("%d entries: %+v", len(all), all[0])
		}
	}
}

func TestAHubWithTooManyClustersChangesNothing(t *testing.T) {
	h := newHub(t)
	h.secret("one", map[string][]byte{"east": h.kubeconfig("e")})
	f := finds(t, t.TempDir(), h.parse(t.TempDir(), fleet))
	f.has("east found")
	for i := range 6 {
		data := map[string][]byte{}
		for n := range maxKeys {
			data[fmt.Sprint(i, "-", n)] = nil
		}
		h.secret(fmt.Sprint("many-", i), data)
	}
	f.until("it is told", func() bool { return strings.Contains(f.Status()[0].Error, "more than 5000 objects or keys") })
	h.set(func() {
		for i := range 6 {
			delete(h.objects, fmt.Sprint("many-", i))
		}
	})
	f.until("the hub is read again", func() bool { return f.Status()[0].Error == "" })
	f.has("east found")
}

// FuzzSecrets compares the kubeconfigs of a Secret with what encoding/json makes of its data, and bounds what
// is allocated.
func FuzzSecrets(f *testing.F) {
	for _, data := range []string{`{"east":"YQ==","west":"Yg=="}`, `{"a":"YQ==","a":"Yg==","b":null,"c":[1,2]}`, keysOf(10), keysOf(maxKeys + 1), `{"a":"?"}`, `null`, strings.Repeat(`{"a":`, 2000), `{"\u0061\ud800":""}`} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var all []registry.Entry
		if used := allocated(func() { all = secretEntries(secretOf(string(data))) }); used > uint64(10*len(data)+2<<20) {
			t.Fatalf("%d bytes have %d MiB allocated", len(data), used>>20)
		}
		if len(all) == 1 && all[0].ID == "" && all[0].Problem != "" {
			return
		}
		var want map[string][]byte
		if err := json.Unmarshal(data, &want); len(data) > 0 && err != nil || len(want) != len(all) || len(all) > maxKeys {
			t.Fatalf("%q: %d entries, want %d: %v", data, len(all), len(want), err)
		}
		for i, id := range slices.Sorted(maps.Keys(want)) {
			if all[i].ID != id || !bytes.Equal(all[i].Kubeconfig, want[id]) {
				t.Fatalf("%q: entry %d is %+v", data, i, all[i])
			}
		}
	})
}
