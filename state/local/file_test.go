package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
	"meshrelay/state"
)

func TestADirectoryThatCanNotBeMadeIsMadeLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := openStore(New(dir, nil), state.Options{History: bounds, Retain: []string{"east"}})
	defer end(k)
	st := k.Status()
	if st.InUse || st.Healthy || !strings.Contains(st.LastError, dir) {
		t.Errorf("status %+v", st)
	}
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	if err := k.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
	since := k.Status().ErrorSince
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	flush(t, k)
	if st = k.Status(); !st.Healthy || !st.ErrorSince.IsZero() || since.IsZero() {
		t.Errorf("status %+v, failed since %v", st, since)
	}
	end(k)
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "1"})
}

// A file that was not read at the start, and is found later, may have what the source does not
// know of.
func TestAFileThatIsFoundLateKeepsWhatItHasUntilTheSourceHasSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the wait for the lock
		dir := t.TempDir()
		k := open(t, dir)
		f := newFake()
		f.setMeta(state.Meta{Synced: true, Frozen: &state.Frozen{Revision: 1}})
		f.put(record("db", "1"))
		f.put(record("gone", "1"))
		k.Follow("east", f)
		flush(t, k)
		end(k)

		other, err := os.Open(filepath.Join(dir, lockName))
		must(t, err)
		must(t, syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
		k = openStore(New(dir, nil), state.Options{History: bounds, Retain: []string{"east"}})
		if s := k.Load("east"); len(s.Records) > 0 || k.Status().InUse {
			t.Fatal("opened without a lock")
		}
		f = newFake()
		k.Follow("east", f)
		other.Close()
		f.put(record("new", "1"))
		flush(t, k)
		s := k.Load("east")
		same(t, "before it has synced", hostsOf(t, s.Records), map[string]string{"db": "1", "gone": "1", "new": "1"})
		if s.Meta.Frozen == nil {
			t.Error("what an operator has frozen is forgotten")
		}
		f.put(record("db", "2"))
		f.setMeta(state.Meta{Synced: true})
		flush(t, k)
		end(k)
		same(t, "after it has synced", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "2", "new": "1"})
	})
}

func TestAReadOnlyStateIsLoaded(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	if out, err := player(t, "readonly", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "2"})
}

// A readable state is served whatever is wrong with writing.
func TestAStateThatCanNotBeLockedIsLoadedAllTheSame(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	lock := filepath.Join(dir, lockName)
	must(t, os.Remove(lock))
	must(t, os.Mkdir(lock, 0o700))
	k := openState(dir)
	s := k.Load("east")
	same(t, "loaded", hostsOf(t, s.Records), map[string]string{"db": "1"})
	f := restoredFake(s)
	k.Follow("east", f)
	f.put(record("cache", "1"))
	texts := map[string]bool{}
	for range 3 {
		if err := k.Flush(t.Context()); err == nil {
			t.Fatal("flushed without a lock")
		}
		texts[k.Status().LastError] = true
	}
	if len(texts) != 1 {
		t.Errorf("one mistake has several errors: %v", texts)
	}
	must(t, os.Remove(lock))
	flush(t, k)
	end(k)
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "1", "cache": "1"})
}

func TestFilesAreTheirOwnersAlone(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "a", "state")
	end(open(t, dir))
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Dir(dir): 0o700, Path(dir): 0o600, filepath.Join(dir, lockName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v; %v", path, info.Mode().Perm(), want, err)
		}
	}
}

