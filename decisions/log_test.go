package decisions

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var upstreams = []string{"east", "west"}

// allKinds returns all kinds.
func allKinds() []Kind {
	return []Kind{Freeze, Unfreeze, Release, Rollback, ServeWithout, Synced, Hold, Returned, Over}
}

// anyRecord draws a record of a replica that knows a state.
func anyRecord(t *rapid.T, s State, id string) Record {
	r := Record{ID: id, Kind: rapid.SampledFrom(allKinds()).Draw(t, "kind"), Upstream: rapid.SampledFrom(upstreams).Draw(t, "upstream"), Replica: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "replica")}
	u := s.Upstreams[r.Upstream]
	switch r.Kind {
	case Unfreeze:
		r.Ends = idOf(u.Frozen)
	case Synced:
		r.Ends = idOf(u.Without)
	case Returned, Over, Release:
		r.Ends = idOf(u.Hold)
	}
	r.Content = rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "content")
	r.Number = rapid.IntRange(0, 5).Draw(t, "number")
	if r.Kind == Release {
		r.Parts = rapid.SampledFrom([][]string{nil, {"vs/shop"}}).Draw(t, "parts")
	}
	return r
}

// store is an object that is written with its version as precondition.
type store struct {
	text    string
	version int
}

func (s *store) read(t *rapid.T) (Log, int) {
	l, err := Decode(s.text)
	if err != nil {
		t.Fatalf("the store holds what no replica can read: %v", err)
	}
	return l, s.version
}

func (s *store) write(l Log, version int) bool {
	if version != s.version {
		return false
	}
	s.text = l.Encode()
	s.version++
	return true
}

// replica keeps the newest log that it has seen, as its drivers do.
type replica struct{ newest Log }

func (r *replica) saw(l Log) {
	if l.State().Sequence > r.newest.State().Sequence {
		r.newest = l
	}
}

// TestAnyInterleavingOfAppendsIsOneStateOnAllReplicas, with conflicts, lost answers that are tried again, and events of
// the watch that are late, repeated or skipped.
func TestAnyInterleavingOfAppendsIsOneStateOnAllReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &store{}
		replicas := []*replica{{}, {}, {}}
		var history []Log
		var acknowledged []Record
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			r := rapid.SampledFrom(replicas).Draw(t, "replica")
			read, version := s.read(t)
			record := anyRecord(t, read.State(), fmt.Sprint("id", i))
			if rapid.Bool().Draw(t, "conflict") { // another replica writes between the read and the write
				other := anyRecord(t, read.State(), fmt.Sprint("other", i))
				if next, err := read.Append(other); err == nil && s.write(next, version) {
					history, acknowledged = append(history, next), append(acknowledged, other)
				}
			}
			for range 3 {
				next, err := read.Append(record)
				if errors.Is(err, ErrRefused) || err != nil {
					break
				}
				if !s.write(next, version) || rapid.Bool().Draw(t, "answer lost") {
					read, version = s.read(t)
					if len(history) == 0 || s.version > len(history) {
						history = append(history, read)
					}
					continue // with the same ID
				}
				history, acknowledged = append(history, next), append(acknowledged, record)
				r.saw(next)
				break
			}
			for range rapid.IntRange(0, 3).Draw(t, "events") { // any events of the past, in any order
				if len(history) > 0 {
					rapid.SampledFrom(replicas).Draw(t, "watcher").saw(rapid.SampledFrom(history).Draw(t, "event"))
				}
			}
		}
		last, _ := s.read(t)
		for _, r := range replicas {
			r.saw(last)
			if diff := cmp.Diff(last.State(), r.newest.State()); diff != "" {
				t.Fatalf("a replica has another state:\n%s", diff)
			}
		}
		for _, a := range acknowledged {
			n := 0
			for _, r := range last.Records() {
				if r.ID == a.ID {
					n++
				}
			}
			if n != 1 {
				t.Fatalf("the acknowledged record %+v is there %d times", a, n)
			}
		}
	})
}

func TestAHoldNeverDisappearsWithoutAnEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Log
		open := map[string]string{}
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			r := anyRecord(t, l.State(), fmt.Sprint("id", i))
			if rapid.IntRange(0, 4).Draw(t, "stale") == 0 {
				r.Ends = "another"
			}
			next, err := l.Append(r)
			if err != nil {
				continue
			}
			l = next
			switch {
			case r.Kind == Hold:
				open[r.Upstream] = r.ID
			case r.Kind == Returned, r.Kind == Over, r.Kind == Release && len(r.Parts) == 0:
				if r.Ends != open[r.Upstream] {
					t.Fatalf("%s ended the hold %q, and named %q", r.Kind, open[r.Upstream], r.Ends)
				}
				delete(open, r.Upstream)
			}
			for _, name := range upstreams {
				if got := idOf(l.State().Upstreams[name].Hold); got != open[name] {
					t.Fatalf("after %s of %s: the hold of %s is %q, want %q", r.Kind, r.Upstream, name, got, open[name])
				}
			}
		}
	})
}

