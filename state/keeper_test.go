package state

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/anypb"
	networkingapi "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/collecting"
	"meshrelay/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a Store in memory, for what does not depend on a disk. The tests of a Keeper with
// the store that relays use are in state/local.
type store struct {
	mu      sync.Mutex // guards all below
	failing error
	found   *Found
	sources map[string]map[mirror.Key]*Record
	metas   map[string]Meta
	applied []Batch
	served  bool
	closed  bool
	journal []byte
	// noJournal is why the journal can not be written.
	noJournal error
}

func newStore() *store {
	return &store{found: &Found{}, sources: map[string]map[mirror.Key]*Record{}, metas: map[string]Meta{}}
}

func (s *store) Open() (*Found, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.found
	s.found = nil
	return found, s.failing
}

func (s *store) Load(source string) (Saved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved := Saved{Meta: s.metas[source]}
	for _, r := range s.sources[source] {
		saved.Records = append(saved.Records, *r)
	}
	return saved, nil
}

func (s *store) Apply(source string, b Batch) (Kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = append(s.applied, b)
	if b.Meta.Whole || s.sources[source] == nil {
		s.sources[source] = map[mirror.Key]*Record{}
	}
	for _, c := range b.Changes {
		if s.sources[source][c.Key] = c.Record; c.Record == nil {
			delete(s.sources[source], c.Key)
		}
	}
	s.metas[source] = b.Meta
	return Kept{Meta: b.Meta, Records: len(s.sources[source])}, nil
}

func (s *store) Forget(source string) error { delete(s.sources, source); return nil }
func (s *store) SetServed() error           { s.served = true; return nil }
func (s *store) LoadJournal() [][]byte      { return bytes.SplitAfter(s.journal, []byte("\n")) }
func (s *store) AppendJournal(lines []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.failing, s.noJournal)
	if err == nil {
		s.journal = append(s.journal, lines...)
	}
	return err
}

func (s *store) History(string) ([]Revision, error) {
	return nil, nil
}

func (s *store) At(string, uint64) ([]Record, error) { return nil, ErrUnknownRevision }

func (s *store) Backup(w io.Writer, _ ...Extra) error {
	for {
		if _, err := w.Write([]byte("state")); err != nil {
			return err
		}
	}
}

func (s *store) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Info{Path: "memory", InUse: s.failing == nil && !s.closed}
}

func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// fail has the store fail from now on, or not any more.
func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
}

func (s *store) batches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.applied)
}

// source has records by name.
type source struct {
	meta    Meta
	content map[string]*Record
	changed map[string]bool
	gave    [][]Change
	marked  int
}

func newSource() *source { return &source{content: map[string]*Record{}, changed: map[string]bool{}} }

func keyOf(name string) mirror.Key {
	return mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: name}
}

func (s *source) put(name string) {
	body, err := anypb.New(&networkingapi.ServiceEntry{Hosts: []string{name}})
	if err != nil {
		panic(err)
	}
	r, err := mirror.New(mirror.Spec{Key: keyOf(name), Source: "east", Body: body})
	if err != nil {
		panic(err)
	}
	s.content[name], s.changed[name] = &Record{Resource: r}, true
}

func (s *source) TakeChanges() (out []Change, m Meta) {
	for name := range s.changed {
		out = append(out, Change{Key: keyOf(name), Record: s.content[name]})
	}
	clear(s.changed)
	return out, s.meta
}

func (s *source) GiveBack(changes []Change) {
	s.gave = append(s.gave, changes)
	for _, c := range changes {
		s.changed[c.Key.Name] = true
	}
}

func (s *source) MarkAll() {
	s.marked++
	for name := range s.content {
		s.changed[name] = true
	}
}

func names(m map[mirror.Key]*Record) map[string]bool {
	out := map[string]bool{}
	for key := range m {
		out[key.Name] = true
	}
	return out
}

func openKeeper(t *testing.T, s Store, o Options) *Keeper {
	t.Helper()
	k, err := Open(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestAttemptsBecomeRareWhileTheyFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.failing = errors.New("no room")
		k := openKeeper(t, s, Options{})
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
		src := newSource()
		src.put("a")
		k.Follow("east", src)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		s.fail(nil)
		await.Pass(retryMost - time.Second)
		if s.batches() > 0 {
			t.Error("it is tried too early")
		}
		await.Pass(2 * time.Second)
		if st := k.Status(); s.batches() == 0 || !st.Healthy || st.LastError != "" || !st.ErrorSince.IsZero() {
			t.Errorf("%d batches, status %+v", s.batches(), st)
		}
		cancel()
		if err := <-done; err != nil || !s.closed {
			t.Errorf("error %v, closed %v", err, s.closed)
		}
	})
}

func TestAFlushWaitsForWhoWrites(t *testing.T) {
	k := openKeeper(t, newStore(), Options{})
	busy, cancel := context.WithCancel(t.Context())
	k.busy <- struct{}{}
	cancel()
	if err := k.Flush(busy); err == nil {
		t.Error("somebody writes, and a flush did not wait")
	}
	k.release()
}

