package upstreams_test

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReloadsInARowShowNoGap(t *testing.T) {
	path := t.TempDir()
	for _, n := range []string{"a", "b", "c"} {
		writeFile(t, filepath.Join(path, n+".yaml"), serviceEntry(n, n+".example"))
	}
	u := fileUpstream("local", path)
	r := runManager(t, nil, u)
	r.await("three", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 3 })
	gone := 0
	store := r.m.Upstreams()[0].Store()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n := store.Counts()[xdsEntryKind]; n == 0 {
				gone++
			}
		}
	}()
	for i := range 20 {
		u.Rewrite.Labels.Set = map[string]string{"n": string(rune('a' + i))}
		r.mustApply(u)
	}
	close(stop)
	<-done
	if gone > 0 {
		t.Errorf("it was seen empty %d times", gone)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serviceEntry is a document with a ServiceEntry of the namespace shop.
func serviceEntry(name, host string) string {
	return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: " + name + "\n  namespace: shop\nspec:\n  hosts:\n  - " + host + "\n"
}
