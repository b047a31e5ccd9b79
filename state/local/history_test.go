package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"meshrelay/state"
)

func TestEveryRevisionIsAsTheModelHasIt(t *testing.T) {
	t.Parallel() // it waits for the disk
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "state")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		o := bounds
		o.Revisions = rapid.IntRange(0, 8).Draw(t, "revisions")
		o.MaxBytes = rapid.SampledFrom([]int{0, 600, 3000, 1 << 20}).Draw(t, "bytes")
		k := openWith(dir, o)
		defer func() { end(k) }()
		f := newFake()
		k.Follow("east", f)
		model := map[uint64]map[string]string{}
		var last uint64
		for range rapid.IntRange(1, 15).Draw(t, "flushes") {
			before := f.hosts()
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				name := fmt.Sprint("r", rapid.IntRange(0, 5).Draw(t, "name"))
				if rapid.Bool().Draw(t, "remove") {
					f.remove(name)
				} else {
					f.put(record(name, fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "host"))))
				}
			}
			if err := k.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if now := f.hosts(); fmt.Sprint(now) != fmt.Sprint(before) {
				last++
				model[last] = now
			}
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				end(k)
				k = openWith(dir, o)
				s := k.Load("east")
				if s.Revision != last || len(k.Status().SetAside) > 0 {
					t.Fatalf("after a restart: revision %d, was %d, status %+v", s.Revision, last, k.Status())
				}
				f = restoredFake(s)
				k.Follow("east", f)
			}
		}
		history, err := k.History("east")
		if err != nil {
			t.Fatal(err)
		}
		if n := min(int(last), o.Revisions); len(history) > n || n > 0 && len(history) == 0 ||
			o.MaxBytes == 1<<20 && len(history) != n {
			t.Fatalf("%d revisions, there were %d, bounds %+v", len(history), last, o)
		}
		for i, r := range history {
			if r.ID != last-uint64(i) || r.Resources != len(model[r.ID]) {
				t.Fatalf("revision %+v, want %d with %d resources", r, last-uint64(i), len(model[r.ID]))
			}
			checkRevision(t, r, model[r.ID-1], model[r.ID])
			records, err := k.At("east", r.ID)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, rec := range records {
				got[rec.Resource.Key().Name] = rec.Resource.SourceVersion()[2:]
			}
			if fmt.Sprint(got) != fmt.Sprint(model[r.ID]) {
				t.Fatalf("revision %d is %v, want %v", r.ID, got, model[r.ID])
			}
		}
	})
}

// checkRevision compares a revision with the resources before and after it.
func checkRevision(t *rapid.T, r state.Revision, before, after map[string]string) {
	var added, changed, removed int
	for name, host := range after {
		if was, had := before[name]; !had {
			added++
		} else if was != host {
			changed++
		}
	}
	for name := range before {
		if _, has := after[name]; !has {
			removed++
		}
	}
	if r.Added != added || r.Changed != changed || r.Removed != removed || len(r.Keys) != min(added+changed+removed, maxNamed) {
		t.Fatalf("revision %+v, want %d added, %d changed, %d removed", r, added, changed, removed)
	}
	for _, key := range r.Keys {
		if len(key) < 2 || key[0] != '+' && key[0] != '~' && key[0] != '-' || key[1:len(key)-1] != "networking.istio.io/ServiceEntry shop/r" {
			t.Fatalf("key %q", key)
		}
	}
}

func TestQuestionsAboutThePastThatHaveNoAnswer(t *testing.T) {
	dir, o := t.TempDir(), bounds
	o.Revisions = 2
	k := openWith(dir, o)
	defer end(k)
	if h, err := k.History("east"); err != nil || len(h) > 0 {
		t.Errorf("history %+v, %v", h, err)
	}
	f := newFake()
	k.Follow("east", f)
	for i := range 4 {
		f.put(record("db", fmt.Sprint(i)))
		flush(t, k)
	}
	for revision, want := range map[uint64]string{0: "there are 3 to 4", 2: "there are 3 to 4", 5: "there are 3 to 4"} {
		if _, err := k.At("east", revision); !errors.Is(err, state.ErrUnknownRevision) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "east") {
			t.Errorf("revision %d: error %v, want it to say %s", revision, err, want)
		}
	}
	for _, name := range []string{"west", ""} {
		if _, err := k.At(name, 1); !errors.Is(err, state.ErrUnknownRevision) {
			t.Errorf("error %v", err)
		}
	}
	end(k)
	if _, err := k.At("east", 4); !errors.Is(err, state.ErrNotInUse) {
		t.Errorf("error %v", err)
	}
}

