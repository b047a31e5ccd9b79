package local

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/anypb"
	networkingapi "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/state"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("STATE_TEST_ROLE"); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

var serviceEntries = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

// resource returns a ServiceEntry of east, whose content is told by host.
func resource(name, host string) *mirror.Resource {
	body, err := anypb.New(&networkingapi.ServiceEntry{Hosts: []string{host}})
	if err != nil {
		panic(err)
	}
	r, err := mirror.New(mirror.Spec{
		Key: mirror.Key{Kind: serviceEntries, Namespace: "shop", Name: name}, Labels: map[string]string{"app": name},
		Source: "east", Cluster: "c1", SourceVersion: "v-" + host, Body: body,
	})
	if err != nil {
		panic(err)
	}
	return r
}

func record(name, host string) *state.Record {
	return &state.Record{Resource: resource(name, host), TypeURL: "networking.istio.io/v1/ServiceEntry", Version: "7", Hash: [16]byte{1, 2}, At: time.Unix(1_700_000_000, 0)}
}

// fake is a source with a content of its own.
type fake struct {
	mu      sync.Mutex
	meta    state.Meta
	content map[mirror.Key]*state.Record
	changed map[mirror.Key]struct{}
	gives   int // how often changes were given back
	takes   int // how often it was asked for changes
}

func newFake() *fake {
	return &fake{content: map[mirror.Key]*state.Record{}, changed: map[mirror.Key]struct{}{}}
}

// restoredFake is what a source is after a restart.
func restoredFake(s state.Saved) *fake {
	f := newFake()
	f.meta = s.Meta
	for i := range s.Records {
		f.content[s.Records[i].Resource.Key()] = &s.Records[i]
	}
	return f
}

func (f *fake) put(r *state.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.content[r.Resource.Key()] = r
	f.changed[r.Resource.Key()] = struct{}{}
}

func (f *fake) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := resource(name, "x").Key()
	delete(f.content, key)
	f.changed[key] = struct{}{}
}

func (f *fake) setMeta(m state.Meta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meta = m
}

func (f *fake) TakeChanges() ([]state.Change, state.Meta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes++
	var out []state.Change
	for key := range f.changed {
		out = append(out, state.Change{Key: key, Record: f.content[key]})
	}
	clear(f.changed)
	return out, f.meta
}

func (f *fake) GiveBack(changes []state.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gives++
	for _, c := range changes {
		f.changed[c.Key] = struct{}{}
	}
}

// hosts returns the content by name.
func (f *fake) hosts() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for _, r := range f.content {
		out[r.Resource.Key().Name] = r.Resource.SourceVersion()[2:]
	}
	return out
}

func (f *fake) MarkAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.content {
		f.changed[key] = struct{}{}
	}
}

func hostsOf(t testing.TB, records []state.Record) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range records {
		host := r.Resource.SourceVersion()[2:]
		name := r.Resource.Key().Name
		if !r.Resource.Equal(resource(name, host)) {
			t.Errorf("%s is not what was kept", name)
		}
		out[name] = host
	}
	return out
}

// bounds are those of a history that is rarely bounded.
var bounds = state.History{Revisions: 100, MaxBytes: 1 << 20}

// openState opens the state in a directory, whatever it is like.
func openState(dir string) *state.Keeper { return openWith(dir, bounds) }

// openStore opens a state of a format that this build reads.
func openStore(store state.Store, o state.Options) *state.Keeper {
	k, err := state.Open(store, o)
	if err != nil {
		panic(err)
	}
	return k
}

func openWith(dir string, h state.History) *state.Keeper {
	return openStore(New(dir, nil), state.Options{History: h})
}

// open opens a state that must be good.
func open(t testing.TB, dir string) *state.Keeper {
	t.Helper()
	k := openState(dir)
	t.Cleanup(func() { end(k) })
	if st := k.Status(); !st.Healthy || st.LastError != "" || len(st.SetAside) != 0 {
		t.Fatalf("status %+v", st)
	}
	return k
}

// keepOne leaves a state with one resource of east.
func keepOne(t testing.TB, dir string) {
	t.Helper()
	k := open(t, dir)
	f := newFake()
	f.put(record("db", "1"))
	k.Follow("east", f)
	flush(t, k)
	end(k)
}

// end is the end of a Keeper that does not Run.
func end(k *state.Keeper) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = k.Run(ctx)
}

func flush(t testing.TB, k *state.Keeper) {
	t.Helper()
	if err := k.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func TestWhatWasFlushedIsLoaded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	k := open(t, dir)
	if s := k.Load("east"); len(s.Records) != 0 || s.Revision != 0 {
		t.Fatalf("a new file has %+v", s)
	}
	f := newFake()
	k.Follow("east", f)
	original := resource("db", "original")
	reshaped := record("db", "1")
	reshaped.Original = original
	f.put(reshaped)
	f.put(record("cache", "1"))
	meta := state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: "fp", Frozen: &state.Frozen{Since: time.Now().Add(-time.Hour), Revision: 3}}
	f.setMeta(meta)
	flush(t, k)
	f.remove("cache")
	flush(t, k)
	end(k)

	s := open(t, dir).Load("east")
	if s.Revision != 2 || !sameMeta(s.Meta, meta) || len(s.Records) != 1 {
		t.Fatalf("loaded %+v", s)
	}
	got, want := s.Records[0], *reshaped
	if !got.Resource.Equal(want.Resource) || !got.Original.Equal(original) || got.TypeURL != want.TypeURL || got.Version != want.Version ||
		got.Hash != want.Hash || !got.At.Equal(want.At) || got.Resource.Cluster() != "c1" || got.Resource.SourceVersion() != "v-1" {
		t.Errorf("loaded %+v, want %+v", got, want)
	}
}

