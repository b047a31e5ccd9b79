package upstreams

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
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

// manyEntries is a file of ServiceEntries shop/P0, shop/P1, …
func manyEntries(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\n%s", serviceEntry(fmt.Sprint(prefix, i), fmt.Sprintf("%s%d.example", prefix, i)))
	}
	return b.String()
}

// restartedFile reads a directory, as after a restart, until it has settled.
func restartedFile(t *testing.T, dir string, guard config.Guard, saved state.Saved) *File {
	t.Helper()
	cfg := config.Upstream{Name: "local", ClusterID: "local", Guard: guard, File: &config.File{Path: dir}}
	f, err := NewFile(cfg, config.Provenance{}, mirror.NewStore(), slog.New(slog.DiscardHandler))
	must(t, err)
	f.gate.keeps = true
	f.scanner.now = func() time.Time { return time.Now().Add(time.Hour) } // nobody writes any more
	if len(saved.Records) > 0 {
		f.restore(saved)
		f.adopt(saved.Records, true)
	}
	readFiles(t, f)
	return f
}

func readFiles(t *testing.T, f *File) {
	t.Helper()
	must(t, f.scanner.scan(f.path))
	f.apply(nil)
}

func TestFilesThatHaveReplacedEverythingMeanwhileAreHeld(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.yaml")
	guard := config.Guard{Percent: 30, Count: 10}
	writeFile(t, path, manyEntries("e", 40))
	saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now()}, Records: restartedFile(t, dir, guard, state.Saved{}).kept()}
	writeFile(t, path, manyEntries("other", 100))
	f := restartedFile(t, dir, guard, saved)
	if st := f.Status(); f.isFresh() || st.Held == nil || f.store.Counts()[xdsEntryKind] != 140 {
		t.Errorf("held %+v, %d resources", st.Held, f.store.Counts()[xdsEntryKind])
	}
}

func TestFilesThatAreThereAgainAreHeldNoLonger(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.yaml")
	guard := config.Guard{Percent: 30, Count: 10, HoldFor: config.OpenEnded(10 * time.Minute)}
	writeFile(t, path, manyEntries("e", 40))
	saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), HeldSince: time.Now().Add(-time.Hour)}, Records: restartedFile(t, dir, guard, state.Saved{}).kept()}
	f := restartedFile(t, dir, guard, saved)
	if _, meta := f.gate.TakeChanges(); !meta.HeldSince.IsZero() {
		t.Errorf("nothing is held, and kept is that something is since %v", meta.HeldSince)
	}
	writeFile(t, path, manyEntries("e", 1))
	readFiles(t, f)
	f.gate.due(time.Now())
	if st := f.Status(); st.Held == nil || f.store.Counts()[xdsEntryKind] != 40 {
		t.Errorf("a new accident: held %+v, %d resources", st.Held, f.store.Counts()[xdsEntryKind])
	}
}
