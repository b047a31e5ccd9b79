package local

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// testdata/relay.db.gz was written by the last build that kept its state in relay.db, and
// testdata/relay.json is what that build loaded from it. later.db.gz and later.json are of the
// same state after that build ran once more, and corrupt.db.gz is relay.db with a damaged page
// of the upstream west.

type oldRecord struct {
	Digest, Source, Cluster, SourceVersion, Original, TypeURL, Version, Hash, Provenance string
	At                                                                                   time.Time
}

type oldContent struct {
	Meta      state.Meta
	Revision  uint64
	Records   map[string]oldRecord
	Revisions []state.Revision
	At        map[uint64]map[string]string
}

func golden(t testing.TB, name string) (out map[string]oldContent) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".json")
	must(t, err)
	must(t, json.Unmarshal(b, &out))
	return out
}

func oldData(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".db.gz")
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	b, err := io.ReadAll(z)
	must(t, err)
	return b
}

// oldDir returns a directory as the earlier build left it.
func oldDir(t testing.TB, data []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, oldName), data, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, lockName), nil, 0o600))
	return dir
}

func digestText(r *mirror.Resource) string {
	if r == nil {
		return ""
	}
	d := r.Digest()
	return hex.EncodeToString(d[:])
}

// checkOld compares what a Keeper has of an upstream with what the earlier build had.
func checkOld(t testing.TB, k *state.Keeper, name string, want oldContent) {
	t.Helper()
	s := k.Load(name)
	got := oldContent{Meta: s.Meta, Revision: s.Revision, Records: map[string]oldRecord{}, At: map[uint64]map[string]string{}}
	for _, r := range s.Records {
		got.Records[r.Resource.Key().String()] = oldRecord{
			digestText(r.Resource), r.Resource.Source(), r.Resource.Cluster(), r.Resource.SourceVersion(), digestText(r.Original),
			r.TypeURL, r.Version, hex.EncodeToString(r.Hash[:]), fmt.Sprint(r.Resource.Provenance()), r.At,
		}
	}
	var err error
	got.Revisions, err = k.History(name)
	must(t, err)
	for _, revision := range got.Revisions {
		records, err := k.At(name, revision.ID)
		must(t, err)
		at := map[string]string{}
		for _, r := range records {
			at[r.Resource.Key().String()] = digestText(r.Resource)
		}
		got.At[revision.ID] = at
	}
	if len(got.Revisions) == 0 {
		got.Revisions = nil
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s is not what it was (-want +got):\n%s", name, d)
	}
}

func TestTheStateOfAnEarlierReleaseIsTakenOver(t *testing.T) {
	data := oldData(t, "relay")
	dir := oldDir(t, data)
	want := golden(t, "relay")

	file, err := ReadFile(Path(dir))
	if err != nil || file.Damage != "" || file.Format != oldFormat || filepath.Base(file.Path) != oldName || len(file.Sources) != len(want) {
		t.Fatalf("before the upgrade: %+v, %v", file, err)
	}
	for range 2 { // at the upgrade, and at the next start
		k := open(t, dir)
		for name, w := range want {
			checkOld(t, k, name, w)
		}
		if !k.Served() {
			t.Error("it is forgotten that clients were served")
		}
		// The state that was taken over is whole: nothing is lost, and nothing is written again.
		size := k.Status().Size
		for name := range want {
			k.Follow(name, restoredFake(k.Load(name)))
		}
		k.SetOptions(state.Options{History: state.History{Revisions: 100}})
		flush(t, k)
		if n := k.Status().Size; n != size {
			t.Errorf("%d bytes were written for nothing", n-size)
		}
		end(k)
		if after, err := os.ReadFile(filepath.Join(dir, oldName)); err != nil || !bytes.Equal(after, data) {
			t.Fatalf("the file of the earlier release is not as it was: %v", err)
		}
	}

	// It goes on from there.
	k := openWith(dir, state.History{Revisions: 100}) // of any age
	f := restoredFake(k.Load("east"))
	f.put(record("new", "1"))
	k.Follow("east", f)
	flush(t, k)
	h, err := k.History("east")
	if err != nil || h[0].ID != want["east"].Revision+1 || h[0].Added != 1 || len(h) != len(want["east"].Revisions)+1 {
		t.Errorf("history %+v, %v", h, err)
	}
	records, err := k.At("east", want["east"].Revision)
	if err != nil || len(records) != len(want["east"].Records) {
		t.Errorf("%d records, %v", len(records), err)
	}
	end(k)
	if file, err = ReadFile(Path(dir)); err != nil || file.Damage != "" || file.Format != formatVersion {
		t.Errorf("after the upgrade: %+v, %v", file, err)
	}
}

