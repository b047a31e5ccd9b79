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
			must(t, errorOf(r.m.Freeze(t.Context(), "local", Order{})))
			must(t, errorOf(r.m.Unfreeze(t.Context(), "local", Order{})))
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
		must(t, source.restateAll(nil))
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

func TestAReloadBeforeTheFilesCanBeReadDeletesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "conf")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("f", "f.example"))
	u := fileUpstream("local", path)
	var saved state.Saved
	t.Run("before", func(t *testing.T) {
		r := runManager(t, nil, u)
		r.awaitServed("shop/f=f.example@local")
		saved = state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: r.m.members[0].gate.fingerprint}, Records: r.m.members[0].source.kept()}
	})
	if err := os.Rename(path, path+".away"); err != nil { // the mount is not there
		t.Fatal(err)
	}
	r := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"local": saved}}, u)
	r.awaitServed("shop/f=f.example@local")
	u.Rewrite.NamePrefix = "p-"
	r.mustApply(u)
	r.await("path can not be read", func() bool { return r.m.Status()[0].LastError != "" })
	r.awaitServed("shop/p-f=f.example@local")
}

func TestARestartWithABrokenFileKeepsWhatItGave(t *testing.T) {
	path := t.TempDir()
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("f", "f.example"))
	writeFile(t, filepath.Join(path, "g.yaml"), serviceEntry("g", "g.example"))
	u := fileUpstream("local", path)
	var saved state.Saved
	t.Run("before", func(t *testing.T) {
		r := runManager(t, nil, u)
		r.awaitServed("shop/f=f.example@local shop/g=g.example@local")
		writeFile(t, filepath.Join(path, "f.yaml"), "kind: [\n")
		r.await("refused", func() bool { return r.m.Status()[0].RefusedTotal > 0 })
		if got := r.served(); got != "shop/f=f.example@local shop/g=g.example@local" {
			t.Fatalf("served %q", got)
		}
		saved = state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: r.m.members[0].gate.fingerprint}, Records: r.m.members[0].source.kept()}
	})
	writeFile(t, filepath.Join(path, "z.yaml"), serviceEntry("z", "z.example")) // what shows that they have been read
	r := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"local": saved}}, u)
	r.await("the files have been read", func() bool { return strings.Contains(r.served(), "shop/z") })
	if got := r.served(); got != "shop/f=f.example@local shop/g=g.example@local shop/z=z.example@local" {
		t.Fatalf("served %q", got)
	}
}

func TestAReloadWithABrokenFileKeepsWhatItGave(t *testing.T) {
	path := t.TempDir()
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("f", "f.example"))
	writeFile(t, filepath.Join(path, "g.yaml"), serviceEntry("g", "g.example"))
	u := fileUpstream("local", path)
	r := runManager(t, nil, u)
	r.awaitServed("shop/f=f.example@local shop/g=g.example@local")
	writeFile(t, filepath.Join(path, "f.yaml"), "kind: [\n")
	r.await("refused", func() bool { return r.m.Status()[0].RefusedTotal > 0 })
	u.Rewrite.NamePrefix = "p-"
	r.mustApply(u)
	writeFile(t, filepath.Join(path, "z.yaml"), serviceEntry("z", "z.example"))
	r.await("the files have been read", func() bool { return strings.Contains(r.served(), "shop/p-z") })
	if got := r.served(); got != "shop/p-f=f.example@local shop/p-g=g.example@local shop/p-z=z.example@local" {
		t.Fatalf("served %q", got)
	}
}

func TestAFileThatGrowsOverTheLimitKeepsItsLastGoodContent(t *testing.T) {
	path := t.TempDir()
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("m", "m.example"))
	u := fileUpstream("local", path)
	u.Limits.MaxResourceBytes = 2000
	r := runManager(t, nil, u)
	r.awaitServed("shop/m=m.example@local")
	big := make([]byte, 5000)
	for i := range big {
		big[i] = 'x'
	}
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("m", string(big)+".example"))
	r.await("it is over the limit", func() bool { return r.m.Status()[0].OverLimit > 0 })
	r.awaitServed("shop/m=m.example@local")
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
