package local

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/internal/owner"
)

// copied returns a copy of a directory, without what is no file.
func copied(t testing.TB, dir string) string {
	t.Helper()
	to, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	must(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// sample is a directory, and what was in it after each flush.
type sample struct {
	dir    string
	east   []byte              // the log
	states []map[string]string // of east, by revision; the first is nothing
	west   map[string]string
}

func makeSample(t *testing.T) sample {
	t.Helper()
	dir := t.TempDir()
	k := open(t, dir)
	s := sample{dir: dir, states: []map[string]string{{}}}
	west := newFake()
	for i := range 40 {
		west.put(record(fmt.Sprint("w", i), "1"))
	}
	s.west = west.hosts()
	k.Follow("west", west)
	f := newFake()
	k.Follow("east", f)
	flush(t, k)
	for n := range 8 {
		for i := range 30 {
			f.put(record(fmt.Sprint("r", i), fmt.Sprint(n, strings.Repeat("x", i*20))))
		}
		f.remove(fmt.Sprint("r", n))
		flush(t, k)
		s.states = append(s.states, f.hosts())
	}
	end(k)
	var err error
	s.east, err = os.ReadFile(filepath.Join(dir, logName("east")))
	must(t, err)
	return s
}

// check opens a state with a damaged log of east, and demands that what is loaded was there
// once, or nothing, that a file which has something else is set aside, and that nothing else
// suffers.
func (s *sample) check(t *testing.T, what string, data []byte) (aside bool) {
	t.Helper()
	dir := copied(t, s.dir)
	defer os.RemoveAll(dir) // there are many: they are not to pile up
	must(t, os.WriteFile(filepath.Join(dir, logName("east")), data, 0o600))
	k := openState(dir)
	st := k.Status()
	if !st.Healthy {
		t.Fatalf("%s: status %+v", what, st)
	}
	aside = len(st.SetAside) > 0
	east, west := k.Load("east"), k.Load("west")
	hosts := hostsOf(t, east.Records)
	// The last batch may be lost, when it is damaged. A file that was set aside has the last
	// state or none.
	last := len(s.states) - 1
	known := maps.Equal(hosts, s.states[last]) || !aside && maps.Equal(hosts, s.states[last-1]) || aside && len(hosts) == 0
	if !known {
		t.Fatalf("%s: east is %v, set aside: %v", what, hosts, aside)
	}
	same(t, what+": west", hostsOf(t, west.Records), s.west)
	if !aside {
		history, err := k.History("east")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, r := range history {
			records, err := k.At("east", r.ID)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			same(t, what, hostsOf(t, records), s.states[r.ID])
		}
	} else if was, err := os.ReadFile(st.SetAside[0]); err != nil || !bytes.Equal(was, data) {
		t.Fatalf("%s: what was set aside is not the file: %v", what, err)
	}
	f := restoredFake(east)
	k.Follow("east", f)
	f.put(record("after", "1"))
	flush(t, k)
	end(k)
	k = openState(dir)
	defer end(k)
	same(t, what, hostsOf(t, k.Load("east").Records), f.hosts())
	same(t, what+": west", hostsOf(t, k.Load("west").Records), s.west)
	return aside
}

func TestAFileCutShortIsSetAside(t *testing.T) {
	t.Parallel() // it waits for the disk
	s := makeSample(t)
	random := rand.New(rand.NewPCG(3, 4))
	lengths := []int{0, 1, 15, 16, headLen - 1, headLen, headLen + 1, headLen + frameHeadLen, 80, 4096, 8192, len(s.east) - 1}
	for range 60 {
		lengths = append(lengths, random.IntN(len(s.east)))
	}
	asides := 0
	for _, n := range lengths {
		if s.check(t, fmt.Sprint(n, " bytes"), s.east[:n]) {
			asides++
		}
	}
	if asides < len(lengths)/2 {
		t.Errorf("of %d files only %d are set aside", len(lengths), asides)
	}
}

func TestAFlippedBitIsFound(t *testing.T) {
	t.Parallel() // it waits for the disk
	s := makeSample(t)
	if s.check(t, "as it was", s.east) {
		t.Fatal("a whole file is set aside")
	}
	random := rand.New(rand.NewPCG(5, 6))
	flips := 100
	if testing.Short() {
		flips = 60
	}
	asides := 0
	for range flips {
		at, bit := random.IntN(len(s.east)), random.IntN(8)
		if random.IntN(4) == 0 {
			at = random.IntN(headLen + 64) // what a file stands and falls with
		}
		data := bytes.Clone(s.east)
		data[at] ^= 1 << bit
		if s.check(t, fmt.Sprintf("bit %d of byte %d", bit, at), data) {
			asides++
		}
	}
	t.Logf("%d of %d files were set aside", asides, flips)
	if asides < flips/2 {
		t.Error("most are to be set aside")
	}
}

// A part that is overwritten, also by what once stood elsewhere in the file.
func TestAnOverwrittenPartIsFound(t *testing.T) {
	t.Parallel() // it waits for the disk
	s := makeSample(t)
	random := rand.New(rand.NewPCG(9, 10))
	for range 60 {
		data := bytes.Clone(s.east)
		at, n, from := random.IntN(len(data)), random.IntN(8192), random.IntN(len(data))
		copy(data[at:], s.east[from:min(from+n, len(data))])
		s.check(t, fmt.Sprintf("%d bytes at %d from %d", n, at, from), data)
	}
}

func TestADamagedIndexCostsNoUpstream(t *testing.T) {
	t.Parallel() // it waits for the disk
	s := makeSample(t)
	whole, err := os.ReadFile(Path(s.dir))
	must(t, err)
	check := func(what string, damage func(dir string) error, aside int) {
		t.Helper()
		dir := copied(t, s.dir)
		must(t, damage(dir))
		k := openState(dir)
		if st := k.Status(); !st.Healthy || len(st.SetAside) != aside {
			t.Fatalf("%s: status %+v", what, st)
		}
		same(t, "east", hostsOf(t, k.Load("east").Records), s.states[8])
		same(t, "west", hostsOf(t, k.Load("west").Records), s.west)
		end(k)
		must(t, os.RemoveAll(dir))
	}
	check("no index", func(dir string) error { return os.Remove(Path(dir)) }, 0)
	for at := range whole {
		for _, data := range [][]byte{whole[:at], bytes.Join([][]byte{whole[:at], {whole[at] ^ 1}, whole[at+1:]}, nil)} {
			check(fmt.Sprint("byte ", at), func(dir string) error { return os.WriteFile(Path(dir), data, 0o600) }, 1)
		}
	}
}

// Somebody has removed the log of an upstream while no relay ran.
func TestAMissingFileIsALostUpstream(t *testing.T) {
	s := makeSample(t)
	k := openState(s.dir)
	k.MarkServed()
	flush(t, k)
	end(k)
	must(t, os.Remove(filepath.Join(s.dir, logName("east"))))
	if f, err := ReadFile(Path(s.dir)); err != nil || !strings.Contains(f.Damage, "east") {
		t.Errorf("%+v, %v", f, err)
	}
	k = openState(s.dir)
	defer end(k)
	if st := k.Status(); !st.Healthy || k.Served() {
		t.Errorf("served %v, status %+v", k.Served(), st)
	}
	same(t, "west", hostsOf(t, k.Load("west").Records), s.west)
}

func TestGarbageIsSetAsideAndTheOldestOfItIsRemoved(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(7, 8))
	var last []byte
	for i := range 6 {
		last = make([]byte, random.IntN(200_000)+i)
		for j := range last {
			last[j] = byte(random.Uint32())
		}
		if err := os.WriteFile(filepath.Join(dir, logName("east")), last, 0o600); err != nil {
			t.Fatal(err)
		}
		k := openState(dir)
		st := k.Status()
		if !st.Healthy || len(st.SetAside) != min(i+1, maxSetAside) {
			t.Fatalf("status %+v", st)
		}
		f := newFake()
		k.Follow("east", f)
		f.put(record("db", "1"))
		flush(t, k)
		end(k)
		got, err := os.ReadFile(st.SetAside[len(st.SetAside)-1])
		if err != nil || !bytes.Equal(got, last) {
			t.Errorf("the newest of what was set aside is not the last: %v", err)
		}
	}
}

// The last content of an upstream does not suffer from the damage of its history.
func TestWhatIsWholeIsSavedFromADamagedFile(t *testing.T) {
	t.Parallel() // it waits for the disk
	s := makeSample(t)
	text := []byte("v-5" + strings.Repeat("x", 60)) // of the last revision but two
	found := 0
	for at := 0; ; at++ {
		n := bytes.Index(s.east[at:], text)
		if n < 0 {
			break
		}
		at += n
		data := bytes.Clone(s.east)
		data[at] ^= 1
		dir := copied(t, s.dir)
		must(t, os.WriteFile(filepath.Join(dir, logName("east")), data, 0o600))
		k := openState(dir)
		got := k.Load("east")
		if st := k.Status(); !st.Healthy {
			t.Fatalf("status %+v", st)
		} else if len(st.SetAside) == 1 {
			found++
		}
		same(t, "east", hostsOf(t, got.Records), s.states[8])
		same(t, "west", hostsOf(t, k.Load("west").Records), s.west)
		if got.Revision < 8 {
			t.Errorf("revision %d: numbers are given twice", got.Revision)
		}
		end(k)
	}
	if found == 0 {
		t.Error("no damage is found")
	}
}

func TestWhatAKilledRelayLeftBehindIsRemoved(t *testing.T) {
	dir := t.TempDir()
	end(open(t, dir))
	temp := Path(dir) + owner.TempSuffix + "123"
	if err := os.WriteFile(temp, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(temp); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
}
