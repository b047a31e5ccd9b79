package local

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/state"
)

// testdata/1 is a directory of state in format 1, and testdata/1.json is its
// content. They are never written again: a build that can not load them breaks an upgrade.

// goldenRecord and goldenContent are the form of testdata/1.json.
type goldenRecord struct {
	Digest, Source, Cluster, SourceVersion, Original, TypeURL, Version, Hash string
	At                                                                       time.Time
}

type goldenContent struct {
	Meta      state.Meta
	Revision  uint64
	Records   map[string]goldenRecord
	Revisions []state.Revision
	At        map[uint64]map[string]string // digests by key, by revision
}

func golden(t testing.TB) (out map[string]goldenContent) {
	t.Helper()
	b, err := os.ReadFile("testdata/1.json")
	must(t, err)
	must(t, json.Unmarshal(b, &out))
	return out
}

func digestText(r *mirror.Resource) string {
	if r == nil {
		return ""
	}
	d := r.Digest()
	return hex.EncodeToString(d[:])
}

// contentOf returns everything that a Keeper has of an upstream.
func contentOf(t testing.TB, k *state.Keeper, name string) goldenContent {
	t.Helper()
	s := k.Load(name)
	got := goldenContent{Meta: s.Meta, Revision: s.Revision, Records: map[string]goldenRecord{}, At: map[uint64]map[string]string{}}
	for _, r := range s.Records {
		got.Records[r.Resource.Key().String()] = goldenRecord{
			digestText(r.Resource), r.Resource.Source(), r.Resource.Cluster(), r.Resource.SourceVersion(), digestText(r.Original),
			r.TypeURL, r.Version, hex.EncodeToString(r.Hash[:]), r.At,
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
	return got
}

func checkContent(t testing.TB, k *state.Keeper) {
	t.Helper()
	for name, want := range golden(t) {
		if d := cmp.Diff(want, contentOf(t, k, name)); d != "" {
			t.Fatalf("%s differs (-want +got):\n%s", name, d)
		}
	}
}

func TestTheStateOfFormatOneIsLoaded(t *testing.T) {
	dir := copied(t, "testdata/1")
	file, err := ReadFile(Path(dir))
	if err != nil || file.Damage != "" || len(file.Sources) != len(golden(t)) {
		t.Fatalf("%+v, %v", file, err)
	}
	size := int64(0)
	for range 2 { // the second start reads what the first one left
		k := open(t, dir)
		checkContent(t, k)
		if !k.Served() {
			t.Error("it is forgotten that clients were served")
		}
		if size = max(size, k.Status().Size); k.Status().Size != size {
			t.Errorf("%d bytes, were %d", k.Status().Size, size)
		}
		lines := k.LoadJournal()
		if want, err := os.ReadFile("testdata/1/events.log"); err != nil || joined(lines)+"\n" != strings.ReplaceAll(string(want), "\n{", "|{") {
			t.Errorf("the journal is %s, %v", joined(lines), err)
		}
		for name := range golden(t) {
			k.Follow(name, restoredFake(k.Load(name)))
		}
		k.SetOptions(state.Options{History: state.History{Revisions: 100}})
		flush(t, k)
		end(k)
	}

	// A change continues the history.
	k := openWith(dir, state.History{Revisions: 100})
	defer end(k)
	f, before := restoredFake(k.Load("east")), k.Load("east").Revision
	f.put(record("new", "1"))
	k.Follow("east", f)
	flush(t, k)
	h, err := k.History("east")
	if err != nil || h[0].ID != before+1 || h[0].Added != 1 || len(h) != len(golden(t)["east"].Revisions)+1 {
		t.Errorf("history %+v, %v", h, err)
	}
}

// unpacked returns a directory with the files of a backup.
func unpacked(t testing.TB, backup []byte) string {
	t.Helper()
	dir := t.TempDir()
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
	k := open(t, copied(t, "testdata/1"))
	var b bytes.Buffer
	must(t, k.Backup(&b, state.Extra{Name: "clusters.json", Text: []byte("[]")}))
	end(k)
	if copied, err := ReadFile(Path(unpacked(t, b.Bytes()))); err != nil || copied.Damage != "" || len(copied.Sources) != len(golden(t)) {
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
		checkContent(t, k)
		end(k)
	}
}

// makeLater gives a file the format of a later release.
func makeLater(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	little.PutUint64(b[8:], FormatVersion+1)
	little.PutUint64(b[24:], xxh3.Hash(b[:24]))
	must(t, os.WriteFile(path, b, 0o600))
	return b
}

// The store reads the directory again when a file was replaced while in use.
func TestAFileOfALaterFormatThatComesWhileInUseIsLeft(t *testing.T) {
	for _, name := range []string{indexName, logName("west")} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			k := open(t, dir)
			f := newFake()
			f.put(record("db", "1"))
			k.Follow("west", f)
			flush(t, k)
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, b, 0o600)) // another file with the same content
			later := makeLater(t, path)
			f.put(record("cache", "1"))
			for range 2 {
				if err := k.Flush(t.Context()); !errors.Is(err, state.ErrLaterFormat) || !strings.Contains(err.Error(), path) {
					t.Fatalf("error %v", err)
				}
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, later) {
				t.Errorf("the file has changed: %v", err)
			}
			if st := k.Status(); st.Healthy || len(st.SetAside) > 0 {
				t.Errorf("status %+v", st)
			}
			must(t, os.Remove(path)) // an operator makes room
			flush(t, k)
			end(k)
			same(t, "kept", hostsOf(t, open(t, dir).Load("west").Records), map[string]string{"db": "1", "cache": "1"})
		})
	}
}

// A relay that started without the file would serve less, and would write in its place.
func TestAStateOfALaterFormatIsLeftAndNotUsed(t *testing.T) {
	for _, name := range []string{indexName, logName("west")} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, "testdata/1")
			must(t, os.Remove(filepath.Join(dir, logName("east")))) // nothing else is repaired either
			path := filepath.Join(dir, name)
			later := makeLater(t, path)
			files := list(dir, "*.state*")
			check := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, state.ErrLaterFormat) {
					t.Fatalf("%s: error %v", what, err)
				}
				for _, part := range []string{path, fmt.Sprint("format ", FormatVersion+1), fmt.Sprint("format ", FormatVersion), "start the release that wrote it", "set state.dir to another directory"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: the error does not name %q: %v", what, part, err)
					}
				}
				if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, later) {
					t.Errorf("%s: the file has changed: %v", what, err)
				}
				if now := list(dir, "*.state*"); !cmp.Equal(now, files) {
					t.Errorf("%s: there are %v, were %v", what, now, files)
				}
			}
			_, err := state.Open(New(dir, nil), state.Options{})
			check("start", err)
			_, err = ReadFile(Path(dir))
			check("inspect", err)
			// Nobody has kept the lock.
			if _, inUse := Probe(dir); inUse {
				t.Error("the directory is still locked")
			}
		})
	}
}
