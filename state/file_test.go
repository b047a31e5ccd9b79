package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.etcd.io/bbolt"
)

func TestADirectoryThatCanNotBeMadeIsMadeLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := Open(options(dir))
	defer end(k)
	st := k.Status()
	if st.InUse || st.Healthy || !strings.Contains(st.LastError, dir) {
		t.Errorf("status %+v", st)
	}
	k.Retain([]string{"east"})
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

func TestAttemptsBecomeRareWhileTheyFail(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k := Open(options(dir))
	defer end(k)
	for range 10 {
		if k.Flush(t.Context()) == nil {
			t.Fatal("no error")
		}
		if now := k.Status(); k.isDue(now.ErrorSince) {
			t.Fatal("it is tried again at once")
		}
	}
	since := k.Status().ErrorSince
	if k.isDue(since.Add(retryMost/2)) || !k.isDue(since.Add(retryMost*2)) {
		t.Errorf("tried again at %v, failed since %v", k.nextTry, since)
	}
}

// A file that was not read at the start, and is found later, may have what the source does not
// know of.
func TestAFileThatIsFoundLateKeepsWhatItHasUntilTheSourceHasSynced(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.setMeta(Meta{Synced: true, Frozen: &Frozen{Revision: 1}})
	f.put(record("db", "1"))
	f.put(record("gone", "1"))
	k.Follow("east", f)
	flush(t, k)
	end(k)

	other, err := os.Open(filepath.Join(dir, lockName))
	must(t, err)
	must(t, lock(other, syscall.LOCK_EX))
	k = Open(options(dir))
	if s := k.Load("east"); len(s.Records) > 0 || k.Status().InUse {
		t.Fatal("opened without a lock")
	}
	f = newFake()
	k.Retain([]string{"east"})
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
	f.setMeta(Meta{Synced: true})
	flush(t, k)
	end(k)
	same(t, "after it has synced", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "2", "new": "1"})
}

func TestAReadOnlyStateIsLoaded(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	if out, err := player(t, "readonly", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "2"})
}

