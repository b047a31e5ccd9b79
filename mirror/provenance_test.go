package mirror

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcp "istio.io/api/mcp/v1alpha1"
)

func TestProvenanceIsReadFromTheAnnotation(t *testing.T) {
	for in, want := range map[string]Provenance{
		"":                                 {},
		"east via hub":                     {Source: "east", Cluster: "east", Path: []string{"hub"}},
		"east@42 via hub,edge":             {Source: "east", Cluster: "east", SourceVersion: "42", Path: []string{"hub", "edge"}},
		"east(c-1)@2024-05-01 10:00 via h": {Source: "east", Cluster: "c-1", SourceVersion: "2024-05-01 10:00", Path: []string{"h"}},
		"east@a via b via hub":             {Source: "east", Cluster: "east", SourceVersion: "a via b", Path: []string{"hub"}},
		"anything else":                    {Source: "anything else", Cluster: "anything else"},
	} {
		if d := cmp.Diff(want, ParseProvenance(in)); d != "" {
			t.Errorf("%q: -want +got:\n%s", in, d)
		}
	}
}

func TestStampsExtendTheProvenance(t *testing.T) {
	hub := Stamp{Source: "east", Cluster: "c-1", Relay: "hub"}
	same := Stamp{Source: "east", Cluster: "east", Relay: "hub"}
	relay := hub
	relay.Believe = true
	for _, tc := range []struct {
		name, had string
		stamp     Stamp
		want      string
		cluster   string
	}{
		{"the first relay", "", hub, "east(c-1)@v1 via hub", "c-1"},
		{"a cluster called like its source", "", same, "east@v1 via hub", "east"},
		{"a further relay", "far(c-9)@7 via a,b", relay, "far(c-9)@7 via a,b,hub", "c-9"},
		{"what is no relay's is not believed", "far(c-9)@7 via a,b", hub, "east(c-1)@v1 via hub", "c-1"},
		{"from an export", "far@7 via a,b", Stamp{Source: "east", Relay: "hub", Believe: true, Begin: true}, "far@7 via hub", "far"},
		{"no annotation", "", Stamp{Source: "east", Cluster: "c-1"}, "", "c-1"},
		{"none of ours", "far(c-9)@7 via a", Stamp{Source: "east", Cluster: "c-1", Believe: true}, "far(c-9)@7 via a", "c-9"},
		{"none of ours, and not believed", "far(c-9)@7 via a", Stamp{Source: "east", Cluster: "c-1"}, "", "c-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := entry(t, "east", "a", "a.example").Spec()
			s.SourceVersion, s.Annotations = "v1", map[string]string{"z": "1", "a": "1"}
			if tc.had != "" {
				s.Annotations[ProvenanceAnnotation] = tc.had
			}
			r, err := New(s)
			if err != nil {
				t.Fatal(err)
			}
			stamped := r.Stamped(&tc.stamp)
			if got := stamped.Metadata().Annotations[ProvenanceAnnotation]; got != tc.want || stamped.Cluster() != tc.cluster || stamped.SourceVersion() != "v1" {
				t.Errorf("%q of cluster %s, want %q of %s", got, stamped.Cluster(), tc.want, tc.cluster)
			}
			// Stamped while it is decoded, it comes to the same.
			decoded, way, err := DecodeStamped(r.Kind(), r.Any(), "east", &tc.stamp)
			if err != nil {
				t.Fatal(err)
			}
			if want := ParseProvenance(tc.had).Path; strings.Join(way.Path, ",") != strings.Join(want, ",") {
				t.Errorf("it has passed %v, want %v", way.Path, want)
			}
			// Its own version is that of the encoding it was decoded from.
			if got := decoded.Metadata().Annotations[ProvenanceAnnotation]; strings.Replace(got, r.Version(), "v1", 1) != tc.want || decoded.Cluster() != tc.cluster {
				t.Errorf("decoded: %q of cluster %s", got, decoded.Cluster())
			}
		})
	}
}

// TestPathIsNoContentButOriginIs_C10_S10
func TestPathIsNoContentButOriginIs_C10_S10(t *testing.T) {
	with := func(from string) *Resource {
		s := entry(t, "near", "a", "a.example").Spec()
		s.Annotations = map[string]string{ProvenanceAnnotation: from}
		r, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	base := with("east@1 via hub")
	for _, same := range []string{"east@2 via hub", "east@1 via hub,edge", "east via other-replica"} {
		if !with(same).Equal(base) {
			t.Errorf("%q is another content", same)
		}
	}
	for _, other := range []string{"west@1 via hub", "east(c)@1 via hub", ""} {
		if with(other).Equal(base) {
			t.Errorf("%q is the same content", other)
		}
	}
}

func TestAnAnnotationThatNoRelayWroteIsNoProvenance(t *testing.T) {
	kind := serviceEntries
	for _, forged := range []string{"prod", "prod(other)", " via relay", "via relay", "prod via ", "@7 via relay"} {
		data := received(t, func(m *mcp.Resource) { m.Metadata.Annotations = map[string]string{ProvenanceAnnotation: forged} })
		got, _, err := DecodeStamped(kind, data, "east", &Stamp{Source: "east", Cluster: "c-east", Relay: "r1", Believe: true})
		if err != nil {
			t.Fatal(err)
		}
		if p := got.Provenance(); got.Cluster() != "c-east" || p.Source != "east" || !slices.Equal(p.Path, []string{"r1"}) {
			t.Errorf("%q: cluster %q, provenance %+v", forged, got.Cluster(), p)
		}
	}
}

func TestProvenanceIsBounded(t *testing.T) {
	long := "far via " + strings.Repeat("r", MaxProvenance)
	data := received(t, func(m *mcp.Resource) { m.Metadata.Annotations = map[string]string{ProvenanceAnnotation: long} })
	of := Stamp{Source: "east", Cluster: "c-east", Relay: "r1"}
	got, way, err := DecodeStamped(serviceEntries, data, "east", &of)
	if err != nil || way.Path != nil || got.Cluster() != "c-east" || !slices.Equal(got.Provenance().Path, []string{"r1"}) {
		t.Errorf("of an istiod: %v %v %v", got, way, err)
	}
	of.Believe = true
	if _, _, err := DecodeStamped(serviceEntries, data, "east", &of); err == nil || !strings.Contains(err.Error(), ProvenanceAnnotation) {
		t.Errorf("of a relay: %v", err)
	}
	data = received(t, func(m *mcp.Resource) { m.Metadata.Version = strings.Repeat("9", 10_000) })
	got, _, err = DecodeStamped(serviceEntries, data, "east", &of)
	if err != nil || got.Metadata().Annotations[ProvenanceAnnotation] != "east(c-east) via r1" {
		t.Errorf("a long version: %v", err)
	}
}
