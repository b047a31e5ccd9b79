package conflicts

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

func TestPanicOverAConfigIsCountedAndNoMore(t *testing.T) {
	w := newWorld(t, "serve", "east")
	var logged bytes.Buffer
	w.log = slog.New(slog.NewTextHandler(&logged, nil))
	w.keys.now = nil // asked for when a key is in conflict
	r := build(t, federation.ServiceEntry, "a", "x", "east", &networking.ServiceEntry{Hosts: []string{"db.example"}})
	w.update(mirror.Change{Key: r.Key()})
	p := panics.Try(func() {
		w.update(mirror.Change{Key: r.Key(), Resolution: &mirror.Resolution{Copies: make([]mirror.Copy, 2)}})
	})
	w.panicked(r.Key(), p)
	if n := w.panics.Load(); n != 1 || !strings.Contains(logged.String(), "nil pointer") || !strings.Contains(logged.String(), "keys.go") {
		t.Errorf("%d panics, logged:\n%s", n, logged.String())
	}
	w.put(r)
	if n := len(w.conflicts()); n != 0 || w.resources.Get(r.Key()) == nil {
		t.Errorf("it is not served, with %d conflicts", n)
	}
}
