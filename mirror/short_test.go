package mirror

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networkingapi "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"
)

// shortOf returns the short form of a resource, decoded, and its encoded Any.
func shortOf(t rapid.TB, r *Resource) (*mcp.Resource, []byte) {
	t.Helper()
	return receivedFrom(t, r.AppendShort(nil))
}

func receivedFrom(t rapid.TB, frame []byte) (*mcp.Resource, []byte) {
	t.Helper()
	resp, m := &discoveryv3.DiscoveryResponse{}, &mcp.Resource{}
	if err := proto.Unmarshal(frame, resp); err != nil || len(resp.Resources) != 1 {
		t.Fatalf("%d resources: %v", len(resp.Resources), err)
	}
	if err := resp.Resources[0].UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	element, err := proto.Marshal(resp.Resources[0])
	if err != nil {
		t.Fatal(err)
	}
	return m, element
}

// TestShortFormDiffersInVersionAndProvenanceOnly_S8_S10: whatever a resource has.
func TestShortFormDiffersInVersionAndProvenanceOnly_S8_S10(t *testing.T) {
	text := rapid.StringN(0, 12, 40)
	maps := rapid.MapOfN(rapid.SampledFrom([]string{"a", "istio.io/rev", "z/é"}), text, 0, 4)
	relays := rapid.SliceOfN(rapid.SampledFrom([]string{"hub", "edge", "a", strings.Repeat("long-", 40)}), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		m := &mcp.Resource{Metadata: &mcp.Metadata{
			Name: rapid.SampledFrom([]string{"shop/db", "é/x"}).Draw(t, "name"), Version: text.Draw(t, "version"),
			Labels: maps.Draw(t, "labels"), Annotations: maps.Draw(t, "annotations"),
		}}
		if rapid.Bool().Draw(t, "created") {
			m.Metadata.CreateTime = &timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: rapid.Int32Range(0, 9).Draw(t, "nanos")}
		}
		if rapid.Bool().Draw(t, "unknown") {
			m.Metadata.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01}) // field 99, varint 1
		}
		entry := &networkingapi.ServiceEntry{Hosts: []string{strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "host"))}}
		packed, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		m.Body = anyOf(entry, packed)
		path := relays.Draw(t, "path")
		if len(path) > 1 {
			if m.Metadata.Annotations == nil {
				m.Metadata.Annotations = map[string]string{}
			}
			m.Metadata.Annotations[ProvenanceAnnotation] = "far via " + strings.Join(path[:len(path)-1], ",")
		}
		value, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		element, err := proto.Marshal(anyOf(m, value))
		if err != nil {
			t.Fatal(err)
		}
		stamp := &Stamp{Source: "east", Cluster: "c-1", Relay: path[len(path)-1], Believe: true}
		r, _, err := DecodeStamped(serviceEntries, element, "east", stamp)
		if err != nil {
			t.Fatal(err)
		}

		short, element := shortOf(t, r)
		version := short.Metadata.Version
		want, _ := receivedFrom(t, r.Frame())
		if sum, marks, _ := strings.Cut(version, "."); sum != r.Version()[:12] || len(marks) != 8*len(path) {
			t.Fatalf("the version is %q, of %q and %d relays", version, r.Version(), len(path))
		}
		want.Metadata.Version = version
		delete(want.Metadata.Annotations, ProvenanceAnnotation)
		if !proto.Equal(short, want) {
			t.Fatalf("the short form is\n%v\nwant\n%v", short, want)
		}
		_, way, err := DecodeStamped(serviceEntries, element, "west", &Stamp{Source: "west", Cluster: "west", Relay: "hub"})
		if err != nil || len(way.Path) > 0 {
			t.Fatalf("the way is %v: %v", way, err)
		}
		for _, relay := range path {
			if !way.Passes(relay) {
				t.Fatalf("%q has not passed %s", version, relay)
			}
		}
		if way.Passes("another") || way.Passes("") {
			t.Fatalf("%q has passed others than %v", version, path)
		}
	})
}

// TestResourcesWithoutProvenanceHaveNoShortForm: nothing of theirs is to be left out.
func TestResourcesWithoutProvenanceHaveNoShortForm(t *testing.T) {
	plain := entry(t, "east", "a", "a.example")
	s := plain.Spec()
	s.Annotations = map[string]string{ProvenanceAnnotation: "somebody wrote this", "z": "1"}
	forged, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*Resource{"none": plain, "no relay's": forged, "bare": buildMeshConfig("1", []byte{0x0a, 1, 'x'}, from{source: "east"})} {
		if got := r.AppendShort(nil); string(got) != string(r.Frame()) {
			t.Errorf("%s: the short form is %q", name, got)
		}
	}
}