// An operator went back to the earlier release, and forward again.
func TestWhatAnEarlierReleaseWroteSinceIsTakenOverAgain(t *testing.T) {
	data := oldData(t, "relay")
	dir := oldDir(t, data)
	k := open(t, dir)
	f := restoredFake(k.Load("east"))
	f.put(record("new", "1"))
	k.Follow("east", f)
	other := newFake()
	other.put(record("db", "1"))
	k.Follow("other", other)
	flush(t, k)
	end(k)

	// It ran, and wrote nothing; somebody has touched or copied the file.
	must(t, os.Chtimes(filepath.Join(dir, oldName), time.Now(), time.Now().Add(time.Hour)))
	k = open(t, dir)
	if h, err := k.History("east"); err != nil || h[0].Added != 1 {
		t.Errorf("history %+v, %v", h, err)
	}
	end(k)

	must(t, os.WriteFile(filepath.Join(dir, oldName), oldData(t, "later"), 0o600))
	for _, aside := range []int{6, 6} { // what this release had is set aside, once
		k = openState(dir)
		if st := k.Status(); !st.Healthy || len(st.SetAside) != aside {
			t.Errorf("status %+v", st)
		}
		for name, w := range golden(t, "later") {
			checkOld(t, k, name, w)
		}
		if n := len(k.Load("other").Records); n > 0 {
			t.Errorf("%d records of an upstream that the earlier release did not have", n)
		}
		end(k)
	}
}

func TestAnUpgradeThatIsCutShortBeginsAnew(t *testing.T) {
	dir := oldDir(t, oldData(t, "relay"))
	end(open(t, dir))
	// The steps of takeOver but the last.
	store := New(dir, nil)
	must(t, store.writeIndex(&statepb.Index{}))
	must(t, os.Remove(filepath.Join(dir, logName("west"))))
	k := openState(dir)
	defer end(k)
	for name, w := range golden(t, "relay") {
		checkOld(t, k, name, w)
	}
}

// The index has told that relay.db was read. What is in the logs is newer.
func TestALostIndexBringsNoOldStateBack(t *testing.T) {
	dir := oldDir(t, oldData(t, "relay"))
	k := open(t, dir)
	f := restoredFake(k.Load("east"))
	f.put(record("new", "1"))
	k.Follow("east", f)
	flush(t, k)
	end(k)
	must(t, os.Remove(Path(dir)))
	for range 2 {
		k = openState(dir)
		if n := len(k.Load("east").Records); n != len(f.hosts()) {
			t.Errorf("%d records, want %d", n, len(f.hosts()))
		}
		end(k)
	}
}

// checkDamagedOld opens a damaged relay.db and demands that each upstream is what it was, without
// history or with all of it, or is lost, and that the file is set aside if anything is wrong.
func checkDamagedOld(t *testing.T, what string, data []byte, want map[string]oldContent) (whole int) {
	t.Helper()
	dir := oldDir(t, data)
	defer os.RemoveAll(dir) //nolint:errcheck // there are many: they are not to pile up
	file, err := ReadFile(Path(dir))
	must(t, err)
	k := openState(dir)
	defer end(k)
	st := k.Status()
	if !st.Healthy || (len(st.SetAside) > 0) != (file.Damage != "") {
		t.Fatalf("%s: status %+v, damage %q", what, st, file.Damage)
	}
	for name, w := range want {
		s := k.Load(name)
		if s.Revision == 0 && len(s.Records) == 0 && !s.Meta.Synced && len(w.Revisions) > 0 {
			continue // it is lost
		}
		if len(w.Revisions) == 0 {
			continue // it has nothing that could tell
		}
		whole++
		if h, err := k.History(name); err == nil && len(h) == 0 {
			w.Revisions, w.At = nil, map[uint64]map[string]string{}
		}
		checkOld(t, k, name, w)
	}
	if len(st.SetAside) > 0 {
		if was, err := os.ReadFile(st.SetAside[0]); err != nil || !bytes.Equal(was, data) {
			t.Fatalf("%s: what was set aside is not the file: %v", what, err)
		}
		if _, err := os.Stat(filepath.Join(dir, oldName)); !os.IsNotExist(err) {
			t.Fatalf("%s: the damaged file is there still: %v", what, err)
		}
	}
	f := restoredFake(k.Load("east"))
	k.Follow("east", f)
	f.put(record("after", "1"))
	flush(t, k)
	end(k)
	k = openState(dir)
	defer end(k)
	same(t, what, hostsOf(t, slices.DeleteFunc(k.Load("east").Records, func(r state.Record) bool { return r.Original != nil })), without(f, true))
	return whole
}