// Whatever is wrong with writing, what can be read is served.
func TestAStateThatCanNotBeLockedIsLoadedAllTheSame(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	lock := filepath.Join(dir, lockName)
	must(t, os.Remove(lock))
	must(t, os.Mkdir(lock, 0o700))
	k := Open(options(dir))
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

func TestAFileOfANewerRelayIsSetAsideAndNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	k := newKeeper(options(dir))
	k.format.version = formatVersion + 1
	if err := k.attach(); err != nil {
		t.Fatal(err)
	}
	k.close()
	before, err := os.ReadFile(Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(Path(dir)); !errors.Is(err, errNewer) {
		t.Errorf("error %v", err)
	}
	k = Open(options(dir))
	defer end(k)
	st := k.Status()
	if !st.Healthy || len(st.SetAside) != 1 || !strings.Contains(st.SetAside[0], asideUnknown) {
		t.Fatalf("status %+v", st)
	}
	if after, err := os.ReadFile(st.SetAside[0]); err != nil || string(after) != string(before) {
		t.Errorf("it is not as it was: %v", err)
	}
}

func TestAFileOfAnOlderRelayIsBroughtForward(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	k := newKeeper(options(dir))
	var steps []string
	k.format = format{version: formatVersion + 2, steps: map[uint64]func(*bbolt.Tx) error{
		formatVersion: func(tx *bbolt.Tx) error {
			steps = append(steps, "first")
			return tx.Bucket([]byte(sourcesBucket)).Bucket([]byte("east")).Put([]byte("new"), []byte("1"))
		},
		formatVersion + 1: func(*bbolt.Tx) error { steps = append(steps, "second"); return nil },
	}}
	if err := k.attach(); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(steps) != "[first second]" {
		t.Errorf("steps %v", steps)
	}
	same(t, "loaded", hostsOf(t, k.Load("east").Records), map[string]string{"db": "1"})
	k.close()

	// A step that fails leaves the file as it was.
	k = newKeeper(options(dir))
	k.format = format{version: formatVersion + 3, steps: map[uint64]func(*bbolt.Tx) error{
		formatVersion + 2: func(*bbolt.Tx) error { return errors.New("no") },
	}}
	if err := k.attach(); err == nil {
		t.Error("no error")
	}
	k.close()
	k = newKeeper(options(dir))
	k.format.version = formatVersion + 2
	if err := k.attach(); err != nil {
		t.Error(err)
	}
	k.close()
}

func TestAFileThatIsRemovedWhileInUseIsWrittenAnew(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, dir string){
		"the file":      func(t *testing.T, dir string) { must(t, os.Remove(Path(dir))) },
		"the directory": func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
		"another file": func(t *testing.T, dir string) {
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
			if st := k.Status(); !st.Healthy || name == "another file" && len(st.SetAside) != 1 {
				t.Errorf("status %+v", st)
			}
			if h, err := k.History("east"); err != nil || len(h) != 2 {
				t.Errorf("history %+v, %v", h, err)
			}
			end(k)
			k = Open(options(dir))
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

// damage cuts off what follows the first pages of a file that is in use, so that to read it is
// a fault.
func damage(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Truncate(Path(dir), 3*4096))
}

func TestAFileThatIsDamagedWhileInUseIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	east, west := newFake(), newFake()
	k.Follow("east", marking{east})
	k.Follow("west", west)
	for i := range 100 {
		east.put(record(fmt.Sprint("r", i), "1"))
		west.put(record(fmt.Sprint("r", i), "1"))
	}
	flush(t, k)
	damage(t, dir)
	if _, err := k.At("east", 1); err == nil {
		t.Error("a fault is no error")
	}
	east.put(record("new", "1"))
	if err := k.Flush(t.Context()); err == nil {
		t.Error("what can not be read was written")
	}
	flush(t, k)
	st := k.Status()
	if !st.InUse || len(st.SetAside) != 1 || fmt.Sprint(st.NotKept) != "[west]" || st.Healthy {
		t.Errorf("status %+v", st)
	}
	west.put(record("new", "1"))
	flush(t, k)
	end(k)
	k = Open(options(dir))
	defer end(k)
	same(t, "east", hostsOf(t, k.Load("east").Records), east.hosts())
	// Part of what a source has would be worse than nothing.
	if s := k.Load("west"); len(s.Records) > 0 {
		t.Errorf("west has %d records", len(s.Records))
	}
}

func TestALargeFileThatIsMostlyFreeIsCompacted(t *testing.T) {
	dir := t.TempDir()
	o := options(dir)
	o.HistoryRevisions = 1
	k := Open(o)
	f := newFake()
	k.Follow("east", f)
	for i := range 2000 {
		f.put(record(fmt.Sprint("r", i), strings.Repeat("x", 1500)))
	}
	flush(t, k)
	for i := range 1900 {
		f.remove(fmt.Sprint("r", i))
	}
	flush(t, k)
	before := k.Status().Size
	end(k)

	k = Open(o)
	k.compactAbove = before
	s := k.Load("east")
	f = restoredFake(s)
	k.Follow("east", f)
	k.busy <- struct{}{}
	k.compact()
	k.release()
	if st := k.Status(); !st.Healthy || st.Size > before/4 {
		t.Errorf("%d bytes, were %d; status %+v", st.Size, before, st)
	}
	f.put(record("new", "1"))
	flush(t, k)
	end(k)
	s = open(t, dir).Load("east")
	same(t, "loaded", hostsOf(t, s.Records), f.hosts())
	if s.Revision != 3 {
		t.Errorf("revision %d", s.Revision)
	}
}

func TestReplaceMakesTheWholeContent(t *testing.T) {
	dir := t.TempDir()
	must(t, Replace(options(dir), "east", Saved{Records: []Record{*record("db", "1"), *record("gone", "1")}}))
	must(t, Replace(options(dir), "east", Saved{Meta: Meta{Synced: true}, Records: []Record{*record("db", "2")}}))
	k := open(t, dir)
	s := k.Load("east")
	same(t, "loaded", hostsOf(t, s.Records), map[string]string{"db": "2"})
	if h, err := k.History("east"); err != nil || len(h) != 2 || h[0].Removed != 1 || !s.Meta.Synced {
		t.Errorf("history %+v, %v", h, err)
	}
}

// What this build can not use is removed: the source does not know of it, and nobody would
// ever remove it.
func TestWhatThisVersionCanNotUseIsRemoved(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.put(record("db", "1"))
	k.Follow("east", f)
	flush(t, k)
	must(t, update(k.db.Load(), func(tx *bbolt.Tx) error {
		w := k.newWriter()
		if err := w.open(tx, "east"); err != nil {
			return err
		}
		key := appendKey(nil, resource("bad", "1").Key())
		value := appendBytes(make([]byte, sumLen), recordResource, []byte{0xff})
		w.ledger.digest += seal(key, value)
		w.ledger.count++
		w.ledger.bytes += uint64(len(key) + len(value))
		if err := w.resources.Put(key, value); err != nil {
			return err
		}
		return w.close()
	}))
	end(k)
	k = Open(options(dir))
	if st := k.Status(); st.Unusable != 1 || len(st.SetAside) > 0 {
		t.Errorf("status %+v", st)
	}
	s := k.Load("east")
	same(t, "loaded", hostsOf(t, s.Records), map[string]string{"db": "1"})
	k.Follow("east", restoredFake(s))
	flush(t, k)
	end(k)
	k = open(t, dir)
	if st := k.Status(); st.Unusable != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(k))
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	flush(t, k)
	want := `
# HELP relay_state_flush_errors_total Attempts to open or write the state file that failed.
# TYPE relay_state_flush_errors_total counter
relay_state_flush_errors_total 0
# HELP relay_state_flushes_total Transactions that have written changes to the state file.
# TYPE relay_state_flushes_total counter
relay_state_flushes_total 1
# HELP relay_state_healthy Whether the state file is in use and was written without error the last time.
# TYPE relay_state_healthy gauge
relay_state_healthy 1
# HELP relay_state_revisions Revisions of the upstream in the history.
# TYPE relay_state_revisions gauge
relay_state_revisions{upstream="east"} 1
# HELP relay_state_set_aside_files State files in the directory that could not be used and were set aside.
# TYPE relay_state_set_aside_files gauge
relay_state_set_aside_files 0
`
	names := []string{"relay_state_flush_errors_total", "relay_state_flushes_total", "relay_state_healthy", "relay_state_revisions", "relay_state_set_aside_files"}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "relay_state_size_bytes", "relay_state_last_flush_timestamp_seconds", "relay_state_flush_duration_seconds", "relay_state_not_kept"); err != nil || n != 4 {
		t.Errorf("%d series, %v", n, err)
	}
}
