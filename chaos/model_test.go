package main

import (
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
)

// shared is a key that the first two sources of testWorld have.
const shared = 0

func testWorld(t *testing.T) *world {
	t.Helper()
	return newWorld([]string{"east", "west"}, 40, 2, newJournal(io.Discard))
}

// tells has a source make a change and record it.
func (w *world) tells(t *testing.T, source, key int, present bool, holdFor time.Duration) int {
	t.Helper()
	if present {
		if err := w.put(source, key); err != nil {
			t.Fatal(err)
		}
	} else if !w.remove(source, key, holdFor) {
		t.Fatalf("%s does not have %s", w.sources[source].name, describe(key))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	it := w.sources[source].items[key]
	w.sources[source].record(key, it.seq, it.present)
	return it.seq
}

func invariantOf(v *violation) string {
	if v == nil {
		return ""
	}
	return v.invariant
}

// A script is a list of what sources say and of what a client sees after that, of one key.
func TestClientsMaySeeOnlyWhatUpstreamsServed(t *testing.T) {
	put := func(source int) func(*testing.T, *world, *view) *violation {
		return func(t *testing.T, w *world, _ *view) *violation { w.tells(t, source, shared, true, 0); return nil }
	}
	del := func(source int) func(*testing.T, *world, *view) *violation {
		return func(t *testing.T, w *world, _ *view) *violation { w.tells(t, source, shared, false, 0); return nil }
	}
	sees := func(source, seq int) func(*testing.T, *world, *view) *violation {
		return func(_ *testing.T, w *world, v *view) *violation {
			w.mu.Lock()
			defer w.mu.Unlock()
			return v.sees(content{source, shared, seq}, time.Now())
		}
	}
	misses := func(_ *testing.T, w *world, v *view) *violation {
		w.mu.Lock()
		defer w.mu.Unlock()
		return v.misses(shared, time.Now())
	}
	leaves := func(source int) func(*testing.T, *world, *view) *violation {
		return func(_ *testing.T, w *world, _ *view) *violation { w.leave([]int{source}); return nil }
	}
	stays := func(source int) func(*testing.T, *world, *view) *violation {
		return func(_ *testing.T, w *world, _ *view) *violation { w.stay([]int{source}); return nil }
	}
	const east, west = 0, 1
	type script []func(*testing.T, *world, *view) *violation
	for _, tt := range []struct {
		name   string
		script script
		want   string
	}{
		{"contents in their order are right", script{put(east), sees(east, 1), put(east), sees(east, 2)}, ""},
		{"a content may be left out", script{put(east), put(east), sees(east, 2)}, ""},
		{"a content may be seen late", script{put(east), put(east), sees(east, 1), sees(east, 2)}, ""},
		{"an older content after a newer one is I3", script{put(east), put(east), sees(east, 2), sees(east, 1)}, older},
		{"a content that was never given is I2", script{put(east), sees(east, 7)}, wrong},
		{"a deletion that was sent may be seen", script{put(east), sees(east, 1), del(east), misses}, ""},
		{"a disappearance without a deletion is I1", script{put(east), sees(east, 1), misses}, lost},
		{"a disappearance on account of an old deletion is I1", script{put(east), del(east), put(east), sees(east, 3), misses}, lost},
		{"a deletion that was followed by a content may be seen late", script{put(east), sees(east, 1), del(east), put(east), misses, sees(east, 3)}, ""},
		{"a content from before a deletion that was seen is I3", script{put(east), sees(east, 1), del(east), misses, sees(east, 1)}, older},
		{"the first source wins", script{put(west), sees(west, 1), put(east), sees(east, 1)}, ""},
		{"the second source after the first has deleted it is right", script{put(west), put(east), sees(east, 1), del(east), sees(west, 1)}, ""},
		{"the second source although the first still has it is I1", script{put(west), put(east), sees(east, 1), sees(west, 1)}, lost},
		{"a disappearance although the second source has it is I1", script{put(west), put(east), sees(west, 1), sees(east, 1), del(east), misses}, lost},
		{"what a source gave that leaves the config may go", script{put(east), sees(east, 1), leaves(east), misses}, ""},
		{"what another source has may not go with a source that leaves", script{put(west), sees(west, 1), put(east), sees(east, 1), leaves(east), misses}, lost},
		{"the second source after the first has left is right", script{put(west), put(east), sees(east, 1), leaves(east), sees(west, 1)}, ""},
		{"what a source gives while it leaves may be seen, and go", script{put(east), leaves(east), put(east), sees(east, 2), misses}, ""},
		{"an older content of a source that leaves is I3", script{put(east), leaves(east), put(east), sees(east, 2), sees(east, 1)}, older},
		{"what a source gives that has returned may not go", script{put(east), leaves(east), misses, stays(east), put(east), sees(east, 2), misses}, lost},
		{"what nobody had seen may be missing", script{put(east), misses}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(t)
			v := newView("client", w)
			var got *violation
			for i, step := range tt.script {
				if got != nil {
					t.Fatalf("before step %d: %v", i, got)
				}
				got = step(t, w, v)
			}
			if invariantOf(got) != tt.want {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}

func TestEachKeyHasFromOneToMostSources(t *testing.T) {
	for most, want := range map[int][]int{1: {1}, 2: {1, 2}, 5: {1, 2, 3, 4, 5}, 200: {100}} {
		w := newWorld(hundred, 800, most, newJournal(io.Discard))
		seen := map[int]bool{}
		for key := range w.keys {
			holders := w.holders(key)
			seen[len(holders)] = true
			slices.Sort(holders)
			if len(slices.Compact(holders)) != len(w.holders(key)) {
				t.Fatalf("most %d: the sources of key %d are %v", most, key, w.holders(key))
			}
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
			t.Errorf("most %d: keys have %v sources, want %v", most, got, want)
		}
	}
}

func see(w *world, v *view, source, key, seq int) *violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return v.sees(content{source, key, seq}, time.Now())
}

func TestDeletionThatAGuardHoldsMustNotBeSeenBefore(t *testing.T) {
	w := testWorld(t)
	v := newView("client", w)
	w.tells(t, 1, shared, true, 0)
	if bad := see(w, v, 1, shared, 1); bad != nil {
		t.Fatal(bad)
	}
	w.tells(t, 1, shared, false, time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	if bad := v.misses(shared, time.Now()); invariantOf(bad) != lost {
		t.Errorf("before the time: %v, want %s", bad, lost)
	}
	if bad := v.misses(shared, time.Now().Add(2*time.Minute)); bad != nil {
		t.Errorf("after the time: %v", bad)
	}
}

func TestOrderThatChangesLetsEitherSourceBeSeen(t *testing.T) {
	w := testWorld(t)
	v := newView("client", w)
	w.tells(t, 0, shared, true, 0)
	w.tells(t, 1, shared, true, 0)
	for _, source := range []int{0, 1} {
		w.reorder([]int{1, 0})
		if bad := see(w, v, source, shared, 1); bad != nil {
			t.Fatal(bad)
		}
	}
	w.settled()
	if got := w.expected()[shared].source; got != 1 {
		t.Errorf("source %d is expected, want the one that is first now", got)
	}
	if bad := see(w, v, 0, shared, 1); invariantOf(bad) != lost {
		t.Errorf("once settled: %v, want %s", bad, lost)
	}
}

// After a kill, clients may see only entries again that may not have been on disk.
func TestKilledRelayMayForgetWhatIsNewAndNothingElse(t *testing.T) {
	for _, tt := range []struct {
		name  string
		since func(moves []time.Time) time.Time
		sees  int
		want  string
	}{
		{"the newest", func(m []time.Time) time.Time { return m[1] }, 2, ""},
		{"not what is older", func(m []time.Time) time.Time { return m[1] }, 1, older},
		{"nothing", func(m []time.Time) time.Time { return m[2] }, 2, older},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(t)
			near, far := newView("near", w), newView("far", w)
			var moves []time.Time
			for seq := 1; seq <= 3; seq++ {
				w.tells(t, 0, shared, true, 0)
				now := time.Now().Add(time.Duration(seq) * time.Millisecond)
				moves = append(moves, now)
				w.mu.Lock()
				bad := errors.Join(asError(near.sees(content{0, shared, seq}, now)), asError(far.sees(content{0, shared, seq}, now)))
				w.mu.Unlock()
				if bad != nil {
					t.Fatal(bad)
				}
			}
			w.retell([]*view{near}, tt.since(moves))
			if got := see(w, far, 0, shared, tt.sees); invariantOf(got) != tt.want {
				t.Errorf("got %v, want %q", got, tt.want)
			}
			if tt.want == "" {
				if bad := see(w, far, 0, shared, 3); bad != nil {
					t.Errorf("and then the newest again: %v", bad)
				}
			}
		})
	}
}

func asError(v *violation) error {
	if v == nil {
		return nil
	}
	return v
}

func TestKillsDoNotMakeTheHistoryGrowWithoutBounds(t *testing.T) {
	w := testWorld(t)
	v := newView("client", w) // which sees nothing, as of a source that is not first
	for range 5 {
		w.tells(t, 0, shared, true, 0)
	}
	it := w.sources[0].items[shared]
	for range 20 {
		before := len(it.history)
		w.retell([]*view{v}, time.Now())
		if grown := len(it.history) - before; grown > 7 {
			t.Fatalf("a kill has made the history longer by %d entries, and 6 different entries were sent", grown)
		}
	}
}

func TestHistoryKeepsTheLastAnswers(t *testing.T) {
	w := testWorld(t)
	for range 1000 {
		w.tells(t, 0, shared, true, 0)
	}
	it := w.sources[0].items[shared]
	// All of it is young.
	if got := it.find(0, func(e entry) bool { return e.seq == 1 }); got != 1 {
		t.Errorf("the first content is entry %d, want 1", got)
	}
	for i := range it.history[:900] {
		it.history[i].at = time.Now().Add(-2 * historyKept)
	}
	for range 64 {
		w.tells(t, 0, shared, true, 0)
	}
	if got := it.find(0, func(e entry) bool { return e.seq == 1064 }); got != 1064 {
		t.Errorf("the last content is entry %d, want 1064", got)
	}
	if got := len(it.history); got > 200 {
		t.Errorf("%d entries are kept, of which all but 164 are old", got)
	}
}

func TestDifferencesAreFoundInBothDirections(t *testing.T) {
	w := testWorld(t)
	w.tells(t, 0, shared, true, 0)
	v := newView("client", w)
	if _, first, total := v.differs(w.expected()); total != 1 || first != shared {
		t.Errorf("one that is missing: %d differ, first %d", total, first)
	}
	if bad := see(w, v, 0, shared, 1); bad != nil {
		t.Fatal(bad)
	}
	if _, _, total := v.differs(w.expected()); total != 0 {
		t.Errorf("none is missing: %d differ", total)
	}
	w.tells(t, 0, shared, false, 0)
	if _, _, total := v.differs(w.expected()); total != 1 {
		t.Errorf("one too many: %d differ", total)
	}
}

func TestCloneSeesWhatItsOriginalHasSeen(t *testing.T) {
	w := testWorld(t)
	v := newView("client", w)
	w.tells(t, 0, shared, true, 0)
	w.tells(t, 0, shared, true, 0)
	if bad := see(w, v, 0, shared, 2); bad != nil {
		t.Fatal(bad)
	}
	c := v.clone("other")
	if bad := see(w, c, 0, shared, 1); invariantOf(bad) != older {
		t.Errorf("the clone sees an older content: %v, want %s", bad, older)
	}
	w.tells(t, 0, shared, true, 0)
	if bad := see(w, c, 0, shared, 3); bad != nil {
		t.Fatal(bad)
	}
	if v.shown[shared].seq != 2 {
		t.Error("the original has changed with its clone")
	}
}

func FuzzReader(f *testing.F) {
	w := newWorld([]string{"east", "west"}, 40, 2, newJournal(io.Discard))
	for key := range 8 {
		element, err := encode("east", key, key+1)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(key%len(kinds), element.Value)
		f.Add(key%len(kinds), neverMade(element).Value)
	}
	f.Fuzz(func(t *testing.T, kind int, value []byte) {
		if kind < 0 || kind >= len(kinds) {
			return
		}
		r := &reader{world: w}
		is, err := r.read(kind, &anypb.Any{TypeUrl: resourceURL, Value: value})
		if err != nil {
			return
		}
		// A content names its own key and source.
		if is.key%len(kinds) != kind || is.source < 0 || is.source > 1 {
			t.Errorf("%+v of kind %d", is, kind)
		}
	})
}

func TestReaderNoticesWhatIsNotAsItWasMade(t *testing.T) {
	w := testWorld(t)
	r := &reader{world: w}
	element, err := encode("east", 4, 3)
	if err != nil {
		t.Fatal(err)
	}
	if is, err := r.read(0, element); err != nil || is != (content{0, 4, 3}) {
		t.Errorf("as it was made: %+v, %v", is, err)
	}
	for name, bad := range map[string]*anypb.Any{
		"another body":       lieTypes.spoilt(5, element),
		"cut off":            lieTruncated.spoilt(4, element),
		"not UTF-8":          lieUTF8.spoilt(4, element),
		"the type of Struct": lieTypes.spoilt(4, element),
		"a label less":       edited(element, func(m *resource) { delete(m.Metadata.Labels, "app") }),
		"another annotation": edited(element, func(m *resource) { m.Metadata.Annotations["x"] = "y" }),
		"another name":       edited(element, func(m *resource) { m.Metadata.Name = keyName(8) }),
		"no marker":          edited(element, func(m *resource) { m.Metadata.Annotations = nil }),
		"another time":       edited(element, func(m *resource) { m.Metadata.CreateTime.Seconds++ }),
		"an edited body":     edited(element, func(m *resource) { m.Body.Value = append(m.Body.Value, m.Body.Value...) }),
	} {
		if is, err := r.read(0, bad); err == nil {
			t.Errorf("%s: taken for %+v", name, is)
		}
	}
	annotated := edited(element, func(m *resource) { m.Metadata.Annotations["meshrelay.io/from"] = "east" })
	if _, err := r.read(0, annotated); err != nil {
		t.Errorf("annotations of the relay: %v", err)
	}
}