// without returns the content of a fake that was not reshaped.
func without(f *fake, reshaped bool) map[string]string {
	out := f.hosts()
	for key, r := range f.content {
		if reshaped && r.Original != nil {
			delete(out, key.Name)
		}
	}
	return out
}

func TestADamagedFileOfAnEarlierReleaseCostsTheUpstreamsThatAreDamaged(t *testing.T) {
	want := golden(t, "relay")
	if n := checkDamagedOld(t, "corrupt.db", oldData(t, "corrupt"), want); n != 2 {
		t.Errorf("%d of 3 upstreams with content are whole", n)
	}
	data := oldData(t, "relay")
	used := data[:len(bytes.TrimRight(data, "\x00"))]
	random := rand.New(rand.NewPCG(11, 12))
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	found := 0
	for range rounds {
		bad := bytes.Clone(data)
		at := random.IntN(len(used))
		what := ""
		switch random.IntN(4) {
		case 0:
			what, bad = fmt.Sprint("cut off at ", at), bad[:at]
		case 1:
			at &^= 4095
			what = fmt.Sprint("page overwritten at ", at)
			copy(bad[at:], data[random.IntN(len(used)/4096+1)*4096:][:min(4096, len(data)-at)])
		case 2:
			at = at&^4095 + random.IntN(64)
			fallthrough
		default:
			bit := random.IntN(8)
			what = fmt.Sprintf("bit %d of byte %d", bit, at)
			bad[at] ^= 1 << bit
		}
		if n := checkDamagedOld(t, what, bad, want); n < 3 {
			found++
		}
	}
	t.Logf("%d of %d damaged files have lost an upstream", found, rounds)
	if found == 0 {
		t.Error("none has lost anything")
	}
}

// The logs here are whole, and a damaged file of an earlier release must not take their place.
func TestADamagedFileOfAnEarlierReleaseReplacesNothing(t *testing.T) {
	dir := oldDir(t, oldData(t, "relay"))
	end(open(t, dir))
	must(t, os.WriteFile(filepath.Join(dir, oldName), []byte(strings.Repeat("x", 10_000)), 0o600))
	for range 2 {
		k := openState(dir)
		if st := k.Status(); !st.Healthy || len(st.SetAside) != 1 || !k.Served() {
			t.Errorf("served %v, status %+v", k.Served(), st)
		}
		for name, w := range golden(t, "relay") {
			checkOld(t, k, name, w)
		}
		end(k)
	}
}

func TestTheStateOfAnEarlierReleaseThatCanNotBeWrittenIsLoaded(t *testing.T) {
	dir := oldDir(t, oldData(t, "relay"))
	must(t, os.Remove(filepath.Join(dir, lockName)))
	must(t, os.Mkdir(filepath.Join(dir, lockName), 0o700))
	k := openState(dir)
	defer end(k)
	if n := len(k.Load("west").Records); n != len(golden(t, "relay")["west"].Records) || k.Status().InUse || !k.Served() {
		t.Errorf("%d records, status %+v", n, k.Status())
	}
}

// unpacked returns a directory with what a backup has.
func unpacked(t testing.TB, backup []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	from := tar.NewReader(bytes.NewReader(backup))
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		must(t, err)
		b, err := io.ReadAll(from)
		must(t, err)
		if h.Mode != 0o600 || filepath.Base(h.Name) != h.Name {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		must(t, os.WriteFile(filepath.Join(dir, h.Name), b, 0o600))
	}
}

func TestABackupIsRestoredByUnpackingIt(t *testing.T) {
	from := oldDir(t, oldData(t, "relay"))
	k := open(t, from)
	var b bytes.Buffer
	must(t, k.Backup(&b, state.Extra{Name: "clusters.json", Text: []byte("[]")}))
	end(k)
	if copied, err := ReadBackup(bytes.NewReader(b.Bytes())); err != nil || copied.Damage != "" {
		t.Errorf("%+v, %v", copied, err)
	}
	dir := unpacked(t, b.Bytes())
	if text, err := os.ReadFile(filepath.Join(dir, "clusters.json")); err != nil || string(text) != "[]" {
		t.Errorf("%s, %v", text, err)
	}
	for range 2 {
		k = open(t, dir)
		if !k.Served() {
			t.Error("it is forgotten that clients were served")
		}
		for name, w := range golden(t, "relay") {
			checkOld(t, k, name, w)
		}
		end(k)
	}
	file, err := ReadFile(Path(dir))
	if err != nil || file.Damage != "" || len(file.Sources) != len(golden(t, "relay")) {
		t.Errorf("%+v, %v", file, err)
	}
}
