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

func TestWhatFilesHaveDeletedDoesNotComeBackBesideABrokenOne(t *testing.T) {
	for _, tc := range []struct {
		name string
		by   func(t *testing.T, r *managed, path string)
	}{
		{"by a reload", func(_ *testing.T, r *managed, path string) {
			u := fileUpstream("local", path)
			u.Rewrite.Labels.Set = map[string]string{"n": "2"}
			r.mustApply(u)
		}},
		{"by unfreezing", func(t *testing.T, r *managed, _ string) {
			must(t, r.m.Freeze(t.Context(), "local"))
			must(t, r.m.Unfreeze(t.Context(), "local"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, path := reloadedBesideABrokenFile(t)
			must(t, os.Remove(filepath.Join(path, "a.yaml")))
			r.awaitServed("shop/b=b.example@local")
			tc.by(t, r, path)
			writeFile(t, filepath.Join(path, "z.yaml"), serviceEntry("z", "z.example")) // shows that it has been read
			r.awaitServed("shop/b=b.example@local shop/z=z.example@local")
		})
	}
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
		must(t, source.restateAll(false))
	}
	close(stop)
	<-done
	if back > 0 {
		t.Errorf("older content was seen %d times after newer", back)
	}
}
