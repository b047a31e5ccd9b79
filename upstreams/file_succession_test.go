package upstreams

import (
	"os"
	"path/filepath"
	"testing"

	"meshrelay/mirror"
)

// reloadedBesideABrokenFile returns a directory with shop/a, and a file that can not be read,
// of which a source has been made anew: so what it had before is carried.
func reloadedBesideABrokenFile(t *testing.T) (r *managed, path string) {
	t.Helper()
	path = t.TempDir()
	writeFile(t, filepath.Join(path, "a.yaml"), serviceEntry("a", "a.example"))
	writeFile(t, filepath.Join(path, "b.yaml"), serviceEntry("b", "b.example"))
	writeFile(t, filepath.Join(path, "bad.yaml"), "kind: [\n")
	u := fileUpstream("local", path)
	r = runManager(t, nil, u)
	r.awaitServed("shop/a=a.example@local shop/b=b.example@local")
	u.Rewrite.Labels.Set = map[string]string{"n": "1"}
	r.mustApply(u)
	r.await("read again", func() bool { return r.m.Status()[0].State == StateSynced })
	return r, path
}

// What is carried must not be said before what has replaced it.
func TestSayingAFileSourceOnceMoreNeverGoesBackInTime(t *testing.T) {
	r, path := reloadedBesideABrokenFile(t)
	writeFile(t, filepath.Join(path, "a.yaml"), serviceEntry("a", "new.example"))
	r.awaitServed("shop/a=new.example@local shop/b=b.example@local")
	store, source := r.m.members[0].store, r.m.members[0].source
	stop, done, back := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(done)
		key := mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: "a"}
		for {
			select {
			case <-stop:
				return
			default:
			}
			if hostOf(t, store.Get(key)) == "a.example" {
				back++
			}
		}
	}()
	for range 1000 {
		must(t, source.restateAll(nil))
	}
	close(stop)
	<-done
	if back > 0 {
		t.Errorf("older content was seen %d times after newer", back)
	}
}

func TestReloadsInARowShowNoGap(t *testing.T) {
	path := t.TempDir()
	for _, n := range []string{"a", "b", "c"} {
		writeFile(t, filepath.Join(path, n+".yaml"), serviceEntry(n, n+".example"))
	}
	u := fileUpstream("local", path)
	r := runManager(t, nil, u)
	r.await("three", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 3 })
	gone := 0
	store := r.m.members[0].store
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
