package upstreams

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

// imports returns an importer with the rules of u, for a source called east.
func imports(t *testing.T, u config.Upstream, p config.Provenance) *importer {
	t.Helper()
	u.Name, u.ClusterID = "east", "east-1"
	if u.File == nil && u.XDS == nil {
		u.XDS = &config.XDS{}
	}
	if u.Services.Mode == "" {
		u.Services.Mode = config.ServicesOmit
	}
	if p == (config.Provenance{}) {
		p = config.Provenance{Annotations: true, Relay: "hub", MaxHops: 3}
	}
	im, err := newImporter(u, p)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// given is a ServiceEntry as the source has it.
func given(t *testing.T, name string, annotations map[string]string) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"db.shop.svc.cluster.local"}})
	if err != nil {
		t.Fatal(err)
	}
	namespace, name, _ := strings.Cut(name, "/")
	r, err := mirror.New(mirror.Spec{
		Key:    mirror.Key{Kind: xdsEntryKind, Namespace: namespace, Name: name},
		Source: "east", SourceVersion: "42", Annotations: annotations, Body: body,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEachRuleLeavesOutForItsReason(t *testing.T) {
	path := func(relays string) map[string]string {
		return map[string]string{mirror.ProvenanceAnnotation: "east via " + relays}
	}
	for _, tc := range []struct {
		name   string
		u      config.Upstream
		r      *mirror.Resource
		reason string
		detail string
	}{
		{"no rules", config.Upstream{}, given(t, "shop/db", nil), "", ""},
		{"it has been here", config.Upstream{}, given(t, "shop/db", path("a,hub,b")), "loop", "(hub)"},
		{"it has been elsewhere", config.Upstream{}, given(t, "shop/db", path("a,b")), "", ""},
		{"it has been far", config.Upstream{}, given(t, "shop/db", path("a,b,c")), "hops", "3 relays"},
		{"a file may hold what was here", config.Upstream{File: &config.File{Path: "x"}}, given(t, "shop/db", path("a,hub,b")), "", ""},
		{"a file has no services", config.Upstream{File: &config.File{Path: "x"}}, given(t, "shop/synthetic-db", nil), "", ""},
		{"service", config.Upstream{}, given(t, "shop/synthetic-db", nil), "generated", "services.mode"},
		{"kind", config.Upstream{Import: config.Import{Kinds: []string{"vs"}}}, given(t, "shop/db", nil), "kind", `"vs"`},
		{"namespace", config.Upstream{Import: config.Import{Namespaces: config.Globs{Exclude: []string{"sh*"}}}}, given(t, "shop/db", nil), "namespace", `"sh*"`},
		{"selector", config.Upstream{Import: config.Import{Selector: "tier"}}, given(t, "shop/db", nil), "selector", "tier"},
		{"expression", config.Upstream{Import: config.Import{Expression: "spec.hosts[0] == 'x'"}}, given(t, "shop/db", nil), "expression", "false"},
		{"expression that fails", config.Upstream{Import: config.Import{Expression: "spec.hosts[7] == 'x'"}}, given(t, "shop/db", nil), "expression-error", "failed"},
		{"rules see what the source has", config.Upstream{
			Import:  config.Import{Namespaces: config.Globs{Include: []string{"shop"}}},
			Rewrite: config.Rewrite{Namespaces: map[string]string{"shop": "store"}}}, given(t, "shop/db", nil), "", ""},
		{"another namespace lands here", config.Upstream{Rewrite: config.Rewrite{Namespaces: map[string]string{"store": "shop"}}}, given(t, "shop/db", nil), "collision", `"store"`},
		{"another one lands where the prefix would put it", config.Upstream{Rewrite: config.Rewrite{NamespacePrefix: "e-", Namespaces: map[string]string{"store": "e-shop"}}}, given(t, "shop/db", nil), "collision", `"store"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reason, detail := imports(t, tc.u, config.Provenance{}).check(tc.r, tc.r.Provenance().Path, true)
			if reason.String() != tc.reason || !strings.Contains(detail, tc.detail) || (detail == "") != (reason == imported) {
				t.Errorf("%q: %q, want %q: …%s…", reason, detail, tc.reason, tc.detail)
			}
		})
	}
}

func TestProvenanceIsThatOfTheFirstRelay(t *testing.T) {
	first := imports(t, config.Upstream{}, config.Provenance{})
	r, reshaped, err := first.reshape(given(t, "shop/db", nil).Stamped(first.stamp), nil)
	if err != nil || reshaped {
		t.Fatalf("reshaped %v, %v", reshaped, err)
	}
	want := mirror.Provenance{Source: "east", Cluster: "east-1", SourceVersion: "42", Path: []string{"hub"}}
	if p := r.Provenance(); p.Source != want.Source || p.Cluster != want.Cluster || p.SourceVersion != want.SourceVersion || !slices.Equal(p.Path, want.Path) || r.Cluster() != "east-1" {
		t.Errorf("%+v of cluster %s", p, r.Cluster())
	}
	second, err := newImporter(config.Upstream{Name: "near", ClusterID: "near", XDS: &config.XDS{}, Services: config.Services{Mode: config.ServicesOmit}}, config.Provenance{Annotations: true, Relay: "far", MaxHops: 3})
	if err != nil {
		t.Fatal(err)
	}
	if r, _, err = second.reshape(r.Stamped(second.relayStamp), nil); err != nil {
		t.Fatal(err)
	}
	want.Path = []string{"hub", "far"}
	if p := r.Provenance(); p.Source != "east" || p.SourceVersion != "42" || !slices.Equal(p.Path, want.Path) || r.Cluster() != "east-1" {
		t.Errorf("behind a second relay: %+v of cluster %s", p, r.Cluster())
	}
}

func TestProvenanceCanBeTurnedOff(t *testing.T) {
	im := imports(t, config.Upstream{}, config.Provenance{Relay: "hub", MaxHops: 3})
	in := given(t, "shop/db", nil)
	r, _, err := im.reshape(in.Stamped(im.stamp), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Metadata().Annotations) != 0 || r.Cluster() != "east-1" || &r.DeltaEntry()[0] != &in.DeltaEntry()[0] {
		t.Errorf("annotations %v of cluster %s", r.Metadata().Annotations, r.Cluster())
	}
}

// TestSourceVersionAndPathAreNoContent_C5_C10: an istiod that is restarted with other
// versions changes nothing.
func TestSourceVersionAndPathAreNoContent_C5_C10(t *testing.T) {
	s := newXDSScript(t)
	s.x.table.importer = imports(t, config.Upstream{}, config.Provenance{})
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
		u.Rewrite = config.Rewrite{NamespacePrefix: "east-", NamePrefix: "p-", Hosts: []config.HostMapping{{From: "cluster.local", To: "east.example"}}}
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
