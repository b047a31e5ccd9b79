package upstreams_test

import (
	"log/slog"
	"strings"
	"testing"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
)

// TestSourceVersionAndPathAreNoContent_C5_C10: an istiod that is restarted with other
// versions changes nothing.
func TestSourceVersionAndPathAreNoContent_C5_C10(t *testing.T) {
	cfg, node := xdsConfig("127.0.0.1:1")
	s := &xdsScript{t: t, warns: &warnings{}}
	s.attach(newXDS(cfg, node, config.Provenance{Relay: "hub"}, slog.New(slog.DiscardHandler)))
	s.open(adsclient.SotW, false)
	versioned := func(version string) fakexds.Resource {
		return fakexds.MCP("shop/a", &networking.ServiceEntry{Hosts: []string{"a"}}, func(m *mcp.Resource) { m.Metadata.Version = version })
	}
	s.ok(s.sotw(xdsEntryURL, versioned("1")))
	key := mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: "a"}
	before := s.store.Get(key)
	s.ok(s.sotw(xdsEntryURL, versioned("2")))
	after := s.store.Get(key)
	if !before.Equal(after) || after.SourceVersion() != "2" {
		t.Errorf("version %s became %s, the source's %s", before.Version(), after.Version(), after.SourceVersion())
	}
	if before.Provenance().SourceVersion != "1" || before.Provenance().Source != "east" {
		t.Errorf("%+v", before.Provenance())
	}
}

func TestRenamedResourcesComeAndGoByTheirNamesInTheSource(t *testing.T) {
	s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) {
		u.Rewrite = config.Rewrite{NamespacePrefix: "east-", NamePrefix: "p-", Hosts: map[string]string{"cluster.local": "east.example"}}
	})
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a.shop.svc.cluster.local"), xdsEntry("shop/b", "b.example")))
	s.holds("east-shop/p-a=a.east-shop.svc.east.example", "east-shop/p-b=b.example")
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2.shop.svc.cluster.local"), xdsEntry("shop/b", "b.example")))
	s.holds("east-shop/p-a=a2.east-shop.svc.east.example", "east-shop/p-b=b.example")
	held := mirror.Key{Kind: xdsEntryKind, Namespace: "east-shop", Name: "p-a"}
	for _, key := range []mirror.Key{held, {Kind: xdsEntryKind, Namespace: "shop", Name: "a"}} {
		traces := s.x.Trace(key)
		if len(traces) != 1 || traces[0].Key != held || traces[0].Original.Name != "a" || traces[0].From == nil || traces[0].Resource == nil || traces[0].Since.IsZero() {
			t.Errorf("%s: %+v", key, traces)
		}
	}
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/b", "b.example")))
	s.holds("east-shop/p-b=b.example")
}

// TestWhatIsLeftOutTakesNothingWithIt: two names of the source may have one place here, of
// which one is left out.
func TestWhatIsLeftOutTakesNothingWithIt(t *testing.T) {
	for name, u := range map[string]config.Upstream{
		"collision":  {Rewrite: config.Rewrite{Namespaces: map[string]string{"shop": "store"}}},
		"not import": {Import: config.Import{Namespaces: config.Globs{Exclude: []string{"store"}}}, Rewrite: config.Rewrite{Namespaces: map[string]string{"shop": "store"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newXDSScript(t, func(c *config.Upstream, _ *config.Node) { c.Rewrite, c.Import = u.Rewrite, u.Import })
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("store/a", "other")))
			s.holds("store/a=a")
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a")))
			s.holds("store/a=a")
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("store/a", "other")))
			s.open(adsclient.SotW, true) // a relay, which is asked for one version only
			s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a")))
			s.holds("store/a=a")
		})
	}
}

// TestWhatCanNotBeRewrittenIsRefusedByName_C7: and what was good stays.
func TestWhatCanNotBeRewrittenIsRefusedByName_C7(t *testing.T) {
	s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) {
		u.Rewrite = config.Rewrite{NamespacePrefix: strings.Repeat("p", 40) + "-"}
	})
	long := strings.Repeat("n", 40)
	err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry(long+"/b", "b"))
	if err == nil || !strings.Contains(err.Error(), long+"/b") || strings.Contains(err.Error(), "shop/a") {
		t.Errorf("error %v", err)
	}
	if st := s.x.Status(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Reason, "rewrite") {
		t.Errorf("%+v", st.Refused)
	}
	if n := s.store.Counts()[xdsEntryKind]; n != 1 {
		t.Errorf("%d resources are held", n)
	}
}