// TestVersionsOfOthersTellNoWay: of Kubernetes, of files, and what is nearly one.
func TestVersionsOfOthersTellNoWay(t *testing.T) {
	for _, v := range []string{"", "48213", "2026-11-22 11:40:50.123456789 +0000 UTC m=+0.5", "AAAAAAAAAAAA.", "AAAAAAAAAAAA.Dt6v4Ro", "AAAAAAAAAAAA-Dt6v4Ro4", "AAAAAAAAAAA.Dt6v4Ro4AA", "AAAAAAAAAAAA.JytX5tfA"} {
		data := received(t, func(m *mcp.Resource) { m.Metadata.Version = v })
		_, way, err := DecodeStamped(serviceEntries, data, "east", &Stamp{Source: "east", Cluster: "east", Relay: "hub"})
		if err != nil || way.Passes("hub") {
			t.Errorf("%q: %v %v", v, way, err)
		}
	}
	// Relays of other releases know the mark.
	data := received(t, func(m *mcp.Resource) { m.Metadata.Version = "AAAAAAAAAAAA.JytX5tfADt6v4Ro4" })
	if _, way, err := DecodeStamped(serviceEntries, data, "east", &Stamp{}); err != nil || !way.Passes("hub") || !way.Passes("y") {
		t.Errorf("%v %v", way, err)
	}
}

// TestShortVersionChangesWithContentAndOrigin_S10: and not with the source's version.
func TestShortVersionChangesWithContentAndOrigin_S10(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*Spec){
		"": func(*Spec) {}, "label": func(s *Spec) { s.Labels = map[string]string{"a": "2"} }, "annotation": func(s *Spec) { s.Annotations = map[string]string{"b": "1"} },
		"source": func(s *Spec) { s.Source = "west" }, "body": func(s *Spec) { s.Body = pack(t, &networkingapi.ServiceEntry{Hosts: []string{"b.example"}}) },
	} {
		for _, version := range []string{"1", "2"} {
			s := entry(t, "east", "a", "a.example").Spec()
			s.SourceVersion = version
			change(&s)
			r, err := New(s)
			if err != nil {
				t.Fatal(err)
			}
			short, _ := shortOf(t, r.Stamped(&Stamp{Source: s.Source, Cluster: "c", Relay: "hub"}))
			if other, ok := seen[short.Metadata.Version]; ok && other != name {
				t.Errorf("%q and %q have one version", name, other)
			}
			seen[short.Metadata.Version] = name
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d versions: %v", len(seen), seen)
	}
}

// TestShortFormCostsFewBytes: beside what the source gave, of a small resource, as an istiod that reads
// Kubernetes gives it and as one that has next to no version.
func TestShortFormCostsFewBytes(t *testing.T) {
	for _, tc := range []struct {
		version string
		relays  []string
		most    float64
	}{
		{"48213", []string{"hub"}, 1.06},
		{"1", []string{"relay-bench-0123456789"}, 1.07},
		{"48213", []string{"edge", "hub"}, 1.09},
		{"48213", []string{"a", "b", "edge", "hub"}, 1.15},
	} {
		data := received(t, func(m *mcp.Resource) {
			m.Metadata.Name, m.Metadata.Version = "team-07/service-004711", tc.version
			m.Metadata.CreateTime = &timestamppb.Timestamp{Seconds: 1_700_000_000}
			m.Metadata.Labels, m.Metadata.Annotations = map[string]string{"app": "service-004711"}, nil
			m.Body = pack(t, &networkingapi.ServiceEntry{
				Hosts: []string{"service-004711.team-07.example.com"}, Location: networkingapi.ServiceEntry_MESH_INTERNAL, Resolution: networkingapi.ServiceEntry_STATIC,
				Ports:     []*networkingapi.ServicePort{{Number: 443, Name: "https", Protocol: "HTTPS"}},
				Endpoints: []*networkingapi.WorkloadEntry{{Address: "10.100.17.42", Locality: "region-1/zone-a", ServiceAccount: "default"}, {Address: "10.200.7.3"}},
			})
		})
		given := 1 + protowire.SizeBytes(len(data)) // as a field of a response
		var r *Resource
		var err error
		for _, relay := range tc.relays {
			if r, _, err = DecodeStamped(serviceEntries, data, "east", &Stamp{Source: "east", Cluster: "east", Relay: relay, Believe: true}); err != nil {
				t.Fatal(err)
			}
			data = r.Any()
		}
		short := len(r.AppendShort(nil))
		if ratio := float64(short) / float64(given); ratio > tc.most {
			t.Errorf("%d relays: %d bytes of %d are %.3f, want at most %.2f", len(tc.relays), short, given, ratio, tc.most)
		}
		if short >= len(r.Frame()) {
			t.Errorf("the short form has %d bytes, the other %d", short, len(r.Frame()))
		}
	}
}

func TestShortFormIsAppendedWithoutAllocation(t *testing.T) {
	r := entry(t, "east", "a", "a.example").Stamped(&Stamp{Source: "east", Cluster: "c", Relay: "hub"})
	b := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { b = r.AppendShort(b[:0]) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppendShort(b *testing.B) {
	r := entry(b, "east", "a", "a.example").Stamped(&Stamp{Source: "east", Cluster: "c", Relay: "hub"})
	out := make([]byte, 0, 1024)
	for b.Loop() {
		out = r.AppendShort(out[:0])
	}
	b.SetBytes(int64(len(out)))
}
