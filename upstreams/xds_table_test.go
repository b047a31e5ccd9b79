package upstreams_test

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/adsclient"
	"meshrelay/internal/testing/fakexds"
)

// TestAnEmptyElementDeletesNothing_C7: an element that is empty, or of another type, may be any of
// the missing ones.
func TestAnEmptyElementDeletesNothing_C7(t *testing.T) {
	wrapped, err := anypb.New(&discoveryv3.Resource{Name: "x", Resource: xdsEntry("shop/b", "b2").Any})
	if err != nil {
		t.Fatal(err)
	}
	for name, element := range map[string]*anypb.Any{
		"nothing":       {},
		"no value":      {TypeUrl: "type.googleapis.com/istio.mcp.v1alpha1.Resource"},
		"no name":       xdsEntry("", "x").Any,
		"another type":  wrapped,
		"no type":       {Value: xdsEntry("shop/x", "x").Any.Value},
		"a bare config": meshNamed("x").Any,
	} {
		t.Run(name, func(t *testing.T) {
			s := newXDSScript(t)
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a1"), xdsEntry("shop/b", "b1")))
			if err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2"), fakexds.Resource{Any: element}); err == nil {
				t.Error("it is accepted")
			}
			s.holds("shop/a=a2", "shop/b=b1")
			if st := s.x.Status(); st.RefusedTotal == 0 {
				t.Error("the status does not show it")
			}
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2")))
			s.holds("shop/a=a2")
			if st := s.x.Status(); st.RefusedTotal != 0 {
				t.Errorf("still refused: %+v", st.Refused)
			}
		})
	}
}

// TestEveryRefusalCounts_C7: the list is bounded, the count is not.
func TestEveryRefusalCounts_C7(t *testing.T) {
	s := newXDSScript(t)
	var bad []fakexds.Resource
	for i := range 3 * 100 {
		bad = append(bad, corrupt(fmt.Sprintf("shop/%s-%d", strings.Repeat("n", 200), i)))
	}
	if err := s.sotw(xdsEntryURL, bad...); err == nil {
		t.Fatal("no error")
	}
	if st := s.x.Status(); len(st.Refused) != 100 || st.RefusedTotal != len(bad) {
		t.Errorf("%d are listed of %d, want %d of %d", len(st.Refused), st.RefusedTotal, 100, len(bad))
	}
	// A delta stream takes each back by itself.
	s.open(adsclient.Delta, true)
	s.ok(s.delta(xdsEntryURL, []string{bad[0].Name}, xdsEntry(bad[1].Name, "good")))
	if st := s.x.Status(); st.RefusedTotal != len(bad)-2 {
		t.Errorf("%d are refused, want %d", st.RefusedTotal, len(bad)-2)
	}
}

// TestADeltaElementWithAnotherNameIsShown_C7: the name around it is what it goes by.
func TestADeltaElementWithAnotherNameIsShown_C7(t *testing.T) {
	s := newXDSScript(t)
	s.open(adsclient.Delta, true)
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "a").WithVersion("1")))
	wrong := xdsEntry("shop/b", "b").WithVersion("2")
	wrong.Name = "shop/a"
	if err := s.delta(xdsEntryURL, nil, wrong); err == nil || !strings.Contains(err.Error(), "shop/a") {
		t.Errorf("error %v", err)
	}
	s.holds("shop/a=a")
	if st := s.x.Status(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Resource, "shop/a") {
		t.Errorf("refused %+v", st.Refused)
	}
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "a2").WithVersion("3")))
	if st := s.x.Status(); st.RefusedTotal != 0 {
		t.Errorf("still refused: %+v", st.Refused)
	}
}
