package state

import (
	"bytes"
	"os"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func TestThatClientsWereServedIsKept(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.put(record("db", "1"))
	f.setMeta(Meta{Synced: true})
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

// withoutMark makes the file what a build made that knew of no mark.
func withoutMark(t *testing.T, dir string) {
	t.Helper()
	db, err := openBolt(Path(dir))
	must(t, err)
	must(t, update(db, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(topBucket)).Delete([]byte(servedKey)) }))
	must(t, closeBolt(db))
}

func TestAFileOfAnEarlierBuildHasServedIfAnythingInItHasSynced(t *testing.T) {
	for _, synced := range []bool{true, false} {
		dir := t.TempDir()
		k := open(t, dir)
		f := newFake()
		f.put(record("db", "1"))
		f.setMeta(Meta{Synced: synced})
		k.Follow("east", f)
		flush(t, k)
		end(k)
		withoutMark(t, dir)

		k = open(t, dir)
		if k.Served() != synced || len(k.Status().SetAside) > 0 {
			t.Errorf("synced %v: served %v, status %+v", synced, k.Served(), k.Status())
		}
		// What syncs from here on shows nothing: it is written down what there was.
		f = restoredFake(k.Load("east"))
		f.setMeta(Meta{Synced: true})
		k.Follow("east", f)
		flush(t, k)
		end(k)
		if k = open(t, dir); k.Served() != synced {
			t.Errorf("synced %v: after the first flush served is %v", synced, k.Served())
		}
	}
}

// What a damaged file has lost must not be taken for what it never had.
func TestADamagedFileHasServedOnlyIfNoSourceIsLost(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"east", "west"} {
		f := newFake()
		f.setMeta(Meta{Synced: true})
		f.put(record(name, "1"))
		k.Follow(name, f)
		flush(t, k)
		f.put(record(name, "2"))
		k.Follow(name, f)
	}
	flush(t, k)
	k.MarkServed()
	flush(t, k)
	end(k)
	whole, err := os.ReadFile(Path(dir))
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
		dir := t.TempDir()
		must(t, os.WriteFile(Path(dir), data, 0o600))
		k := Open(options(dir))
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

func TestANewFileInThePlaceOfOneThatIsUnknownHasNotServed(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	k.MarkServed()
	flush(t, k)
	end(k)
	db, err := openBolt(Path(dir))
	must(t, err)
	must(t, update(db, func(tx *bbolt.Tx) error { return putFormat(tx, formatVersion+1) }))
	must(t, closeBolt(db))
	k = Open(options(dir))
	defer end(k)
	if k.Served() || len(k.Status().SetAside) != 1 {
		t.Errorf("served %v, status %+v", k.Served(), k.Status())
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
	f.setMeta(Meta{ServeWithout: since})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	k = open(t, dir)
	saved := k.Load("east")
	if !saved.Meta.ServeWithout.Equal(since) || saved.Meta.Synced {
		t.Errorf("loaded %+v", saved.Meta)
	}
	f = restoredFake(saved)
	f.setMeta(Meta{Synced: true})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	if m := open(t, dir).Load("east").Meta; !m.ServeWithout.IsZero() {
		t.Errorf("it is not forgotten: %+v", m)
	}
}
