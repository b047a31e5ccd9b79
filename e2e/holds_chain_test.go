package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Of two relays in a row the second holds, and asks the first over delta to repeat.
func TestARelayRepeatsHeldDeletionsToARelay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for n := range 5 {
		name := fmt.Sprintf("s%d", n)
		writeFile(t, filepath.Join(dir, name+".yaml"), serviceEntry(name, name+".example"))
		writeFile(t, filepath.Join(dir, fmt.Sprintf("v%d.yaml", n)), virtualService(fmt.Sprintf("v%d", n)))
	}
	first := newRelay(t, "first", []string{"files=" + dir})
	change(t, first.config, "  file: {path: "+dir+"}\n", "  file: {path: "+dir+"}\n  guard: {percent: 100}\n")
	first.start().ready()
	second := newRelay(t, "second", []string{"east=" + first.xds}).holding("{holdFor: 2s}").start().ready()
	if out := second.must(0, "status"); !strings.Contains(out, "xds/delta") {
		t.Fatalf("the second relay does not speak delta:\n%s", out)
	}
	c := dial(t, second.xds)
	entries, routes := c.follow(seV1, nil), c.follow("networking.istio.io/v1/VirtualService", nil)
	entries.mark()
	routes.mark()
	since := time.Now()
	first.pause(func() {
		for n := range 5 {
			if err := os.Remove(filepath.Join(dir, fmt.Sprintf("v%d.yaml", n))); err != nil {
				t.Fatal(err)
			}
		}
	})
	all := second.awaits("held", "carried-out")
	if time.Since(since) < 2*time.Second {
		t.Error("they were carried out before their time")
	}
	if h := all[0]; h.Reason != "every VirtualService would go" || !strings.HasPrefix(h.Text, "5 deletions of 10 resources held") {
		t.Errorf("the hold is %+v", h)
	}
	for _, e := range all {
		if e.Type == "lost" || e.Type == "carried-out" && !strings.Contains(e.Reason, "the upstream has repeated them") {
			t.Errorf("the first relay has not repeated them on the same stream: %+v", all)
		}
	}
	eventually(t, "they go", func() error {
		if routes.size() > 0 {
			return fmt.Errorf("%d are left", routes.size())
		}
		return nil
	})
	if got := entries.events(); got != "" {
		t.Errorf("what was repeated and has not changed was sent on: %s", got)
	}
}