func TestLoadHandsOutOnceAndReadsAgain(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	flush(t, k)
	for range 2 {
		same(t, "loaded", hostsOf(t, k.Load("east").Records), map[string]string{"db": "1"})
	}
	end(k)
	k = open(t, dir)
	for range 3 {
		same(t, "loaded", hostsOf(t, k.Load("east").Records), map[string]string{"db": "1"})
	}
}

func TestSourcesThatAreNotRetainedAreForgotten(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"east", "west", "north"} {
		f := newFake()
		f.put(record("db", "1"))
		k.Follow(name, f)
	}
	flush(t, k)
	end(k)

	k = openStore(New(dir, nil), state.Options{History: bounds, Retain: []string{"east", "north"}})
	if s := k.Load("west"); len(s.Records) != 0 {
		t.Error("what is not retained is loaded")
	}
	k.Follow("east", restoredFake(k.Load("east")))
	k.Follow("north", restoredFake(k.Load("north")))
	k.Unfollow("north")
	flush(t, k)
	end(k)

	file, err := ReadFile(Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Sources) != 1 || file.Sources[0].Name != "east" {
		t.Errorf("the file has %+v", file.Sources)
	}
}

func TestANewSourceOfAForgottenNameBeginsAnew(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.put(record("old", "1"))
	k.Follow("east", f)
	flush(t, k)
	k.Unfollow("east")
	f = newFake()
	f.put(record("new", "2"))
	k.Follow("east", f)
	flush(t, k)
	end(k)
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"new": "2"})
}

// The kept resources of a source that was not restored stay until the source is complete, and then
// go.
func TestWhatIsKeptStaysUntilASourceHasSaidAll(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	f := newFake()
	f.setMeta(state.Meta{Synced: true, LastContact: time.Unix(1e9, 0), Fingerprint: "a"})
	f.put(record("gone", "1"))
	f.put(record("db", "1"))
	k.Follow("east", f)
	flush(t, k)
	end(k)

	k = open(t, dir)
	f = newFake()
	k.Follow("east", f)
	f.setMeta(state.Meta{Fingerprint: "b"})
	f.put(record("db", "2"))
	flush(t, k)
	s := k.Load("east")
	same(t, "before it has synced", hostsOf(t, s.Records), map[string]string{"gone": "1", "db": "2"})
	if !s.Meta.Synced || s.Meta.Fingerprint == "b" || !s.Meta.LastContact.Equal(time.Unix(1e9, 0)) {
		t.Errorf("meta %+v", s.Meta)
	}
	f.put(record("more", "1"))
	f.setMeta(state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: "b"})
	flush(t, k)
	end(k)
	s = open(t, dir).Load("east")
	same(t, "after it has synced", hostsOf(t, s.Records), map[string]string{"db": "2", "more": "1"})
	if s.Meta.Fingerprint != "b" {
		t.Errorf("meta %+v", s.Meta)
	}
}

func TestWhatIsAsItWasIsNotWritten(t *testing.T) {
	k := open(t, t.TempDir())
	f := newFake()
	k.Follow("east", f)
	f.put(record("db", "1"))
	flush(t, k)
	before := k.Status().Size
	flush(t, k)
	if n := k.Status().Size; n != before {
		t.Errorf("%d bytes written for no change", n-before)
	}
	// The same resource again, and a change of the source's version only, are no revisions.
	f.put(record("db", "1"))
	flush(t, k)
	again := record("db", "1")
	again.Version = "8"
	f.put(again)
	f.setMeta(state.Meta{Synced: true, LastContact: time.Now()})
	flush(t, k)
	if h, err := k.History("east"); err != nil || len(h) != 1 {
		t.Errorf("history %+v, %v", h, err)
	}
	if s := k.Load("east"); s.Records[0].Version != "8" || !s.Meta.Synced {
		t.Errorf("loaded %+v", s)
	}
}

func TestRunWritesInIntervalsAndAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	k := openStore(New(dir, nil), state.Options{FlushInterval: time.Millisecond, History: bounds})
	f := newFake()
	k.Follow("east", f)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	f.put(record("db", "1"))
	await.Equal(t, "it is written", 1, func() int { return len(k.Load("east").Records) })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := k.Flush(t.Context()); err == nil {
		t.Error("a Keeper that has ended flushes")
	}

	// The last changes are written, whatever the interval.
	k = openStore(New(dir, nil), state.Options{FlushInterval: time.Hour, History: bounds})
	f = restoredFake(k.Load("east"))
	k.Follow("east", f)
	f.put(record("db", "2"))
	end(k)
	same(t, "loaded", hostsOf(t, open(t, dir).Load("east").Records), map[string]string{"db": "2"})
}

func TestSeveralSourcesAreKeptApart(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	want := map[string]map[string]string{}
	for i := range 5 {
		f := newFake()
		for n := range i {
			f.put(record(fmt.Sprint("r", n), fmt.Sprint(i)))
		}
		name := fmt.Sprint("s", i)
		want[name] = f.hosts()
		k.Follow(name, f)
	}
	flush(t, k)
	end(k)
	k = open(t, dir)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		same(t, name, hostsOf(t, k.Load(name).Records), want[name])
	}
}

// Of a source that gives much, less is in memory at once.
func TestMuchIsWrittenSourceBySource(t *testing.T) {
	const many = 15_000
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"east", "west"} {
		f := newFake()
		for n := range many {
			f.put(record(fmt.Sprint("r", n), name))
		}
		k.Follow(name, f)
	}
	flush(t, k)
	k.Unfollow("east")
	flush(t, k)
	end(k)
	k = open(t, dir)
	if n, m := len(k.Load("east").Records), len(k.Load("west").Records); n != 0 || m != many {
		t.Errorf("loaded %d and %d records", n, m)
	}
}