func TestABackupEndsWithTheKeeper(t *testing.T) {
	k := openKeeper(t, newStore(), Options{})
	started, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- k.Backup(writerFunc(func(p []byte) (int, error) {
			select {
			case <-started:
			default:
				close(started)
				<-k.closing
			}
			return len(p), nil
		}))
	}()
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, errClosed) {
		t.Errorf("error %v", err)
	}
}

// A store that has lost what it had, or has found what nobody knew of, is given all once more.
func TestASourceGivesAllOnceMoreWhenTheStoreHasSomethingElse(t *testing.T) {
	s := newStore()
	k := openKeeper(t, s, Options{})
	src := newSource()
	src.put("a")
	src.put("b")
	k.Follow("east", src)
	flush := func() {
		t.Helper()
		if err := k.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	s.found = &Found{Sources: map[string]Kept{"east": {Records: 2}}} // opened again, with the same
	flush()
	if src.marked != 0 {
		t.Error("it has to give all, although nothing is lost")
	}
	s.found = &Found{Sources: map[string]Kept{"east": {Records: 1, Sum: 7}}}
	s.sources["east"] = map[mirror.Key]*Record{keyOf("old"): {}}
	src.put("c")
	flush()
	if got := names(s.sources["east"]); !maps.Equal(got, map[string]bool{"old": true, "a": true, "b": true, "c": true}) {
		t.Errorf("before it has synced, %v is kept", got)
	}
	src.meta = Meta{Synced: true, By: "release"}
	s.failing = errors.New("no room")
	if k.Flush(t.Context()) == nil {
		t.Error("no error")
	}
	s.failing = nil
	flush()
	if got := names(s.sources["east"]); !maps.Equal(got, map[string]bool{"a": true, "b": true, "c": true}) {
		t.Errorf("after it has synced, %v is kept", got)
	}
	if by := s.metas["east"].By; by != "release" {
		t.Errorf("the cause is %q", by)
	}
	marked := src.marked
	flush()
	if src.marked != marked || s.applied[len(s.applied)-1].Meta.Whole {
		t.Error("it has to give all again and again")
	}
}

// parts is a Journal that gives its lines one by one.
type parts struct{ left [][]byte }

func (p *parts) Take() []byte {
	if len(p.left) == 0 {
		return nil
	}
	return p.left[0]
}

func (p *parts) Done(kept bool) {
	if kept && len(p.left) > 0 {
		p.left = p.left[1:]
	}
}

// TestAFlushWritesAllPartsOfAJournal, until one can not be written.
func TestAFlushWritesAllPartsOfAJournal(t *testing.T) {
	s := newStore()
	p := &parts{[][]byte{[]byte("a\n"), []byte("b\n"), []byte("c\n")}}
	k := &Keeper{store: s}
	s.fail(errors.New("full"))
	if err := k.writeJournal(p); err == nil || len(p.left) != 3 {
		t.Errorf("%d parts are left after a failure, want 3 (%v)", len(p.left), err)
	}
	s.fail(nil)
	if err := k.writeJournal(p); err != nil || string(s.journal) != "a\nb\nc\n" {
		t.Errorf("%q is written: %v", s.journal, err)
	}
	if err := k.writeJournal(p); err != nil {
		t.Errorf("nothing to write: %v", err)
	}
}

// TestAJournalThatCanNotBeWrittenHoldsNothingUp: the state is written as often as ever, for orders too. The
// status tells of the journal.
func TestAJournalThatCanNotBeWrittenHoldsNothingUp(t *testing.T) {
	s := newStore()
	k := openKeeper(t, s, Options{})
	src := newSource()
	src.put("a")
	k.Follow("east", src)
	k.FollowJournal(&parts{[][]byte{[]byte("a\n")}})
	s.noJournal = errors.New("it is a directory")
	if err := k.Flush(t.Context()); err != nil || len(s.sources["east"]) != 1 {
		t.Errorf("the state is not written: %v", err)
	}
	if st := k.Status(); !st.Healthy || st.LastError != "" || st.JournalError != "it is a directory" || !k.isDue(time.Now()) {
		t.Errorf("status %+v", st)
	}
	healthy := func(want string) {
		t.Helper()
		text := "# HELP relay_state_journal_healthy Whether the journal of events was written without error the last time, where it is kept.\n" +
			"# TYPE relay_state_journal_healthy gauge\nrelay_state_journal_healthy " + want + "\n"
		if err := testutil.CollectAndCompare(k, strings.NewReader(text), "relay_state_journal_healthy"); err != nil {
			t.Error(err)
		}
	}
	healthy("0")
	s.noJournal = nil
	defer healthy("1")
	if err := k.Flush(t.Context()); err != nil || string(s.journal) != "a\n" || k.Status().JournalError != "" {
		t.Errorf("%v, journal %q, status %+v", err, s.journal, k.Status())
	}
}

// TestMetricsAreSentWithoutTheLock: some are values of the Status, for which the reader of the others asks.
func TestMetricsAreSentWithoutTheLock(t *testing.T) {
	k := openKeeper(t, newStore(), Options{})
	for _, name := range []string{"east", "west"} {
		k.Follow(name, newSource())
	}
	collecting.Unlocked(t, k, func() { k.Status() })
}