// A change larger than the history leaves the newest revision, and no undo data.
func TestOneChangeLargerThanTheHistoryMayBe(t *testing.T) {
	dir, o := t.TempDir(), bounds
	o.MaxBytes = 10_000
	k := openWith(dir, o)
	f := newFake()
	k.Follow("east", f)
	for i := range 200 {
		f.put(record(fmt.Sprint("r", i), "1"))
	}
	flush(t, k)
	for i := range 200 {
		f.remove(fmt.Sprint("r", i))
	}
	flush(t, k)
	if h, err := k.History("east"); err != nil || len(h) != 1 || h[0].ID != 2 || h[0].Removed != 200 || len(h[0].Keys) != maxNamed {
		t.Errorf("history %+v, %v", h, err)
	}
	end(k)
	src, err := openUpstream(dir, "east")
	must(t, err)
	defer src.file.Close()
	if len(src.rows) != 1 {
		t.Errorf("%d revisions", len(src.rows))
	}
}

func TestBoundsThatWereLoweredHoldAtOnce(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	k.Follow("east", f)
	for i := range 10 {
		f.put(record("db", fmt.Sprint(i)))
		flush(t, k)
	}
	end(k)
	for _, n := range []int{3, 1, 0} {
		o := bounds
		o.Revisions = n
		k = openWith(dir, o)
		k.Follow("east", restoredFake(k.Load("east")))
		flush(t, k)
		if h, err := k.History("east"); err != nil || len(h) != n {
			t.Errorf("history %+v, %v, want %d", h, err, n)
		}
		end(k)
		file, err := ReadFile(Path(dir))
		if err != nil || file.Damage != "" || file.Sources[0].Revisions != n {
			t.Errorf("%+v, %v", file, err)
		}
	}
}

func TestOptionsAreReplacedWhileTheKeeperRuns(t *testing.T) {
	k := open(t, t.TempDir())
	defer end(k)
	f := newFake()
	k.Follow("east", f)
	for i := range 10 {
		f.put(record("db", fmt.Sprint(i)))
		flush(t, k)
	}
	k.SetOptions(state.Options{History: state.History{Revisions: 2}})
	f.put(record("db", "last"))
	flush(t, k)
	if h, err := k.History("east"); err != nil || len(h) != 2 || h[0].ID != 11 {
		t.Errorf("history %+v, %v", h, err)
	}
}

func TestABackupIsWhole(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	flush(t, k)
	var copied bytes.Buffer
	// Changes go on while it is written.
	w := &during{do: func() {
		f.put(record("db", "2"))
		flush(t, k)
	}, to: &copied}
	if err := k.Backup(w); err != nil {
		t.Fatal(err)
	}
	file, err := ReadFile(Path(unpacked(t, copied.Bytes())))
	if err != nil || file.Damage != "" || len(file.Sources) != 1 || file.Sources[0].Revisions != 1 {
		t.Fatalf("%+v, %v", file, err)
	}
	same(t, "the backup", hostsOf(t, file.Sources[0].Records), map[string]string{"db": "1"})
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"db": "2"})
	end(k)
	if err := k.Backup(&bytes.Buffer{}); err == nil {
		t.Error("a backup of what is closed")
	}
}

// during does something before the second write.
type during struct {
	writes int
	do     func()
	to     io.Writer
}

func (d *during) Write(p []byte) (int, error) {
	if d.writes++; d.writes == 2 {
		d.do()
	}
	return d.to.Write(p)
}
