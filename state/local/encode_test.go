package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	"pgregory.net/rapid"

	"meshrelay/internal/owner"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

var sameRecord = cmp.Options{
	cmp.Comparer(func(a, b *mirror.Resource) bool {
		return a.Equal(b) && (a == nil || a.Source() == b.Source() && a.Cluster() == b.Cluster() && a.SourceVersion() == b.SourceVersion())
	}),
	cmpopts.EquateApproxTime(0),
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
		b := encodeKey(k)
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
	full.Version = "not \xff UTF-8"
	for name, r := range map[string]state.Record{
		"all of it": full, "no more than a resource": {Resource: resource("db", "1")}, "MeshConfig": {Resource: config, At: time.Unix(0, 0)},
		"an original of another kind": {Resource: resource("db", "1"), Original: config},
		"long ago":                    {Resource: resource("db", "1"), At: time.Unix(-62135596799, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			key := r.Resource.Key()
			b, err := encodeRecord(key, &r)
			must(t, err)
			got, err := newDecoder().record(encodeKey(key), unknownFields(b), r.Resource.Any())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, got, sameRecord); diff != "" {
				t.Error(diff)
			}
			other := key
			other.Name = "other"
			if _, err := newDecoder().record(encodeKey(other), b, r.Resource.Any()); err == nil {
				t.Error("a record is taken for that of another key")
			}
		})
	}
}

func TestMetasAndRevisionsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		when := func(what string) time.Time {
			if rapid.Bool().Draw(t, what) {
				return time.Time{}
			}
			return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, what+"Seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, what+"Nanos")).UTC()
		}
		count := rapid.Uint64Range(0, 1<<31)
		m := state.Meta{
			Synced: rapid.Bool().Draw(t, "synced"), LastContact: when("contact"), InContact: rapid.Bool().Draw(t, "in contact"), HeldSince: when("held"), HeldRan: time.Duration(rapid.Int64Min(0).Draw(t, "ran")),
			Held: int(rapid.Int32Min(0).Draw(t, "n")), ServeWithout: when("without"), Identity: rapid.String().Draw(t, "identity"), Fingerprint: rapid.String().Draw(t, "fingerprint"),
		}
		if rapid.Bool().Draw(t, "frozen") {
			m.Frozen = &state.Frozen{Since: when("since"), Reason: rapid.String().Draw(t, "reason"), Order: rapid.String().Draw(t, "order"), Empty: rapid.Bool().Draw(t, "empty"), Revision: count.Draw(t, "revision")}
		}
		b, err := proto.Marshal(encodeMeta(m))
		if err != nil {
			t.Fatal(err)
		}
		l := &statepb.Ledger{}
		if err := proto.Unmarshal(unknownFields(b), l); err != nil {
			t.Fatal(err)
		}
		if got := decodeMeta(l); !sameMeta(m, got) || cmp.Diff(m, got) != "" {
			t.Fatal(cmp.Diff(m, got))
		}
		r := state.Revision{
			ID: 7, Time: when("time"), Added: int(count.Draw(t, "added")), Changed: int(count.Draw(t, "changed")), Removed: int(count.Draw(t, "removed")),
			Resources: int(count.Draw(t, "resources")), By: rapid.String().Draw(t, "by"), Keys: rapid.SliceOfN(rapid.StringN(1, 9, 30), 0, 3).Draw(t, "keys"),
		}
		if b, err = proto.Marshal(encodeRevision(&r)); err != nil {
			t.Fatal(err)
		}
		c := &statepb.Revision{}
		if err := proto.Unmarshal(unknownFields(b), c); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, decodeRevision(7, c), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// memory is a log in memory.
type memory []byte

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if end := int(at) + len(p); end > len(*m) {
		*m = append(*m, make([]byte, end-len(*m))...)
	}
	return copy((*m)[at:], p), nil
}

func (m memory) reader() io.ReaderAt { return bytes.NewReader(m) }

