package state

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

var sameRecord = cmp.Options{
	cmp.Comparer(func(a, b *mirror.Resource) bool {
		return a.Equal(b) && (a == nil || a.Source() == b.Source() && a.Cluster() == b.Cluster() && a.SourceVersion() == b.SourceVersion())
	}),
	cmpopts.EquateApproxTime(0), cmp.AllowUnexported(ledger{}, chapter{}),
}

// unknownFields are what a later version may have added.
func unknownFields(b []byte) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, 100, protowire.VarintType), 1)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 101, protowire.Fixed32Type), 1)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 102, protowire.Fixed64Type), 1)
	return protowire.AppendString(protowire.AppendTag(b, 103, protowire.BytesType), "new")
}

func TestKeysRoundTrip(t *testing.T) {
	seen := map[string]mirror.Key{}
	for _, k := range []mirror.Key{
		{Kind: serviceEntries, Namespace: "shop", Name: "db"}, {Kind: serviceEntries, Name: "db"},
		{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, {Kind: mirror.Kind{Kind: "Node"}, Name: "n"},
		{Kind: mirror.Kind{Group: "a", Kind: "bc"}, Namespace: "x", Name: "y"}, {Kind: mirror.Kind{Group: "a", Kind: "b"}, Namespace: "cx", Name: "y"},
		{Kind: mirror.Kind{Group: "a\x00", Kind: "b"}, Namespace: "\x00", Name: "y\xff"},
	} {
		b := appendKey(nil, k)
		if got, err := parseKey(b); err != nil || got != k {
			t.Errorf("%v became %v, %v", k, got, err)
		}
		if other, taken := seen[string(b)]; taken {
			t.Errorf("%v and %v have one key", k, other)
		}
		seen[string(b)] = k
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	body, err := anypb.New(&mesh.MeshConfig{TrustDomain: "example"})
	must(t, err)
	config, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, Source: "east", Body: body})
	must(t, err)
	full := *record("db", "1")
	full.Original = resource("original", "2")
	for name, r := range map[string]Record{
		"all of it": full, "no more than a resource": {Resource: resource("db", "1")}, "MeshConfig": {Resource: config, At: time.Unix(0, 0)},
		"an original of another kind": {Resource: resource("db", "1"), Original: config},
		"long ago":                    {Resource: resource("db", "1"), At: time.Unix(-62135596799, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			key := r.Resource.Key()
			b := appendRecord(nil, key, &r)
			if len(b) > recordSize(&r) {
				t.Errorf("%d bytes, and room for %d", len(b), recordSize(&r))
			}
			got, err := parseRecord(key, unknownFields(b))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, got, sameRecord); diff != "" {
				t.Error(diff)
			}
			if digestOf(b) != r.Resource.Digest() {
				t.Error("the digest is another")
			}
			other := key
			other.Name = "other"
			if _, err := parseRecord(other, b); err == nil {
				t.Error("a record is taken for that of another key")
			}
		})
	}
}

func TestLedgersAndChaptersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		when := func(what string) time.Time {
			if rapid.Bool().Draw(t, what) {
				return time.Time{}
			}
			return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, what+"Seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, what+"Nanos")).UTC()
		}
		count := rapid.Uint64Range(0, 1<<31)
		l := ledger{
			meta:  Meta{Synced: rapid.Bool().Draw(t, "synced"), LastContact: when("contact"), HeldSince: when("held"), HeldRan: time.Duration(rapid.Int64Min(0).Draw(t, "ran")), Held: int(rapid.Int32Min(0).Draw(t, "n")), ServeWithout: when("without"), Fingerprint: rapid.String().Draw(t, "fingerprint")},
			count: count.Draw(t, "count"), bytes: count.Draw(t, "bytes"), digest: rapid.Uint64().Draw(t, "digest"),
			historyBytes: count.Draw(t, "historyBytes"), newest: count.Draw(t, "newest"),
		}
		l.oldest = l.newest - rapid.Uint64Range(0, min(l.newest, 100)).Draw(t, "revisions")
		if rapid.Bool().Draw(t, "frozen") {
			l.meta.Frozen = &Frozen{Since: when("since"), Until: when("until"), Reason: rapid.String().Draw(t, "reason"), Revision: count.Draw(t, "revision")}
		}
		got, err := parseLedger(unknownFields(appendLedger(nil, &l)))
		if diff := cmp.Diff(l, got, sameRecord); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
		if l.meta.equal(got.meta) != true {
			t.Fatalf("%+v is another than %+v", l.meta, got.meta)
		}
		c := chapter{
			Revision: Revision{
				ID: 7, Time: when("time"), Added: int(count.Draw(t, "added")), Changed: int(count.Draw(t, "changed")),
				Removed: int(count.Draw(t, "removed")), Resources: int(count.Draw(t, "resources")), By: rapid.String().Draw(t, "by"), Keys: rapid.SliceOfN(rapid.StringN(1, 9, 30), 0, 3).Draw(t, "keys"),
			},
			undone: count.Draw(t, "undone"), undoBytes: count.Draw(t, "undoBytes"), undoDigest: rapid.Uint64().Draw(t, "undoDigest"),
		}
		read, err := parseChapter(7, unknownFields(appendChapter(nil, &c)))
		if diff := cmp.Diff(c, read, sameRecord, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

func TestAValueIsGoodUnderItsOwnKeyOnly(t *testing.T) {
	value := append(make([]byte, sumLen), "content"...)
	seal([]byte("key"), value)
	if payload, _, err := unseal([]byte("key"), value); err != nil || string(payload) != "content" {
		t.Errorf("%q, %v", payload, err)
	}
	if _, _, err := unseal([]byte("other"), value); err == nil {
		t.Error("good under another key")
	}
	for i := range value {
		bad := bytes.Clone(value)
		bad[i] ^= 4
		if _, _, err := unseal([]byte("key"), bad); err == nil {
			t.Errorf("byte %d may be another", i)
		}
		if _, _, err := unseal([]byte("key"), value[:i]); err == nil {
			t.Errorf("%d bytes are enough", i)
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := record("db", "1")
	r.Original = resource("db", "2")
	key := r.Resource.Key()
	f.Add(appendKey(nil, key), appendRecord(nil, key, r))
	f.Add([]byte("x"), appendLedger(nil, &ledger{meta: Meta{Synced: true, LastContact: time.Unix(1, 2), Frozen: &Frozen{Since: time.Unix(3, 4), Revision: 1}, Fingerprint: "f"}, count: 1, newest: 3, oldest: 2}))
	f.Add([]byte("x"), appendChapter(nil, &chapter{Revision: Revision{Time: time.Unix(1, 1), Added: 1, Keys: []string{"+a"}}, undone: 1}))
	f.Add([]byte("x"), appendFormat(nil, 1))
	f.Add([]byte("x"), appendServed(nil, true))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if k, err := parseKey(key); err == nil {
			if again, err := parseKey(appendKey(nil, k)); err != nil || again != k {
				t.Errorf("%v became %v, %v", k, again, err)
			}
			if r, err := parseRecord(k, value); err == nil {
				again, err := parseRecord(k, appendRecord(nil, k, &r))
				if diff := cmp.Diff(r, again, sameRecord); err != nil || diff != "" && r.At.Nanosecond() == 0 {
					t.Errorf("%v\n%s", err, diff)
				}
			}
		}
		if r, err := parseRecord(resource("db", "1").Key(), value); err == nil && r.Resource.Key().Name != "db" {
			t.Errorf("a record of %v", r.Resource.Key())
		}
		if l, err := parseLedger(value); err == nil {
			if again, err := parseLedger(appendLedger(nil, &l)); err != nil || cmp.Diff(l, again, sameRecord) != "" {
				t.Errorf("%+v became %+v, %v", l, again, err)
			}
		}
		if c, err := parseChapter(1, value); err == nil {
			if again, err := parseChapter(1, appendChapter(nil, &c)); err != nil || len(again.Keys) > len(c.Keys) {
				t.Errorf("%+v became %+v, %v", c, again, err)
			}
		}
		_, _ = parseFormat(value)
		if m, err := parseServed(value); err == nil {
			if again, err := parseServed(appendServed(nil, m.served)); err != nil || again != m {
				t.Errorf("%+v became %+v, %v", m, again, err)
			}
		}
		if r, err := parseRoster(value); err == nil {
			if again, err := parseRoster(appendRoster(nil, r)); err != nil || again != r {
				t.Errorf("%+v became %+v, %v", r, again, err)
			}
		}
		_, _, _ = unseal(key, value)
	})
}

// FuzzFile demands that what passes the check of a file does not make bbolt panic.
func FuzzFile(f *testing.F) {
	dir := f.TempDir()
	k := Open(options(dir))
	src := newFake()
	k.Follow("east", src)
	for n := range 3 {
		for i := range 12 {
			src.put(record(fmt.Sprint("r", i), fmt.Sprint(n)))
		}
		must(f, k.Flush(f.Context()))
	}
	end(k)
	data, err := os.ReadFile(Path(dir))
	must(f, err)
	for len(data) > 4096 && len(bytes.Trim(data[len(data)-4096:], "\x00")) == 0 {
		data = data[:len(data)-4096]
	}
	f.Add(data, uint32(0), byte(0))
	f.Add(data, uint32(4096+16+40), byte(1))
	f.Add(data, uint32(4*4096+12), byte(3))
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte) {
		if int(at) < len(data) {
			data = bytes.Clone(data)
			data[at] ^= flip
		}
		path := filepath.Join(t.TempDir(), "f")
		must(t, os.WriteFile(path, data, 0o600))
		c, err := readFile(path, formatVersion)
		if err != nil || c.err != nil {
			return
		}
		db, err := openBolt(path)
		if err != nil {
			t.Fatalf("what was found good does not open: %v", err)
		}
		err = update(db, func(tx *bbolt.Tx) error {
			for name := range c.sources {
				w := &writer{bounds: bounds{revisions: 2}}
				b := &batch{name: name, changes: []Change{{resource("r1", "9").Key(), record("r1", "9")}}}
				if _, _, err := w.write(tx, b); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("what was found good can not be written: %v", err)
		}
		must(t, closeBolt(db))
		if c, err := readFile(path, formatVersion); err != nil || c.err != nil {
			t.Errorf("what was found good is not after a change: %v, %v", err, c.err)
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	k := open(b, dir)
	f := newFake()
	for i := range 10_000 {
		f.put(record(fmt.Sprint("r", i), fmt.Sprint("host-", i)+string(bytes.Repeat([]byte("x"), 700))))
	}
	k.Follow("east", f)
	flush(b, k)
	b.ReportMetric(float64(k.Status().Size)/(1<<20), "MiB")
	end(k)
	for b.Loop() {
		k := Open(options(dir))
		if n := len(k.Load("east").Records); n != 10_000 {
			b.Fatal(n)
		}
		k.close()
	}
}

func BenchmarkFlush(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n, " changes of 10000"), func(b *testing.B) {
			k := open(b, b.TempDir())
			f := newFake()
			k.Follow("east", f)
			for i := range 10_000 {
				f.put(record(fmt.Sprint("r", i), "0"))
			}
			flush(b, k)
			round := 0
			for b.Loop() {
				b.StopTimer()
				round++
				for i := range n {
					f.put(record(fmt.Sprint("r", i), fmt.Sprint(round)))
				}
				b.StartTimer()
				flush(b, k)
			}
			b.ReportMetric(float64(k.Status().Size)/(1<<20), "MiB")
		})
	}
}

func TestARecordThatPanicsIsSetAside(t *testing.T) {
	k, c := &kept{}, &contents{fault: func(key mirror.Key) {
		if key.Name == "bad" {
			panic("no good")
		}
	}}
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"a"}})
	must(t, err)
	for _, name := range []string{"a", "bad", "c"} {
		key := mirror.Key{Kind: serviceEntries, Namespace: "shop", Name: name}
		r, err := mirror.New(mirror.Spec{Key: key, Source: "east", Body: body})
		must(t, err)
		id := appendKey(nil, key)
		value := appendRecord(make([]byte, sumLen), key, &Record{Resource: r})
		seal(id, value)
		if _, err := k.readRecord(id, value, c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(k.records) != 2 || len(k.orphans) != 1 || c.unusableCount != 1 {
		t.Fatalf("%d records, %d set aside", len(k.records), len(k.orphans))
	}
	if id := string(k.orphans[0]); !strings.Contains(id, "bad") || !strings.Contains(c.unusable[0], "no good") {
		t.Errorf("set aside %q: %q", id, c.unusable)
	}
}