func TestOldRecordsAreFoldedAndNothingIsForgotten(t *testing.T) {
	var l Log
	var err error
	states := State{}
	add := func(r Record) {
		t.Helper()
		if l, err = l.Append(r); err != nil {
			t.Fatal(err)
		}
		r.Sequence = l.State().Sequence
		states = states.With(r)
	}
	for i := range 300 {
		add(Record{ID: fmt.Sprint("hold", i), Kind: Hold, Upstream: fmt.Sprint("u", i), Content: strings.Repeat("c", 26), Replica: "relay-0", Reason: strings.Repeat("r", 100)})
	}
	for i := range 300 {
		add(Record{ID: fmt.Sprint("f", i), Kind: Freeze, Upstream: "east", Reason: strings.Repeat("r", 200), Replica: "relay-0"})
		add(Record{ID: fmt.Sprint("u", i), Kind: Unfreeze, Upstream: "east", Replica: "relay-1"})
	}
	text := l.Encode()
	if n := len(l.Records()); n > maxRecords || len(text) > MaxBytes || l.State().Sequence != 900 {
		t.Errorf("%d records, %d bytes, sequence %d", n, len(text), l.State().Sequence)
	}
	again, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(states, again.State()); diff != "" {
		t.Error(diff)
	}
	if _, all := again.Since(1); all {
		t.Error("all records since the first are there")
	}
	if since, all := again.Since(898); !all || len(since) != 2 {
		t.Errorf("%d records, %v", len(since), all)
	}
}

func TestALogThatIsFullIsAnErrorAndLosesNothing(t *testing.T) {
	var l Log
	for i := 0; ; i++ {
		next, err := l.Append(Record{ID: fmt.Sprint("id", i), Kind: Freeze, Upstream: fmt.Sprint("u", i), Reason: strings.Repeat("r", 256), Who: strings.Repeat("w", 253), Replica: strings.Repeat("n", 253)})
		if err != nil {
			if !strings.Contains(err.Error(), "full with the decisions about") || len(l.State().Upstreams) != i || i < 200 {
				t.Errorf("after %d: %v", i, err)
			}
			return
		}
		l = next
	}
}

