package state

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample is a file, and what was in it after each flush.
type sample struct {
	data   []byte
	states []map[string]string // of east, by revision; the first is nothing
	west   map[string]string
}

func makeSample(t *testing.T) sample {
	t.Helper()
	dir := t.TempDir()
	k := open(t, dir)
	s := sample{states: []map[string]string{{}}}
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
	if s.data, err = os.ReadFile(Path(dir)); err != nil {
		t.Fatal(err)
	}
	return s
}

// check opens a damaged file and demands that what is loaded was there once, or nothing, and
// that a file which says something else is set aside.
func (s *sample) check(t *testing.T, what string, data []byte) (aside bool) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	defer os.RemoveAll(dir) //nolint:errcheck // there are many: they are not to pile up
	must(t, os.WriteFile(Path(dir), data, 0o600))
	k := Open(options(dir))
	st := k.Status()
	if !st.Healthy {
		t.Fatalf("%s: status %+v", what, st)
	}
	aside = len(st.SetAside) > 0
	east, west := k.Load("east"), k.Load("west")
	hosts := hostsOf(t, east.Records)
	known := false
	for i, state := range s.states {
		// The last transaction may be lost, when it is the page that begins it which is
		// damaged. What is set aside may be lost altogether.
		known = known || maps.Equal(hosts, state) && (aside || i >= len(s.states)-2)
	}
	if !known {
		t.Fatalf("%s: east is %v, set aside: %v", what, hosts, aside)
	}
	if w := hostsOf(t, west.Records); !maps.Equal(w, s.west) && (!aside || len(w) > 0) {
		t.Fatalf("%s: west is %v, set aside: %v", what, w, aside)
	}
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
	k = Open(options(dir))
	defer end(k)
	same(t, what, hostsOf(t, k.Load("east").Records), f.hosts())
	return aside
}

func TestAFileCutShortIsSetAside(t *testing.T) {
	s := makeSample(t)
	random := rand.New(rand.NewPCG(3, 4))
	lengths := []int{0, 1, 15, 16, 80, 1024, 4095, 4096, 4096 + 80, 8192, 12288, 16384, len(s.data) - 1}
	for range 60 {
		lengths = append(lengths, random.IntN(len(s.data)))
	}
	asides := 0
	for _, n := range lengths {
		if s.check(t, fmt.Sprint(n, " bytes"), s.data[:n]) {
			asides++
		}
	}
	if asides < len(lengths)/4 {
		t.Errorf("of %d files only %d are set aside", len(lengths), asides)
	}
}

func TestAFlippedBitIsFound(t *testing.T) {
	s := makeSample(t)
	if s.check(t, "as it was", s.data) {
		t.Fatal("a whole file is set aside")
	}
	random := rand.New(rand.NewPCG(5, 6))
	flips := 200
	if testing.Short() {
		flips = 60
	}
	asides := 0
	for range flips {
		at, bit := random.IntN(len(s.data)), random.IntN(8)
		switch random.IntN(4) {
		case 0: // the beginnings of pages are what a file stands and falls with
			at = at&^4095 + random.IntN(64)
		case 1:
			at = random.IntN(8192)
		}
		data := bytes.Clone(s.data)
		data[at] ^= 1 << bit
		if s.check(t, fmt.Sprintf("bit %d of byte %d", bit, at), data) {
			asides++
		}
	}
	t.Logf("%d of %d files were set aside", asides, flips)
	if asides == 0 {
		t.Error("none is set aside")
	}
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
		if err := os.WriteFile(Path(dir), last, 0o600); err != nil {
			t.Fatal(err)
		}
		k := Open(options(dir))
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

// What one upstream has does not suffer from the damage of what another has, or of history.
func TestWhatIsWholeIsSavedFromADamagedFile(t *testing.T) {
	s := makeSample(t)
	for name, text := range map[string]string{
		"another upstream":            "shop/w7",
		"the history of the upstream": "v-5" + strings.Repeat("x", 60), // of the last revision but two
	} {
		t.Run(name, func(t *testing.T) {
			found := 0
			for at := 0; ; at++ { // some are of pages that are not in use any more
				n := bytes.Index(s.data[at:], []byte(text))
				if n < 0 {
					break
				}
				at += n
				data := bytes.Clone(s.data)
				data[at] ^= 1
				dir := t.TempDir()
				if err := os.WriteFile(Path(dir), data, 0o600); err != nil {
					t.Fatal(err)
				}
				k := Open(options(dir))
				got := k.Load("east")
				if st := k.Status(); !st.Healthy {
					t.Fatalf("status %+v", st)
				} else if len(st.SetAside) == 1 {
					found++
				}
				same(t, "east", hostsOf(t, got.Records), s.states[8])
				if got.Revision < 8 {
					t.Errorf("revision %d: numbers are given twice", got.Revision)
				}
				end(k)
			}
			if found == 0 {
				t.Error("no damage is found")
			}
		})
	}
}

func TestWhatAKilledRelayLeftBehindIsRemoved(t *testing.T) {
	dir := t.TempDir()
	end(open(t, dir))
	temp := filepath.Join(dir, tempPrefix+"123")
	if err := os.WriteFile(temp, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(temp); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
}

// bbolt would panic when it writes to such a file, although it reads well.
func TestAPageThatIsNotFoundByItsFirstKeyIsFound(t *testing.T) {
	s := makeSample(t)
	found := 0
	for at := 0; at+4096 <= len(s.data); at += 4096 {
		if native.Uint16(s.data[at+8:]) != pageBranch {
			continue
		}
		element := at + pageHeaderLen + branchElementLen // the second
		last := element + int(native.Uint32(s.data[element:])) + int(native.Uint32(s.data[element+4:])) - 1
		data := bytes.Clone(s.data)
		data[last]--
		dir := t.TempDir()
		must(t, os.WriteFile(Path(dir), data, 0o600))
		k := Open(options(dir))
		if len(k.Status().SetAside) > 0 && maps.Equal(hostsOf(t, k.Load("east").Records), s.states[8]) {
			found++
		}
		f := newFake()
		k.Follow("west", f)
		f.put(record("db", "1"))
		flush(t, k)
		if st := k.Status(); !st.Healthy {
			t.Errorf("status %+v", st)
		}
		end(k)
	}
	if found == 0 {
		t.Error("none is found")
	}
}
