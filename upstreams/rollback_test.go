package upstreams_test

import (
	"fmt"
	"testing"
)

// Nothing can be written, and names come and go for ever.
func TestChurnWhileTheDiskIsFullIsBounded(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("ns/stays", "stays.example")))
	s.x.u.TakeChanges()
	for i := range 20_000/1000 + 2 {
		var added []string
		pods := entries(fmt.Sprintf("pod-%d-", i), 1000)
		for _, r := range pods {
			added = append(added, r.Name)
		}
		s.ok(s.delta(xdsEntryURL, nil, pods...))
		changes, _ := s.x.u.TakeChanges()
		s.x.u.GiveBack(changes)
		s.ok(s.delta(xdsEntryURL, added))
	}
	s.demand("one is left", s.count() == 1)
	for range 2 { // it is not lost when that can not be written either
		changes, meta := s.x.u.TakeChanges()
		if len(changes) > 20_000+2 {
			t.Errorf("%d changes wait to be written", len(changes))
		}
		kept := 0
		for _, c := range changes {
			if c.Record != nil {
				kept++
			}
		}
		if !meta.Whole || kept != 1 {
			t.Errorf("whole %v, with %d resources", meta.Whole, kept)
		}
		s.x.u.GiveBack(changes)
	}
	s.x.u.TakeChanges()
	if _, meta := s.x.u.TakeChanges(); meta.Whole {
		t.Error("it is whole once more")
	}
}
