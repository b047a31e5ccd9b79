package upstreams

import (
	"fmt"
	"strings"
	"testing"

	"meshrelay/config"
)

func TestLimitsRefuseWhatIsNewAndKeepWhatIsHeld(t *testing.T) {
	limited := func(l config.Limits) func(*config.Upstream, *config.Node) {
		return func(u *config.Upstream, _ *config.Node) { u.Limits = l }
	}
	t.Run("resources", func(t *testing.T) {
		s := newXDSScript(t, limited(config.Limits{MaxResources: 3}))
		err := s.sotw(xdsEntryURL, entries("e", 5)...)
		if err == nil || !strings.Contains(err.Error(), "limits.maxResources") {
			t.Fatalf("err = %v", err)
		}
		s.holds("ns/e0=e0.example", "ns/e1=e1.example", "ns/e2=e2.example")
		s.demand("two are over the limit", s.x.Status().OverLimit == 2)
		s.ok(s.sotw(xdsEntryURL, entries("e", 3)...))
		s.demand("none is", s.x.Status().OverLimit == 0)
		s.ok(s.sotw(xdsEntryURL, entries("f", 1)...))
		s.lapse()
		s.ok(s.sotw(xdsEntryURL, entries("f", 3)...))
		s.holds("ns/f0=f0.example", "ns/f1=f1.example", "ns/f2=f2.example")
	})
	t.Run("with what is held", func(t *testing.T) {
		s := newXDSScript(t, limited(config.Limits{MaxResources: 20}), guarded(30, 10, 0))
		s.ok(s.sotw(xdsEntryURL, entries("a", 20)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.demand("20 are held", s.x.Status().Held.Removals == 20)
		s.ok(s.sotw(xdsEntryURL, entries("b", 20)...))
		s.ok(s.sotw(xdsEntryURL, entries("b", 5)...))
		s.demand("35 are held", s.x.Status().Held.Removals == 35 && s.count() == 40)
		err := s.sotw(xdsEntryURL, append(entries("b", 6), entries("c", 10)...)...)
		if err == nil || !strings.Contains(err.Error(), "relay held east") {
			t.Fatalf("err = %v", err)
		}
		s.demand("b5 has returned, and there is no room for new ones", s.x.Status().Held.Removals == 34 && s.count() == 40 && s.x.Status().OverLimit == 10)
		s.ok(s.x.gate.releaseAll())
		s.ok(s.sotw(xdsEntryURL, append(entries("b", 6), entries("c", 10)...)...))
		s.demand("now there is", s.x.Status().Held == nil && s.count() == 16 && s.x.Status().OverLimit == 0)
		s.demand("nothing is counted any more", s.x.gate.leavingBytes == 0)
	})
	t.Run("held bytes", func(t *testing.T) {
		s := newXDSScript(t, limited(config.Limits{MaxBytes: 20_000}), guarded(30, 10, 0))
		var err error
		for i := 0; i < 100 && err == nil; i++ {
			err = s.sotw(xdsEntryURL, entries(fmt.Sprintf("n%d-", i), 20)...)
			s.lapse()
		}
		if err == nil || s.x.gate.leavingBytes > 40_000 {
			t.Errorf("err = %v; %d bytes are held", err, s.x.gate.leavingBytes)
		}
	})
	t.Run("bytes of one", func(t *testing.T) {
		s := newXDSScript(t, limited(config.Limits{MaxResourceBytes: 1000}))
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
		err := s.sotw(xdsEntryURL, xdsEntry("ns/a", strings.Repeat("a", 2000)), xdsEntry("ns/b", "b.example"))
		if err == nil || !strings.Contains(err.Error(), "limits.maxResourceBytes") {
			t.Fatalf("err = %v", err)
		}
		s.holds("ns/a=a.example", "ns/b=b.example")
	})
	t.Run("bytes of all", func(t *testing.T) {
		s := newXDSScript(t, limited(config.Limits{MaxBytes: 2000}))
		err := s.sotw(xdsEntryURL, entries("e", 100)...)
		if err == nil || !strings.Contains(err.Error(), "limits.maxBytes") {
			t.Fatalf("err = %v", err)
		}
		if n := s.count(); n == 0 || n > 20 {
			t.Errorf("%d resources", n)
		}
	})
	t.Run("names", func(t *testing.T) {
		s := newXDSScript(t)
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
		if err := s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/"+strings.Repeat("x", 64<<10), "x.example")); err == nil || len(err.Error()) > 2000 {
			t.Fatalf("err = %v", err)
		}
		s.holds("ns/a=a.example")
	})
}

// TestWhatIsAboveALowerLimitKeepsItsLastGoodContent: what was taken before the limit was
// lowered stays, what is new of it is refused by name.
func TestWhatIsAboveALowerLimitKeepsItsLastGoodContent(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, entries("e", 3)...))
	s.x.setLimits(config.Upstream{Limits: config.Limits{MaxBytes: 100}})
	s.ok(s.sotw(xdsEntryURL, entries("e", 3)...))
	s.demand("what it has is not refused", s.x.Status().OverLimit == 0)
	err := s.sotw(xdsEntryURL, xdsEntry("ns/e0", strings.Repeat("longer-", 100)+".example"), entries("e", 2)[1], xdsEntry("ns/new", "new.example"))
	for _, want := range []string{"ns/e0", "ns/new", "limits.maxBytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not name %s: %v", want, err)
		}
	}
	s.lapse()
	s.holds("ns/e0=e0.example", "ns/e1=e1.example")
}
