package mirror

import (
	"bytes"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networkingapi "istio.io/api/networking/v1alpha3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	serviceEntries  = Kind{networking, "ServiceEntry"}
	virtualServices = Kind{networking, "VirtualService"}
	httpRoutes      = Kind{gatewayAPI, "HTTPRoute"}
	widgets         = Kind{"example.com", "Widget"} // not in the table
)

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// entry returns a ServiceEntry of source for a host.
func entry(t testing.TB, source, name, host string) *Resource {
	t.Helper()
	r, err := New(Spec{
		Key: Key{serviceEntries, "shop", name}, Source: source,
		Body: pack(t, &networkingapi.ServiceEntry{Hosts: []string{host}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// received encodes a resource as an upstream's response has it.
func received(t testing.TB, change func(*mcp.Resource)) []byte {
	t.Helper()
	m := &mcp.Resource{
		Metadata: &mcp.Metadata{Name: "shop/db", Version: "7", Labels: map[string]string{"b": "2", "a": "1"}, Annotations: map[string]string{"n": "x"}},
		Body:     pack(t, &networkingapi.ServiceEntry{Hosts: []string{"db.example"}}),
	}
	if change != nil {
		change(m)
	}
	b, err := proto.Marshal(pack(t, m))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decodeSE(t testing.TB, change func(*mcp.Resource)) *Resource {
	t.Helper()
	r, err := Decode(serviceEntries, received(t, change), "east")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFrameIsExactlyWhatReceiversDecode_S8_S10(t *testing.T) {
	r := decodeSE(t, nil)
	resp := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(r.Frame(), resp); err != nil || len(resp.Resources) != 1 {
		t.Fatalf("frame as a DiscoveryResponse: %v, %v", resp, err)
	}
	a := resp.Resources[0]
	if a.TypeUrl != "type.googleapis.com/istio.mcp.v1alpha1.Resource" {
		t.Errorf("element is a %q", a.TypeUrl)
	}
	m := &mcp.Resource{}
	if err := a.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	if m.Metadata.Name != "shop/db" || m.Metadata.Version != r.Version() || m.Metadata.Labels["b"] != "2" || m.Metadata.Annotations["n"] != "x" {
		t.Errorf("metadata %v", m.Metadata)
	}
	if want := pack(t, &networkingapi.ServiceEntry{Hosts: []string{"db.example"}}); !proto.Equal(m.Body, want) || !proto.Equal(r.Body(), want) {
		t.Errorf("body %v", m.Body)
	}
	again := &anypb.Any{}
	if err := proto.Unmarshal(r.Any(), again); err != nil || !proto.Equal(again, a) {
		t.Errorf("Any is not the frame without its tag and length: %v, %v", again, err)
	}
}

func TestDeltaEntryCarriesTheSameBytes_S18(t *testing.T) {
	r := decodeSE(t, nil)
	resp := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(r.DeltaEntry(), resp); err != nil || len(resp.Resources) != 1 {
		t.Fatalf("entry as a DeltaDiscoveryResponse: %v, %v", resp, err)
	}
	if e := resp.Resources[0]; e.Name != "shop/db" || e.Version != r.Version() {
		t.Errorf("entry %q version %q", e.Name, e.Version)
	}
	if !bytes.Contains(r.DeltaEntry(), r.Frame()) {
		t.Error("the frame is not part of the entry")
	}
}

func TestVersionChangesWithContentAndOriginAlone_C5_C10(t *testing.T) {
	base := decodeSE(t, nil)
	same := map[string]func(*mcp.Resource){
		"again":                    nil,
		"another source's version": func(m *mcp.Resource) { m.Metadata.Version = "8" },
	}
	for name, change := range same {
		if r := decodeSE(t, change); !r.Equal(base) || r.Version() != base.Version() {
			t.Errorf("%s: version %s, want %s", name, r.Version(), base.Version())
		}
	}
	if got := decodeSE(t, func(m *mcp.Resource) { m.Metadata.Version = "8" }).SourceVersion(); got != "8" {
		t.Errorf("source version %q", got)
	}
	differ := map[string]func(*mcp.Resource){
		"body":        func(m *mcp.Resource) { m.Body = pack(t, &networkingapi.ServiceEntry{Hosts: []string{"other.example"}}) },
		"label":       func(m *mcp.Resource) { m.Metadata.Labels["a"] = "9" },
		"annotation":  func(m *mcp.Resource) { delete(m.Metadata.Annotations, "n") },
		"create time": func(m *mcp.Resource) { m.Metadata.CreateTime = &timestamppb.Timestamp{Seconds: 1} },
		"name":        func(m *mcp.Resource) { m.Metadata.Name = "shop/other" },
		"moved": func(m *mcp.Resource) {
			m.Metadata.Labels, m.Metadata.Annotations = m.Metadata.Annotations, m.Metadata.Labels
		},
	}
	seen := map[string]string{base.Version(): "the first"}
	for name, change := range differ {
		v := decodeSE(t, change).Version()
		if other, taken := seen[v]; taken {
			t.Errorf("%s has the version of %s", name, other)
		}
		seen[v] = name
	}
	west, err := Decode(serviceEntries, received(t, nil), "west")
	if err != nil {
		t.Fatal(err)
	}
	if west.Equal(base) {
		t.Error("the same bytes from another source are no change")
	}
}

func TestVersionsAreTheSameInEveryProcess(t *testing.T) {
	// Golden: a client reconnects to another replica, or to a later build, with these.
	if got, want := decodeSE(t, nil).Version(), "N85kgFrkqXy8ZUoD6BSk0g"; got != want {
		t.Errorf("version %s, was %s: every client would be sent everything again", got, want)
	}
}

func TestNewAndDecodeBuildTheSame(t *testing.T) {
	created := time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC)
	n, err := New(Spec{
		Key: Key{serviceEntries, "shop", "db"}, Labels: map[string]string{"istio.io/rev": "blue"}, CreateTime: created,
		Source: "east", SourceVersion: "7", Body: pack(t, &networkingapi.ServiceEntry{Hosts: []string{"db.example"}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Decode(serviceEntries, n.Any(), "east")
	if err != nil {
		t.Fatal(err)
	}
	if !d.Equal(n) || d.SourceVersion() != n.Version() || d.Revision() != "blue" || d.Key() != n.Key() || d.Namespace() != "shop" {
		t.Errorf("decoded %v %s, built %v %s", d.Key(), d.Version(), n.Key(), n.Version())
	}
	if md := d.Metadata(); !md.CreateTime.Equal(created) || md.Labels["istio.io/rev"] != "blue" {
		t.Errorf("metadata %+v", md)
	}
}

func TestNamesHaveOneSlash_S11(t *testing.T) {
	for name, ok := range map[string]bool{
		"shop/db": true, "/db": false, "db": false, "a/b/c": false, "": false, "/": false, "shop/": false,
		"shop/" + strings.Repeat("x", 600): false, "shop/\xff": false,
	} {
		raw := rawResource(name, pack(t, &networkingapi.ServiceEntry{}))
		if _, err := Decode(serviceEntries, raw, "east"); (err == nil) != ok {
			t.Errorf("name %.20q: %v", name, err)
		}
	}
}

func TestNamespaceAndScopeMustAgree_S11(t *testing.T) {
	for _, info := range Kinds() {
		if info.Kind == MeshConfig {
			continue
		}
		body, err := anypb.New(info.NewBody())
		if err != nil {
			t.Fatal(err)
		}
		for namespace, ok := range map[string]bool{"": info.ClusterScoped, "shop": !info.ClusterScoped} {
			if _, err := Decode(info.Kind, rawResource(namespace+"/x", body), "east"); (err == nil) != ok {
				t.Errorf("%s in namespace %q: %v", info.Kind, namespace, err)
			}
			_, err := New(Spec{Key: Key{Kind: info.Kind, Namespace: namespace, Name: "x"}, Body: body})
			if (err == nil) != ok {
				t.Errorf("%s in namespace %q: %v", info.Kind, namespace, err)
			}
			if err != nil && !strings.Contains(err.Error(), info.Kind.Kind) {
				t.Errorf("the error does not name the resource: %v", err)
			}
			// A resource that an earlier version wrote down is not served either.
			if _, err := Restore(info.Kind, rawResource(namespace+"/x", body), "east", "", nil); (err == nil) != ok {
				t.Errorf("%s in namespace %q is restored: %v", info.Kind, namespace, err)
			}
		}
	}
	for _, name := range []string{"/x", "shop/x"} {
		if _, err := Decode(widgets, rawResource(name, pack(t, &networkingapi.ServiceEntry{})), "east"); err != nil {
			t.Errorf("of a kind that nobody knows, %q: %v", name, err)
		}
	}
}

// rawResource encodes what protobuf would refuse to.
func rawResource(name string, body *anypb.Any) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), body.TypeUrl)
	b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), body.Value)
	meta := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	res := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), meta)
	res = protowire.AppendBytes(protowire.AppendTag(res, 2, protowire.BytesType), b)
	a, err := proto.Marshal(&anypb.Any{TypeUrl: resourceURL, Value: res})
	if err != nil {
		panic(err)
	}
	return a
}

func TestBodiesThatReceiversCanNotDecodeAreRefused_S12(t *testing.T) {
	good := pack(t, &networkingapi.ServiceEntry{Hosts: []string{"db.example"}})
	for name, tc := range map[string]struct {
		kind Kind
		body *anypb.Any
		want string
	}{
		"missing":         {serviceEntries, &anypb.Any{}, "body is missing"},
		"another type":    {serviceEntries, pack(t, &networkingapi.VirtualService{}), "want \"type.googleapis.com/istio.networking.v1alpha3.ServiceEntry\""},
		"truncated":       {serviceEntries, &anypb.Any{TypeUrl: good.TypeUrl, Value: good.Value[:len(good.Value)-1]}, "does not decode"},
		"invalid UTF-8":   {serviceEntries, &anypb.Any{TypeUrl: good.TypeUrl, Value: []byte{0x0a, 1, 0xff}}, "does not decode"},
		"not a Struct":    {httpRoutes, good, "want \"type.googleapis.com/google.protobuf.Struct\""},
		"unreadable type": {serviceEntries, &anypb.Any{TypeUrl: "\xff/istio.networking.v1alpha3.ServiceEntry", Value: good.Value}, "not valid UTF-8"},
		"its type, too":   {widgets, &anypb.Any{TypeUrl: "\xff/example.Widget"}, "not valid UTF-8"},
		"no protobuf":     {widgets, &anypb.Any{TypeUrl: "type.googleapis.com/example.Widget", Value: []byte{0xff}}, "is not protobuf"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(tc.kind, rawResource("shop/db", tc.body), "east")
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "shop/db") {
				t.Errorf("error %v, want it to name the resource and say %s", err, tc.want)
			}
		})
	}
	mc := must(proto.Marshal(pack(t, &mesh.MeshConfig{})))
	mc[2] = 0xff // the first letter of its type URL
	if _, err := Decode(MeshConfig, mc, "east"); err == nil {
		t.Error("a MeshConfig whose type URL is not UTF-8 passes: no client could read the response")
	}
	for name, data := range map[string][]byte{
		"not an Any": {0xff}, "another element": must(proto.Marshal(good)), "empty": nil,
	} {
		if _, err := Decode(serviceEntries, data, "east"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestUnknownKindsAndStructsPassThrough(t *testing.T) {
	for kind, body := range map[Kind]*anypb.Any{
		widgets:    {TypeUrl: "type.googleapis.com/example.Widget", Value: []byte{0x08, 1}},
		httpRoutes: pack(t, &structpb.Struct{Fields: map[string]*structpb.Value{"hostnames": structpb.NewStringValue("x")}}),
	} {
		r, err := Decode(kind, rawResource("shop/x", body), "east")
		if err != nil {
			t.Errorf("%v: %v", kind, err)
		} else if !proto.Equal(r.Body(), body) {
			t.Errorf("%v: body %v", kind, r.Body())
		}
	}
}

func TestMeshConfigIsABareAny_C22(t *testing.T) {
	body := pack(t, &mesh.MeshConfig{TrustDomain: "east.example"})
	r, err := Decode(MeshConfig, must(proto.Marshal(body)), "east")
	if err != nil {
		t.Fatal(err)
	}
	got := &anypb.Any{}
	if err := proto.Unmarshal(r.Any(), got); err != nil || !proto.Equal(got, body) {
		t.Errorf("served as %v: %v", got, err)
	}
	if r.FullName() != MeshConfigName || r.Key() != (Key{Kind: MeshConfig, Name: MeshConfigName}) || !proto.Equal(r.Body(), body) {
		t.Errorf("key %v, body %v", r.Key(), r.Body())
	}
	if md := r.Metadata(); md.Labels != nil {
		t.Errorf("metadata %v", md)
	}
	if _, err := Decode(MeshConfig, received(t, nil), "east"); err == nil {
		t.Error("a resource passes for a MeshConfig")
	}
}

func TestPeekNameAgreesWithDecodeAndDoesNotAllocate(t *testing.T) {
	data := received(t, nil)
	var name []byte
	allocs := testing.AllocsPerRun(100, func() { name, _ = PeekName(serviceEntries, data) })
	if string(name) != "shop/db" || allocs != 0 {
		t.Errorf("name %q with %v allocations", name, allocs)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(received(f, nil))
	f.Add(rawResource("a/b/c", &anypb.Any{TypeUrl: "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range []Kind{serviceEntries, httpRoutes, widgets, MeshConfig} {
			r, err := Decode(kind, data, "east")
			name, peekErr := PeekName(kind, data)
			if err != nil {
				continue
			}
			if peekErr != nil || string(name) != r.FullName() {
				t.Fatalf("%v: PeekName says %q, %v; Decode %q", kind, name, peekErr, r.FullName())
			}
			again, err := Decode(kind, r.Any(), "east")
			if err != nil || again.FullName() != r.FullName() || !proto.Equal(again.Body(), r.Body()) || again.Version() != r.Version() {
				t.Fatalf("%v: what we serve does not decode as what it is: %v, %v", kind, again, err)
			}
			resp := &discoveryv3.DeltaDiscoveryResponse{}
			if err := proto.Unmarshal(r.DeltaEntry(), resp); err != nil || resp.Resources[0].Name != r.FullName() {
				t.Fatalf("%v: entry: %v, %v", kind, resp, err)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	data := received(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(serviceEntries, data, "east"); err != nil {
			b.Fatal(err)
		}
	}
}
