package local

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"meshrelay/state"
)

func TestThatClientsWereServedIsKept(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.put(record("db", "1"))
	f.setMeta(state.Meta{Synced: true})
	k.Follow("east", f)
	flush(t, k)
	if k.Served() {
		t.Error("a new state says that clients were served")
	}
	end(k)

	k = open(t, dir)
	if k.Served() {
		t.Error("that a source has synced is taken for that clients were served")
	}
	k.MarkServed()
	flush(t, k)
	end(k)
	if k = open(t, dir); !k.Served() {
		t.Error("it is forgotten that clients were served")
	}
	before := k.Status().Size
	flush(t, k)
	end(k)
	if after := open(t, dir).Status().Size; after != before {
		t.Errorf("the file went from %d to %d bytes for nothing", before, after)
	}
}

// A resource that a damaged file has lost must not be taken for one that it never had.
func TestADamagedFileHasServedOnlyIfNoSourceIsLost(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"east", "west"} {
		f := newFake()
		f.setMeta(state.Meta{Synced: true})
		f.put(record(name, "1"))
		k.Follow(name, f)
		flush(t, k)
		f.put(record(name, "2"))
		flush(t, k)
		f.put(record("another", "1"))
	}
	flush(t, k)
	k.MarkServed()
	flush(t, k)
	end(k)
	path := filepath.Join(dir, logName("west"))
	whole, err := os.ReadFile(path)
	must(t, err)

	lost, kept := 0, 0
	for at := 0; ; at++ { // the last content of west, and the one before it, which is history
		n := bytes.Index(whole[at:], []byte("shop/west"))
		if n < 0 {
			break
		}
		at += n
		data := bytes.Clone(whole)
		data[at] ^= 1
		dir := copied(t, dir)
		must(t, os.WriteFile(filepath.Join(dir, logName("west")), data, 0o600))
		k := openState(dir)
		sources := 0
		for _, name := range []string{"east", "west"} {
			if k.Load(name).Meta.Synced {
				sources++
			}
		}
		switch {
		case sources == 2 && k.Served():
			kept++
		case sources < 2 && k.Served():
			t.Errorf("byte %d: %d of 2 sources are left, and it has served", at, sources)
		default:
			lost++
		}
		end(k)
	}
	if lost == 0 || kept == 0 {
		t.Errorf("lost %d, kept %d: want both", lost, kept)
	}
}

func TestAFileThatIsLostWhileItIsUsedHasServedStill(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	k.MarkServed()
	flush(t, k)
	must(t, os.Remove(Path(dir)))
	flush(t, k)
	end(k)
	if !open(t, dir).Served() {
		t.Error("it is forgotten that clients were served")
	}
}

func TestThatClientsDoNotWaitForASourceIsKept(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	since := time.Unix(1700000000, 5).UTC()
	f.setMeta(state.Meta{ServeWithout: since})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	k = open(t, dir)
	saved := k.Load("east")
	if !saved.Meta.ServeWithout.Equal(since) || saved.Meta.Synced {
		t.Errorf("loaded %+v", saved.Meta)
	}
	f = restoredFake(saved)
	f.setMeta(state.Meta{Synced: true})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	if m := open(t, dir).Load("east").Meta; !m.ServeWithout.IsZero() {
		t.Errorf("it is not forgotten: %+v", m)
	}
}

// The same goes for what was whole when the relay started, and can not be read a moment later.
func TestAStateHasServedOnlyIfEverySourceCanBeRead(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"east", "west"} {
		f := newFake()
		f.put(record("db", "1"))
		f.setMeta(state.Meta{Synced: true})
		k.Follow(name, f)
	}
	k.MarkServed()
	flush(t, k)
	end(k)
	k = open(t, dir)
	path := filepath.Join(dir, logName("west"))
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append(bytes.Clone(data[:headLen]), make([]byte, len(data)-headLen)...), 0o600))
	if s := k.Load("east"); len(s.Records) != 1 || !k.Served() {
		t.Errorf("%d resources of the one that is whole, served %v", len(s.Records), k.Served())
	}
	if s := k.Load("west"); len(s.Records) != 0 || k.Served() {
		t.Errorf("%d resources of zeroes, served %v", len(s.Records), k.Served())
	}
	k.MarkServed()
	if !k.Served() {
		t.Error("clients are served now, and it is not known")
	}
	end(k)
}