// A resource that is written twice, or missing, is damage: each commit has the numbers.
func TestAFrameAtThePlaceOfAnotherIsDamage(t *testing.T) {
	var m memory
	w := newWriter(newUpstream("east", nil), &m)
	var starts []int64
	for i := range 4 {
		starts = append(starts, w.offset())
		err := w.put(frame{key: []byte("a"), record: []byte{byte(i)}, data: []byte("data"), digest: uint64(i)}, false, &state.Revision{})
		must(t, err)
		_, err = w.commit(&statepb.Ledger{}, nil)
		must(t, err)
		w.take()
	}
	starts = append(starts, w.offset())
	must(t, w.finish())
	if u := readUpstream("east", m.reader(), int64(len(m))); u.damage != nil || len(u.places) != 1 {
		t.Fatalf("%v, %d resources", u.damage, len(u.places))
	}
	for i := range 4 {
		for j := range 4 {
			other := bytes.Clone(m)
			copy(other[starts[i]:], m[starts[j]:starts[j]+frameHeadLen+1+1+4]) // the change only
			u := readUpstream("east", memory(other).reader(), int64(len(other)))
			if (u.damage != nil) != (i != j) || u.lost != (i == 3 && j != 3) {
				t.Errorf("%d in the place of %d: %v, lost %v", j, i, u.damage, u.lost)
			}
		}
	}
}

// FuzzLog demands that whatever a log has, it is read without a panic, that what is found whole
// is whole, and that it can be written.
func FuzzLog(f *testing.F) {
	dir := f.TempDir()
	k := openState(dir)
	src := newFake()
	k.Follow("east", src)
	for n := range 3 {
		for i := range 5 {
			src.put(record(fmt.Sprint("r", i), fmt.Sprint(n)))
		}
		must(f, k.Flush(f.Context()))
	}
	end(k)
	data, err := os.ReadFile(filepath.Join(dir, logName("east")))
	must(f, err)
	f.Add(data, uint32(0), byte(0), false)
	f.Add(data, uint32(len(data)/2), byte(1), false)
	f.Add(data, uint32(headLen+frameHeadLen+30), byte(3), true)
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte, sealed bool) {
		if int(at) < len(data) {
			data = bytes.Clone(data)
			data[at] ^= flip
		}
		if sealed {
			data = resealed(data)
		}
		u := readUpstream("east", bytes.NewReader(data), int64(len(data)))
		if u.lost {
			return
		}
		dir := t.TempDir()
		path := filepath.Join(dir, logName("east"))
		if u.damage != nil {
			must(t, owner.Replace(path, u.rewrite))
		} else {
			must(t, os.WriteFile(path, data, 0o600))
		}
		u, err := openUpstream(dir, "east")
		must(t, err)
		if u.damage != nil {
			t.Fatalf("what was found good does not open: %v", u.damage)
		}
		before, err := u.load(u.inOrder())
		must(t, err)
		b := &state.Batch{Changes: []state.Change{{Key: resource("r1", "9").Key(), Record: record("r1", "9")}}, History: state.History{Revisions: 2}, Now: time.Unix(1, 0)}
		w, err := u.write(b)
		if err != nil {
			t.Fatalf("what was found good can not be written: %v", err)
		}
		if w != nil {
			w.take()
		}
		again, err := openUpstream(dir, "east")
		must(t, err)
		if again.damage != nil {
			t.Fatalf("what was found good is not after a change: %v", again.damage)
		}
		after, err := again.load(again.inOrder())
		if err != nil || len(after.Records) < len(before.Records) {
			t.Errorf("%d records, were %d: %v", len(after.Records), len(before.Records), err)
		}
	})
}

// resealed gives all frames of a log good checksums, so that what is in them is tried.
func resealed(data []byte) []byte {
	data = bytes.Clone(data)
	for at := headLen; at+frameHeadLen <= len(data); {
		size := frameHeadLen
		for i := range 3 {
			size += int(little.Uint32(data[at+8+4*i:]))
		}
		if size > len(data)-at {
			break
		}
		little.PutUint64(data[at:], xxh3.Hash(data[at+8:at+size]))
		at += size
	}
	return data
}

func TestARecordThatPanicsIsSetAside(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	for _, name := range []string{"a", "bad", "c"} {
		f.put(record(name, "1"))
	}
	f.setMeta(state.Meta{Synced: true})
	k.Follow("east", f)
	flush(t, k)
	end(k)
	fault = func(key mirror.Key) {
		if key.Name == "bad" {
			panic("no good")
		}
	}
	defer func() { fault = nil }()
	k = open(t, dir)
	s := k.Load("east")
	same(t, "loaded", hostsOf(t, s.Records), map[string]string{"a": "1", "c": "1"})
	if len(s.Unusable) != 1 {
		t.Errorf("unusable %v", s.Unusable)
	}
	fault = nil
	k.Follow("east", restoredFake(s))
	flush(t, k)
	end(k)
	same(t, "after that", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"a": "1", "c": "1"})
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
		k := openState(dir)
		if n := len(k.Load("east").Records); n != 10_000 {
			b.Fatal(n)
		}
		end(k)
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