func TestAFileThatIsRemovedWhileInUseIsWrittenAnew(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, dir string){
		"the file":      func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, logName("east")))) },
		"the index":     func(t *testing.T, dir string) { must(t, os.Remove(Path(dir))) },
		"the directory": func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
		"another file": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, logName("east"))))
			must(t, os.WriteFile(filepath.Join(dir, logName("east")), []byte("mine"), 0o600))
		},
		"another index": func(t *testing.T, dir string) {
			must(t, os.Remove(Path(dir)))
			must(t, os.WriteFile(Path(dir), []byte("mine"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			k := open(t, dir)
			f := newFake()
			k.Follow("east", f)
			f.put(record("db", "1"))
			flush(t, k)
			remove(t, dir)
			f.put(record("cache", "1"))
			flush(t, k)
			if st := k.Status(); !st.Healthy || strings.HasPrefix(name, "another") && len(st.SetAside) != 1 {
				t.Errorf("status %+v", st)
			}
			revisions := 1 // the history is lost with the log
			if strings.HasSuffix(name, "index") {
				revisions = 2
			}
			if h, err := k.History("east"); err != nil || len(h) != revisions {
				t.Errorf("history %+v, %v", h, err)
			}
			end(k)
			k = openState(dir)
			defer end(k)
			same(t, "loaded", hostsOf(t, k.Load("east").Records), map[string]string{"db": "1", "cache": "1"})
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatIsDamagedWhileInUseIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	east, west := newFake(), newFake()
	k.Follow("east", east)
	k.Follow("west", west)
	for i := range 100 {
		east.put(record(fmt.Sprint("r", i), "1"))
		west.put(record(fmt.Sprint("r", i), "1"))
	}
	flush(t, k)
	east.put(record("more", "1"))
	flush(t, k)
	must(t, os.Truncate(filepath.Join(dir, logName("east")), 3*4096))
	if _, err := k.At("east", 1); err == nil {
		t.Error("damage is no error")
	}
	east.put(record("new", "1"))
	flush(t, k)
	st := k.Status()
	if !st.InUse || len(st.SetAside) != 1 || !st.Healthy {
		t.Errorf("status %+v", st)
	}
	west.put(record("new", "1"))
	flush(t, k)
	if h, err := k.History("west"); err != nil || len(h) != 2 {
		t.Errorf("history %+v, %v", h, err)
	}
	end(k)
	k = openState(dir)
	defer end(k)
	same(t, "east", hostsOf(t, k.Load("east").Records), east.hosts())
	same(t, "west", hostsOf(t, k.Load("west").Records), west.hosts())
}

func TestALargeFileThatIsMostlyGarbageIsCompacted(t *testing.T) {
	dir, o := t.TempDir(), bounds
	o.Revisions = 1
	k := openWith(dir, o)
	f := newFake()
	k.Follow("east", f)
	for i := range 2000 {
		f.put(record(fmt.Sprint("r", i), strings.Repeat("x", 1500)))
	}
	flush(t, k)
	before := k.Status().Size
	for i := range 1900 {
		f.remove(fmt.Sprint("r", i))
	}
	flush(t, k)
	if st := k.Status(); !st.Healthy || st.Size > before/4 {
		t.Errorf("%d bytes, were %d; status %+v", st.Size, before, st)
	}
	f.put(record("new", "1"))
	flush(t, k)
	end(k)
	s := open(t, dir).Load("east")
	same(t, "loaded", hostsOf(t, s.Records), f.hosts())
	if s.Revision != 3 {
		t.Errorf("revision %d", s.Revision)
	}
}

// The size of a log is bounded, whatever the number of changes.
func TestALogIsNotMuchLargerThanWhatIsNeededOfIt(t *testing.T) {
	dir, o := t.TempDir(), bounds
	o.Revisions = 10
	k := openWith(dir, o)
	f := newFake()
	k.Follow("east", f)
	var most int64
	for n := range 150 {
		for i := range 10 {
			f.put(record(fmt.Sprint("r", i), fmt.Sprint(n, strings.Repeat("x", 4000))))
		}
		flush(t, k)
		most = max(most, k.Status().Size)
	}
	if needed := int64(11 * 10 * 12_000); most > 2*needed+2*minGrowth {
		t.Errorf("%d bytes at most, and about %d are needed", most, needed)
	}
	if h, err := k.History("east"); err != nil || len(h) != 10 || h[0].ID != 150 {
		t.Errorf("history %+v, %v", h, err)
	}
	end(k)
	k = openWith(dir, o)
	defer end(k)
	same(t, "loaded", hostsOf(t, k.Load("east").Records), f.hosts())
	for id := uint64(141); id <= 150; id++ {
		records, err := k.At("east", id)
		must(t, err)
		if got := hostsOf(t, records)["r3"]; !strings.HasPrefix(got, fmt.Sprint(id-1, "x")) {
			t.Errorf("revision %d is %.10s", id, got)
		}
	}
}

// appendRaw puts a record into a log that this build would not write.
func appendRaw(t *testing.T, dir, name string, key mirror.Key, record []byte) {
	t.Helper()
	u, err := openUpstream(dir, name)
	must(t, err)
	defer u.file.Close()
	w := newWriter(u, u.file)
	err = w.put(frame{key: encodeKey(key), record: record}, false, &state.Revision{})
	must(t, err)
	_, err = w.commit(proto.CloneOf(u.ledger), nil)
	must(t, err)
	must(t, w.flush())
	must(t, u.sync())
}

// A resource that this build can not use is removed: the source does not know of it, and nobody
// else would ever remove it.
func TestWhatThisVersionCanNotUseIsRemoved(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.put(record("db", "1"))
	f.setMeta(state.Meta{Synced: true})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	appendRaw(t, dir, "east", resource("bad", "1").Key(), []byte("\xff"))
	k = openState(dir)
	s := k.Load("east")
	if st := k.Status(); len(s.Unusable) != 1 || len(st.SetAside) > 0 {
		t.Errorf("unusable %v, status %+v", s.Unusable, st)
	}
	same(t, "loaded", hostsOf(t, s.Records), map[string]string{"db": "1"})
	k.Follow("east", restoredFake(s))
	flush(t, k)
	end(k)
	k = open(t, dir)
	if s := k.Load("east"); len(s.Records) != 1 || len(s.Unusable) != 0 {
		t.Errorf("%d records, unusable %v", len(s.Records), s.Unusable)
	}
}

func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	flush(t, k)
	want := `
# HELP relay_state_healthy Whether the state is in use and was written without error the last time.
# TYPE relay_state_healthy gauge
relay_state_healthy 1
# HELP relay_state_set_aside_files State files in the directory that could not be used and were set aside.
# TYPE relay_state_set_aside_files gauge
relay_state_set_aside_files 0
`
	if err := testutil.CollectAndCompare(k, strings.NewReader(want), "relay_state_healthy", "relay_state_set_aside_files"); err != nil {
		t.Error(err)
	}
}