func TestAppendingARecordTwiceIsAppendingItOnce(t *testing.T) {
	l, err := Log{}.Append(Record{ID: "1", Kind: Freeze, Upstream: "east", Replica: "a"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Append(Record{ID: "1", Kind: Freeze, Upstream: "east", Replica: "a"})
	if err != nil || len(again.Records()) != 1 {
		t.Errorf("%v, %v", again.Records(), err)
	}
	if _, err := l.Append(Record{ID: "2", Kind: Freeze, Upstream: "east", Replica: "a"}); !errors.Is(err, ErrRefused) {
		t.Errorf("another freeze: %v", err)
	}
}

func TestALogThatWasRestoredGetsWhatWasKnownAndWhatIsNew(t *testing.T) {
	old, _ := Log{}.Append(Record{ID: "1", Kind: Freeze, Upstream: "east", Replica: "a"})
	known, _ := old.Append(Record{ID: "2", Kind: Freeze, Upstream: "west", Replica: "a"})
	known, _ = known.Append(Record{ID: "3", Kind: Unfreeze, Upstream: "east", Replica: "a"})
	found, _ := old.Append(Record{ID: "4", Kind: Freeze, Upstream: "north", Replica: "b"}) // in the restored object
	s := known.With(found).State()
	if s.Upstreams["east"].Frozen != nil || s.Upstreams["west"].Frozen == nil || s.Upstreams["north"].Frozen == nil || s.Sequence != 4 {
		t.Errorf("%+v", s)
	}
}

// TestAnOldLogThatWasRestoredBringsNothingBackThatHasEnded: the newest log has folded its oldest records.
func TestAnOldLogThatWasRestoredBringsNothingBackThatHasEnded(t *testing.T) {
	var l, old Log
	add := func(id string, kind Kind, upstream string) {
		var err error
		if l, err = l.Append(Record{ID: id, Kind: kind, Upstream: upstream, Replica: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	add("first", Freeze, "east")
	for i := range 300 {
		if i == 100 {
			old = l
			add("end", Unfreeze, "east")
		}
		add(fmt.Sprint("f", i), Freeze, "west")
		add(fmt.Sprint("u", i), Unfreeze, "west")
	}
	found, err := old.Append(Record{ID: "new", Kind: Freeze, Upstream: "north", Replica: "b"})
	if err != nil {
		t.Fatal(err)
	}
	got, want := l.With(found), l.State().Sequence+1
	if s := got.State(); s.Upstreams["east"].Frozen != nil || s.Upstreams["north"].Frozen == nil || s.Sequence != want {
		t.Errorf("%+v, want %d", s, want)
	}
}

func TestALogWithALineThatNoReplicaWritesIsAnError(t *testing.T) {
	good := `{"seq":0}
{"seq":1,"id":"a","kind":"freeze","upstream":"east","replica":"r"}
`
	for _, line := range []string{
		`{"seq":2,`,
		`{"seq":3,"id":"c","kind":"freeze","upstream":"","replica":"r"}`,
		`{"seq":1,"id":"d","kind":"freeze","upstream":"west","replica":"r"}`,
		`{"seq":4,"id":"a","kind":"freeze","upstream":"west","replica":"r"}`,
		`{"seq":5,"id":"e","kind":"freeze","upstream":"west","replica":"r","reason":"\u001b[31m"}`,
		`{"seq":6,"id":"f","kind":"over","upstream":"west","replica":"r","content":"x"}`,
		`{"seq":9007199254740993,"id":"g","kind":"freeze","upstream":"west","replica":"r"}`,
		`null`, `[]`, `{"seq":-1}`, `{"seq":7,"id":"h","kind":"freeze","upstream":"west","replica":"r","parts":[` + strings.Repeat(`"x",`, 200) + `"x"]}`,
		strings.Repeat(" ", MaxBytes), strings.Repeat("x", MaxBytes/2), `{"` + strings.Repeat("x", MaxBytes/2) + `":1`,
	} {
		if l, err := Decode(good + line); !errors.Is(err, ErrNoLog) || len(err.Error()) > 1000 || l.State().Sequence != 0 {
			t.Errorf("%.80s: %+v, %.1100v", line, l.State(), err)
		}
	}
	for _, state := range []string{
		"{", `{"seq":9007199254740993}`, `{"seq":1,"upstreams":{"":{"hold":{}}}}`, `{"seq":1,"upstreams":{"a":{"released":[{"seq":1}]}}}`,
		`{"seq":1,"upstreams":{"a":{"frozen":{"seq":1,"id":"x","kind":"freeze","upstream":"b","replica":"r"}}}}`,
		`{"seq":1,"upstreams":{"a":{"frozen":{"seq":2,"id":"x","kind":"freeze","upstream":"a","replica":"r"}}}}`,
	} {
		if _, err := Decode(state); !errors.Is(err, ErrNoLog) {
			t.Errorf("%s: %v", state, err)
		}
	}
	if l, err := Decode(good); err != nil || l.State().Sequence != 1 {
		t.Errorf("%+v, %v", l.State(), err)
	}
}

// FuzzDecode: whatever anybody writes into the object, it can be read, and appended to, within the bounds.
func FuzzDecode(f *testing.F) {
	var l Log
	for i, r := range []Record{
		{Kind: Freeze}, {Kind: Hold, Content: "x", Number: 4}, {Kind: Release, Ends: "1", Content: "x", Number: 4, Parts: []string{"vs/shop"}},
		{Kind: Rollback, Content: "y"}, {Kind: ServeWithout},
	} {
		r.ID, r.Upstream, r.Replica = fmt.Sprint(i), "east", "relay-0"
		l, _ = l.Append(r)
	}
	f.Add(l.Encode())
	f.Add(Log{base: l.state, state: l.state}.Encode())
	f.Add(`{"seq":1,"upstreams":{"a":{"frozen":{"kind":"hold"},"released":[{"seq":9}]}}}{"seq":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Decode(text)
		if err != nil {
			return
		}
		next, err := l.Append(Record{ID: "new", Kind: Rollback, Upstream: "east", Replica: "r", Content: "c"})
		if err != nil {
			return
		}
		text = next.Encode()
		if len(text) > MaxBytes || len(next.Records()) > maxRecords {
			t.Fatalf("%d bytes, %d records", len(text), len(next.Records()))
		}
		again, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(next.State(), again.State(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestARecordOfANewerReleaseStaysInTheLogAndKeepsItsNumber(t *testing.T) {
	l, err := Decode(`{"seq":0}
{"seq":1,"id":"a","kind":"freeze","upstream":"east","replica":"r"}
{"seq":2,"id":"b","kind":"teleport","upstream":"east","replica":"new","content":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	if l, err = l.Append(Record{ID: "c", Kind: Unfreeze, Upstream: "east", Replica: "old"}); err != nil {
		t.Fatal(err)
	}
	again, err := Decode(l.Encode())
	if err != nil || again.State().Sequence != 3 || !again.Has("b") || again.Records()[1].Kind != "teleport" {
		t.Errorf("%v, %s", err, again.Encode())
	}
}

func TestALogAtItsLastNumberTellsWhatToDo(t *testing.T) {
	l, err := Decode(fmt.Sprintf(`{"seq":%d}`, uint64(maxSequence)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(Record{ID: "1", Kind: Freeze, Upstream: "east", Replica: "a"}); err == nil || !strings.Contains(err.Error(), "while no replica runs") {
		t.Error(err)
	}
}
