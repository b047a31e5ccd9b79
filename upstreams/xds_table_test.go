package upstreams

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/adsclient"
	"meshrelay/internal/fakexds"
)

// TestAnEmptyElementDeletesNothing_C7: an element of which nothing is left, or that is
// something else altogether, may be any of those that are missing.
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

// TestAnIstiodOfAnotherVersionTakesOverWithoutALoss_C1: after a rollback the newest
// spelling is answered with nothing, before an older one brings what it had.
func TestAnIstiodOfAnotherVersionTakesOverWithoutALoss_C1(t *testing.T) {
	for name, before := range map[string]func(*xdsScript){
		"rollback of istiod": func(s *xdsScript) {
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b")))
		},
		"from a relay to an istiod": func(s *xdsScript) {
			s.open(adsclient.Delta, true)
			s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newXDSScript(t)
			before(s)
			s.holds("shop/a=a", "shop/b=b")
			s.open(adsclient.SotW, false)
			s.ok(s.sotw(xdsEntryURL))
			s.holds("shop/a=a", "shop/b=b")
			s.ok(s.sotw(xdsEntryBeta))
			s.holds("shop/a=a", "shop/b=b")
			s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/a", "a"), xdsEntry("shop/c", "c")))
			s.holds("shop/a=a", "shop/c=c")
			// From here on a deletion is one at once.
			s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/c", "c")))
			s.holds("shop/c=c")
		})
	}
}

// TestADeletionThatWaitsOutlivesTheStream_C1: it is settled by a later one.
func TestADeletionThatWaitsOutlivesTheStream_C1(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b")))
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/b", "b")))
	s.holds("shop/a=a", "shop/b=b")
	s.open(adsclient.SotW, false)
	for _, url := range []string{xdsEntryURL, xdsEntryBeta, xdsEntryAlpha} {
		s.holds("shop/a=a", "shop/b=b")
		if url == xdsEntryURL {
			s.ok(s.sotw(url, xdsEntry("shop/b", "b")))
		} else {
			s.ok(s.sotw(url))
		}
	}
	s.holds("shop/b=b")
}

// TestResumeNeverClaimsAVersionThatIsNotHeld_C14: what came without a version, or in a
// complete answer, replaces the version that an earlier delta stream gave.
func TestResumeNeverClaimsAVersionThatIsNotHeld_C14(t *testing.T) {
	s := newXDSScript(t)
	s.open(adsclient.Delta, true)
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "one").WithVersion("1"), xdsEntry("shop/b", "b").WithVersion("1")))
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "two"), xdsEntry("shop/b", "b")))
	if got := s.x.ResumeVersions(xdsEntryURL)["shop/a"]; got != "" {
		t.Errorf("resumes with the version %q of content that was replaced", got)
	}
}

// TestEveryRefusalCounts_C7: the list is bounded, the count is not.
func TestEveryRefusalCounts_C7(t *testing.T) {
	s := newXDSScript(t)
	var bad []fakexds.Resource
	for i := range 3 * maxRefused {
		bad = append(bad, corrupt(fmt.Sprintf("shop/%s-%d", strings.Repeat("n", 200), i)))
	}
	if err := s.sotw(xdsEntryURL, bad...); err == nil {
		t.Fatal("no error")
	}
	if st := s.x.Status(); len(st.Refused) != maxRefused || st.RefusedTotal != len(bad) {
		t.Errorf("%d are listed of %d, want %d of %d", len(st.Refused), st.RefusedTotal, maxRefused, len(bad))
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

// TestOnlyWhatIsRemovedIsSaidToBe_C8: what moves to another spelling is not gone, and
// what is gone is said once, whichever answer settles it.
func TestOnlyWhatIsRemovedIsSaidToBe_C8(t *testing.T) {
	var many []fakexds.Resource
	for i := range 20 {
		many = append(many, xdsEntry(fmt.Sprintf("shop/%d", i), "x"))
	}
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, many...))
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL))
	s.ok(s.sotw(xdsEntryBeta))
	s.ok(s.sotw(xdsEntryAlpha, many...))
	if n := s.warns.n.Load(); n != 0 {
		t.Errorf("%d warnings about resources that moved to another version", n)
	}
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryAlpha))
	s.ok(s.sotw(xdsEntryBeta))
	if n := s.warns.n.Load(); n != 0 {
		t.Errorf("%d warnings before anything is removed", n)
	}
	s.ok(s.sotw(xdsEntryURL))
	s.holds()
	if n := s.warns.n.Load(); n != 1 {
		t.Errorf("%d warnings about a kind of which nothing is left", n)
	}
}
