package upstreams_test

import (
	"strings"
	"testing"
)

func TestTheRefusalOfALongNameIsShort_C7(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	if err := s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/"+strings.Repeat("x", 64<<10), "x.example")); err == nil || len(err.Error()) > 2000 {
		t.Fatalf("err = %v", err)
	}
	s.holds("ns/a=a.example")
}