func TestRecordsAreTakenApartAsMessagesAre(t *testing.T) {
	text := rapid.SliceOfN(rapid.Byte(), 0, 12)
	resourceOf := func(t *rapid.T, name string) *statepb.Resource {
		if !rapid.Bool().Draw(t, name) {
			return nil
		}
		return &statepb.Resource{
			Any: text.Draw(t, name+"Any"), Source: text.Draw(t, name+"Source"), Cluster: text.Draw(t, name+"Cluster"),
			SourceVersion: text.Draw(t, name+"Version"), Kind: text.Draw(t, name+"Kind"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := &statepb.Record{
			Resource: resourceOf(t, "resource"), Original: resourceOf(t, "original"), TypeUrl: text.Draw(t, "url"), Version: text.Draw(t, "version"),
			Hash: text.Draw(t, "hash"),
		}
		if rapid.Bool().Draw(t, "at") {
			m.At = &statepb.Time{Seconds: rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), Nanos: rapid.Uint64().Draw(t, "nanos")}
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newDecoder().parse(unknownFields(b))
		if err != nil {
			t.Fatal(err)
		}
		for what, pair := range map[string][2][]byte{"url": {got.typeURL, m.TypeUrl}, "version": {got.version, m.Version}, "hash": {got.hash, m.Hash}} {
			if !bytes.Equal(pair[0], pair[1]) {
				t.Fatalf("%s is %q, want %q", what, pair[0], pair[1])
			}
		}
		if !got.at.Equal(decodeTime(m.At)) {
			t.Fatalf("at %v, want %v", got.at, decodeTime(m.At))
		}
		for what, of := range map[string]struct {
			got  storedResource
			want *statepb.Resource
		}{"resource": {got.resource, m.Resource}, "original": {got.original, m.Original}} {
			want := storedResource{encoded: of.want.GetAny(), source: of.want.GetSource(), cluster: of.want.GetCluster(), version: of.want.GetSourceVersion(), kindOf: of.want.GetKind()}
			if diff := cmp.Diff(want, of.got, cmp.AllowUnexported(storedResource{}), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s: %s", what, diff)
			}
		}
		if cut := b[:rapid.IntRange(0, len(b)).Draw(t, "cut")]; proto.Unmarshal(cut, &statepb.Record{}) != nil {
			if _, err := newDecoder().parse(cut); err == nil {
				t.Fatalf("%x is taken for a record", cut)
			}
		}
	})
}

func TestARestoreAllocatesLittle(t *testing.T) {
	r := *record("db", "1")
	key := r.Resource.Key()
	b, err := encodeRecord(key, &r)
	must(t, err)
	d, keyBytes, data := newDecoder(), encodeKey(key), r.Resource.Any()
	// The resource, its encoding, its name and its version.
	if n := testing.AllocsPerRun(100, func() { _, err = d.record(keyBytes, b, data) }); err != nil || n > 5 {
		t.Errorf("%v allocations for a record, %v", n, err)
	}
}

// FuzzRecord demands that a record is taken apart without a panic whatever is in it, and is good where
// the generated code takes it.
func FuzzRecord(f *testing.F) {
	r := *record("db", "1")
	r.Original, r.At = resource("original", "2"), time.Unix(1, 2)
	b, err := encodeRecord(r.Resource.Key(), &r)
	must(f, err)
	good := b
	f.Add(encodeKey(r.Resource.Key()), b, r.Resource.Any())
	d := newDecoder()
	f.Fuzz(func(t *testing.T, key, b, data []byte) {
		_, err := d.record(key, b, data)
		if p := (*panics.Panic)(nil); errors.As(err, &p) {
			t.Fatalf("%v\n%s", p.Value, p.Stack)
		}
		_, mine := newDecoder().parse(b)
		if theirs := proto.Unmarshal(b, &statepb.Record{}); (mine == nil) != (theirs == nil) {
			t.Errorf("%v, and the generated code: %v", mine, theirs)
		}
		if got, err := d.record(encodeKey(r.Resource.Key()), good, r.Resource.Any()); err != nil || !got.Resource.Equal(r.Resource) || !got.Original.Equal(r.Original) {
			t.Errorf("a whole record after that is another: %v", err)
		}
	})
}
