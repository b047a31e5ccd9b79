package clusters

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

func TestTheTextsOfAHubAreBounded(t *testing.T) {
	long := strings.Repeat("long", 1<<14)
	exec := `{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: ` + long + `}}`
	h := newHub(t)
	kubeconfig := bytes.Replace(h.kubeconfig("t"), []byte("{token: t}"), []byte(exec), 1)
	for _, e := range (&checker{}).check([]registry.Entry{
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
	f.eventually("the hub is down", func() bool { return f.Status()[0].Error != "" })
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

func TestADirectoryIsBounded(t *testing.T) {
	d := &directory{checker: &checker{}, path: t.TempDir()}
	for i := range maxDirectory/apiserver.MaxKubeconfig + 1 {
		path := filepath.Join(d.path, strconv.Itoa(i))
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, apiserver.MaxKubeconfig)); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := d.list(t.Context()); err == nil || !strings.Contains(err.Error(), "has more than 64 MiB") {
		t.Errorf("%d entries: %v", len(all), err)
	}
}
