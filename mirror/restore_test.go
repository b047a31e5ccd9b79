package mirror

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networkingapi "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"
)

// checkRestored fails unless got is want in everything that can be seen of a resource.
func checkRestored(t rapid.TB, got, want *Resource) {
	t.Helper()
	if !got.Equal(want) || got.Digest() != want.Digest() || got.Key() != want.Key() {
		t.Fatalf("restored %v %s, was %v %s", got.Key(), got.Version(), want.Key(), want.Version())
	}
	if got.Source() != want.Source() || got.Cluster() != want.Cluster() || got.SourceVersion() != want.SourceVersion() || got.Revision() != want.Revision() {
		t.Fatalf("restored from %q %q %q %q, was %q %q %q %q", got.Source(), got.Cluster(), got.SourceVersion(), got.Revision(),
			want.Source(), want.Cluster(), want.SourceVersion(), want.Revision())
	}
	if !bytes.Equal(got.DeltaEntry(), want.DeltaEntry()) || !bytes.Equal(got.Frame(), want.Frame()) {
		t.Fatalf("the encoding of %v is another one", want.Key())
	}
	p, q := got.Provenance(), want.Provenance()
	if p.Source != q.Source || p.Cluster != q.Cluster || p.SourceVersion != q.SourceVersion || len(p.Path) != len(q.Path) {
		t.Fatalf("provenance %+v, was %+v", p, q)
	}
}

func restored(t rapid.TB, r *Resource) *Resource {
	t.Helper()
	got, err := Restore(r.Kind(), r.Any(), r.Source(), r.Cluster(), []byte(r.SourceVersion()))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAnyResourceIsRestoredAsItWas(t *testing.T) {
	text := rapid.StringN(0, 12, 40)
	maps := rapid.MapOfN(rapid.SampledFrom([]string{"a", "istio.io/rev", ProvenanceAnnotation, "z/é"}), text, 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		m := &mcp.Resource{
			Metadata: &mcp.Metadata{
				Name: rapid.SampledFrom([]string{"shop/db", "/cluster", "é/x"}).Draw(t, "name"), Version: text.Draw(t, "version"),
				Labels: maps.Draw(t, "labels"), Annotations: maps.Draw(t, "annotations"),
			},
		}
		if rapid.Bool().Draw(t, "created") {
			m.Metadata.CreateTime = &timestamppb.Timestamp{Seconds: rapid.Int64().Draw(t, "seconds"), Nanos: rapid.Int32().Draw(t, "nanos")}
		}
		if rapid.Bool().Draw(t, "unknown") {
			m.Metadata.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01}) // field 99, varint 1
		}
		scopeless := strings.HasPrefix(m.Metadata.Name, "/")
		kind, body := serviceEntries, proto.Message(&networkingapi.ServiceEntry{Hosts: []string{text.Draw(t, "host")}})
		switch n := rapid.IntRange(0, 2).Draw(t, "kind"); {
		case n == 1 || scopeless && n == 0:
			if kind = httpRoutes; scopeless {
				kind = Kind{gatewayAPI, "GatewayClass"}
			}
			body = &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStringValue(text.Draw(t, "value"))}}
		case n == 2:
			kind = widgets
		}
		packed, err := proto.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		m.Body = anyOf(body, packed)
		value, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		data, err := proto.Marshal(anyOf(m, value))
		if err != nil {
			t.Fatal(err)
		}
		var stamp *Stamp
		if rapid.Bool().Draw(t, "stamped") {
			stamp = &Stamp{Source: "east", Cluster: text.Draw(t, "cluster"), Relay: rapid.SampledFrom([]string{"", "hub"}).Draw(t, "relay")}
		}
		r, _, err := DecodeStamped(kind, data, "east", stamp)
		if err != nil {
			t.Fatal(err)
		}
		again := restored(t, r)
		checkRestored(t, again, r)
		checkRestored(t, restored(t, again), r)
	})
}

