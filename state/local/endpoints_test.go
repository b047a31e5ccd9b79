package local

import (
	"fmt"
	"testing"
	"time"

	"meshrelay/state"
)

// TestEndpointsMakeNoRevision: what is kept has them all the same, after a restart and after the log is rewritten, and
// the log does not grow with their changes.
func TestEndpointsMakeNoRevision(t *testing.T) {
	t.Parallel() // it waits for the disk
	dir := t.TempDir()
	s := New(dir, nil)
	if _, err := s.Open(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	apply := func(endpoints bool, host string, names ...string) (revisions int, wrote bool) {
		t.Helper()
		b := state.Batch{Now: now, History: state.History{Revisions: 10, MaxBytes: 1 << 30}}
		for _, name := range names {
			r := record(name, host)
			b.Changes = append(b.Changes, state.Change{Key: r.Resource.Key(), Record: r, Endpoints: endpoints})
		}
		before := s.Info().Size
		if _, err := s.Apply("east", b); err != nil {
			t.Fatal(err)
		}
		return len(s.logs["east"].rows), s.Info().Size != before
	}
	apply(false, "first", "a", "b")
	if n, wrote := apply(true, "second", "a"); n != 1 || !wrote {
		t.Errorf("a change of endpoints: %d revisions, wrote %t", n, wrote)
	}
	if n, _ := apply(true, "second", "c"); n != 2 {
		t.Errorf("a key that the disk has not: %d revisions", n)
	}
	apply(false, "third", "b")
	long := func(i int) string { return fmt.Sprintf("%010000d", i) }
	for i := range 400 {
		apply(true, long(i), "a")
	}
	apply(false, "fourth", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = New(dir, nil)
	defer s.Close()
	if _, err := s.Open(); err != nil {
		t.Fatal(err)
	}
	if size := s.Info().Size; size > 4<<20 {
		t.Errorf("the log has %d bytes", size)
	}
	revisions, err := s.History("east")
	if err != nil || len(revisions) != 4 {
		t.Fatalf("%v, %v", revisions, err)
	}
	for i, want := range []map[string]string{
		{"a": "first", "b": "first"}, {"a": "second", "b": "first", "c": "second"}, {"a": "second", "b": "third", "c": "second"},
		{"a": long(399), "b": "fourth", "c": "second"},
	} {
		r := revisions[len(revisions)-1-i]
		records, err := s.At("east", r.ID)
		if err != nil || len(records) != len(want) || r.Resources != len(want) {
			t.Fatalf("revision %d has %d records, and names %d: %v", r.ID, len(records), r.Resources, err)
		}
		for _, one := range records {
			name := one.Resource.Key().Name
			if expected := record(name, want[name]); !one.Resource.Equal(expected.Resource) {
				t.Errorf("revision %d: %s is not as it was", r.ID, name)
			}
		}
	}
}
