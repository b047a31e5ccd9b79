package upstreams

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

// annotated is an entry that tells where it comes from.
func annotated(name, from string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{name}}, func(m *mcp.Resource) {
		m.Metadata.Annotations = map[string]string{mirror.ProvenanceAnnotation: from}
	})
}

func hubScript(t *testing.T) *xdsScript {
	s := newXDSScript(t)
	s.x.table.importer = imports(t, config.Upstream{}, config.Provenance{Annotations: true, Relay: "hub", MaxHops: 3})
	return s
}

// way tells of a key what is served of its provenance.
func (s *xdsScript) way(name string) string {
	s.t.Helper()
	r := s.store.Get(mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: name})
	if r == nil {
		return "nothing"
	}
	p := r.Provenance()
	return fmt.Sprintf("%s %s %s", r.Cluster(), p.Source, strings.Join(p.Path, ","))
}

func (s *xdsScript) wantWay(name, want string) {
	s.t.Helper()
	if got := s.way(name); got != want {
		s.t.Errorf("%s: %s, want %s", name, got, want)
	}
}

func TestProvenanceIsBelievedFromRelaysOnly(t *testing.T) {
	s := hubScript(t)
	forged := []fakexds.Resource{annotated("shop/forged", "west@1 via x"), annotated("shop/far", "west@1 via a,b,c,d,e")}
	s.ok(s.sotw(xdsEntryURL, forged...))
	s.wantWay("forged", "east-1 east hub")
	s.wantWay("far", "east-1 east hub") // the hops are not believed either

	// The same bytes from a relay are another content.
	s.open(adsclient.SotW, true)
	s.ok(s.sotw(xdsEntryURL, forged...))
	s.wantWay("forged", "west west x,hub")
	s.wantWay("far", "nothing")

	s.open(adsclient.SotW, false)
	for _, url := range subscriptions(false, nil) {
		if url == xdsEntryURL {
			s.ok(s.sotw(url, forged...))
		} else {
			s.ok(s.sotw(url))
		}
	}
	s.wantWay("forged", "east-1 east hub")
	s.wantWay("far", "east-1 east hub")
}

func TestProvenanceThatIsNotBelievedIsNotServed(t *testing.T) {
	s := newXDSScript(t)
	s.x.table.importer = imports(t, config.Upstream{}, config.Provenance{Relay: "hub", MaxHops: 3}) // without annotations
	s.ok(s.sotw(xdsEntryURL, annotated("shop/forged", "west@1 via x")))
	s.wantWay("forged", "east-1  ")
}

// An istiod tells a relay again what it has from it.
func TestLoopsAreNoticedBehindIstiodsToo(t *testing.T) {
	for _, relay := range []bool{false, true} {
		s := hubScript(t)
		s.open(adsclient.SotW, relay)
		s.ok(s.sotw(xdsEntryURL, annotated("shop/back", "west@1 via hub"), annotated("shop/round", "west@1 via hub,y"), annotated("shop/own", "")))
		s.holds("shop/own=shop/own")
		left := s.x.LeftOut()
		if len(left) != 2 || slices.ContainsFunc(left, func(l LeftOut) bool { return l.Reason != "loop" }) {
			t.Errorf("relay %v: left out %+v", relay, left)
		}
	}
}

func TestProvenanceInAFileIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	text := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, namespace: shop, annotations: {meshrelay.io/from: west@1 via x}}\nspec: {hosts: [a.example], ports: [{number: 1, name: a}], resolution: NONE}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	u := config.Upstream{Name: "local", ClusterID: "here", File: &config.File{Path: dir}, Guard: config.Guard{Percent: 100}}
	r := runManager(t, nil, u)
	r.awaitServed("shop/a=a.example@local")
	got := r.aggregate.List(xdsEntryKind, "")[0]
	if got.Cluster() != "here" || len(got.Metadata().Annotations) != 0 {
		t.Errorf("cluster %s, %v", got.Cluster(), got.Metadata().Annotations)
	}
}