// What a relay has encoded is taken as it is, and gives what decoding gives, also when a byte of it is
// another one.
func TestWhatARelayHasEncodedIsRestoredWithoutDecoding(t *testing.T) {
	data := must(proto.Marshal(pack(t, &mcp.Resource{
		Metadata: &mcp.Metadata{
			Name: "shop/db", Version: "7", Labels: map[string]string{"a": "b", revisionLabel: "canary"},
			Annotations: map[string]string{"c": "d"}, CreateTime: timestamppb.Now(),
		},
		Body: pack(t, &networkingapi.ServiceEntry{Hosts: []string{"db.example"}}),
	})))
	r, _, err := DecodeStamped(serviceEntries, data, "east", &Stamp{Source: "east", Cluster: "c1", Relay: "hub"})
	if err != nil {
		t.Fatal(err)
	}
	f, version := from{r.Source(), r.Cluster()}, []byte(r.SourceVersion())
	if got := restoreProven(serviceEntries, r.Any(), f, version); got == nil {
		t.Fatal("what a relay has encoded is decoded")
	} else {
		checkRestored(t, got, r)
	}
	if restoreProven(serviceEntries, r.Any(), from{"west", f.cluster}, version) != nil || restoreProven(serviceEntries, data, f, version) != nil {
		t.Error("the version proves another source, or another encoding")
	}
	proven := 0
	for i := range r.Any() {
		for _, flip := range []byte{1, 8, 0x80} {
			data := bytes.Clone(r.Any())
			data[i] ^= flip
			got := restoreProven(serviceEntries, data, f, version)
			if got == nil {
				continue
			}
			proven++
			want, err := restoreDecoded(serviceEntries, data, f, version)
			if err != nil {
				t.Fatalf("byte %d: proven, and does not decode: %v", i, err)
			}
			checkRestored(t, got, want)
		}
	}
	if volatile := len("@7 via hub"); proven == 0 || proven > 3*volatile {
		t.Errorf("%d changed bytes change nothing that counts, and only the %d of the way may", proven, volatile)
	}
}

func TestMeshConfigIsRestoredAsItWas_C22(t *testing.T) {
	data := must(proto.Marshal(pack(t, &mesh.MeshConfig{TrustDomain: "example"})))
	r, _, err := DecodeStamped(MeshConfig, data, "east", &Stamp{Cluster: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	checkRestored(t, restored(t, r), r)
}

func TestResourcesBuiltHereAreRestoredAsTheyWere(t *testing.T) {
	r := entry(t, "east", "db", "db.example").withSourceVersion("77").withCluster("c9")
	checkRestored(t, restored(t, r), r)
}

func TestBodiesThatDoNotDecodeAreNotRestored_S12(t *testing.T) {
	good := entry(t, "east", "db", "db.example").Any()
	for name, data := range map[string][]byte{
		"nothing": nil, "no protobuf": {0xff}, "another message": must(proto.Marshal(pack(t, &networkingapi.ServiceEntry{}))),
		"cut short": good[:len(good)-3], "no name": rawResource("", pack(t, &networkingapi.ServiceEntry{})),
		"wrong body": rawResource("shop/db", pack(t, &networkingapi.VirtualService{})),
	} {
		if _, err := Restore(serviceEntries, data, "east", "", nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Restore(MeshConfig, good, "east", "", nil); err == nil {
		t.Error("a resource is restored as a MeshConfig")
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(false, entry(f, "east", "db", "db.example").Any(), "east", "c1", "7")
	f.Add(true, must(proto.Marshal(pack(f, &mesh.MeshConfig{}))), "east", "", "")
	f.Fuzz(func(t *testing.T, bare bool, data []byte, source, cluster, version string) {
		kind := serviceEntries
		if bare {
			kind = MeshConfig
		}
		r, err := Restore(kind, data, source, cluster, []byte(version))
		if err != nil {
			return
		}
		checkRestored(t, restored(t, r), r)
		if want, err := restoreDecoded(kind, data, from{source, cluster}, []byte(version)); err != nil {
			t.Errorf("restored, and does not decode: %v", err)
		} else {
			checkRestored(t, r, want)
		}
	})
}

// anyOf packs an encoded message.
func anyOf(m proto.Message, value []byte) *anypb.Any {
	return &anypb.Any{TypeUrl: typePrefix + string(m.ProtoReflect().Descriptor().FullName()), Value: value}
}
