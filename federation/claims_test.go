package federation

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

func claimant(t testing.TB, kind mirror.Kind, annotations map[string]string, body proto.Message) *mirror.Resource {
	t.Helper()
	packed, err := anypb.New(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: "shop", Name: "a"}, Annotations: annotations, Source: "east", Body: packed})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func object(t testing.TB, text map[string]any) proto.Message {
	t.Helper()
	s, err := structpb.NewStruct(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEachKindClaimsItsHosts: short hosts of VirtualServices and DestinationRules are completed, as istiod does.
func TestEachKindClaimsItsHosts(t *testing.T) {
	istio := func(name string) mirror.Kind { return mirror.Kind{Group: networkingIO, Kind: name} }
	gateway := func(name string) mirror.Kind { return mirror.Kind{Group: gatewayAPI, Kind: name} }
	type list = []any
	type fields = map[string]any
	for name, tc := range map[string]struct {
		kind        mirror.Kind
		annotations map[string]string
		body        proto.Message
		want        string
	}{
		"a ServiceEntry":           {ServiceEntry, nil, &networking.ServiceEntry{Hosts: []string{"DB.example", "db", "*.b.", "db.example"}}, "*.b db db.example"},
		"a VirtualService":         {VirtualService, nil, &networking.VirtualService{Hosts: []string{"web", "*", "Web.example"}}, "* web.example web.shop.svc.mesh.local"},
		"one of routes":            {VirtualService, map[string]string{routeSemantics: gatewaySemantic}, &networking.VirtualService{Hosts: []string{"web"}}, "web"},
		"a delegate":               {VirtualService, nil, &networking.VirtualService{Http: []*networking.HTTPRoute{{}}}, ""},
		"a DestinationRule":        {DestinationRule, nil, &networking.DestinationRule{Host: "web"}, "web.shop.svc.mesh.local"},
		"one that claims routes":   {DestinationRule, map[string]string{routeSemantics: gatewaySemantic}, &networking.DestinationRule{Host: "web"}, "web.shop.svc.mesh.local"},
		"a Gateway":                {istio("Gateway"), nil, &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"*/a.b", "./c.d"}}, {Hosts: []string{"*"}}}}, "* a.b c.d"},
		"one of no namespace":      {istio("Gateway"), nil, &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"~/a.b"}}}}, "a.b"},
		"one for any SNI":          {istio("Gateway"), nil, &networking.Gateway{Servers: []*networking.Server{{Tls: &networking.ServerTLSSettings{}}}}, "*"},
		"a Sidecar":                {istio("Sidecar"), nil, &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"./*", "x/a.b", "~/*"}}}}, "* a.b"},
		"a closed Sidecar":         {istio("Sidecar"), nil, &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"~/*"}}}}, ""},
		"a WorkloadEntry":          {istio("WorkloadEntry"), nil, &networking.WorkloadEntry{Address: "a.b"}, ""},
		"an HTTPRoute":             {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"A.b"}, "parentRefs": list{fields{"name": "gw"}}}), "a.b"},
		"a route without names":    {gateway("HTTPRoute"), nil, object(t, fields{"parentRefs": list{fields{"name": "gw"}}}), "*"},
		"a route of nothing":       {gateway("TCPRoute"), nil, object(t, fields{}), "*"},
		"a route of a Service":     {gateway("GRPCRoute"), nil, object(t, fields{"parentRefs": list{fields{"group": "", "kind": "Service", "name": "web"}}}), "web.shop.svc.mesh.local"},
		"of another's Service":     {gateway("HTTPRoute"), nil, object(t, fields{"parentRefs": list{fields{"group": "", "kind": "Service", "name": "web", "namespace": "x"}, fields{"name": "gw"}}}), "* web.x.svc.mesh.local"},
		"of a ServiceEntry":        {gateway("TLSRoute"), nil, object(t, fields{"parentRefs": list{fields{"group": networkingIO, "kind": "ServiceEntry", "name": "web"}}}), "*"},
		"with a hostname":          {gateway("TLSRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": list{fields{"group": networkingIO, "kind": "ServiceEntry", "name": "web"}}}), "*"},
		"a Service's hostname":     {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": list{fields{"group": "", "kind": "Service", "name": "web"}}}), "web.shop.svc.mesh.local"},
		"of a ListenerSet":         {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": list{fields{"kind": "ListenerSet", "name": "x"}}}), "a.b"},
		"of an XListenerSet":       {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": list{fields{"group": gatewayX, "kind": "XListenerSet", "name": "x"}}}), "a.b"},
		"of an unknown parent":     {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": list{fields{"group": "x", "kind": "Mesh", "name": "x"}}}), "*"},
		"of too many parents":      {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": list{"a.b"}, "parentRefs": slices.Repeat(list{fields{"name": "x"}}, 33)}), "* a.b"},
		"hostnames that are none":  {gateway("HTTPRoute"), nil, object(t, fields{"hostnames": "a.b"}), "*"},
		"a Gateway of that API":    {gateway("Gateway"), nil, object(t, fields{"listeners": list{fields{"hostname": "a.b"}, fields{"name": "x"}}}), "* a.b"},
		"a Sidecar without egress": {istio("Sidecar"), nil, &networking.Sidecar{}, ""},
	} {
		if got := strings.Join(Claims(claimant(t, tc.kind, tc.annotations, tc.body), "mesh.local"), " "); got != tc.want {
			t.Errorf("%s claims %q, want %q", name, got, tc.want)
		}
	}
}

// TestFieldsOfClaimsAreThoseOfIstiosAPI
func TestFieldsOfClaimsAreThoseOfIstiosAPI(t *testing.T) {
	if f := (&networking.DestinationRule{}).ProtoReflect().Descriptor().Fields().ByNumber(ruleSelector); f.Name() != "workload_selector" {
		t.Errorf("field %d of a DestinationRule is %v", ruleSelector, f)
	}
	if f := (&networking.VirtualService{}).ProtoReflect().Descriptor().Fields().ByNumber(serviceGateways); f.Name() != "gateways" {
		t.Errorf("field %d of a VirtualService is %v", serviceGateways, f)
	}
	for kind, w := range claims {
		info, ok := mirror.LookupKind(kind)
		if !ok {
			t.Fatalf("%s is not well known", kind)
		}
		if w.texts == 0 {
			continue
		}
		d := info.NewBody().ProtoReflect().Descriptor()
		if n, ok := exports[kind]; ok && d.Fields().ByNumber(n).Name() != "export_to" {
			t.Errorf("%s: field %d is no exportTo", kind, n)
		}
		if w.inner != 0 {
			d = d.Fields().ByNumber(w.inner).Message()
		}
		if f := d.Fields().ByNumber(w.texts); f == nil || !strings.HasPrefix(string(f.Name()), "host") {
			t.Errorf("%s: field %d is %v", kind, w.texts, f)
		}
	}
}

func FuzzClaims(f *testing.F) {
	f.Add(encoded(f, &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"*/a.b"}}}}))
	f.Add(encoded(f, object(f, map[string]any{"hostnames": []any{"a.b"}})))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := &networking.Gateway{}
		if proto.Unmarshal(body, g) != nil {
			return
		}
		var want []string
		for _, s := range g.Servers {
			for _, h := range s.GetHosts() {
				if _, name, ok := strings.Cut(h, "/"); ok {
					h = name
				}
				want = append(want, h)
			}
			if len(s.GetHosts()) == 0 {
				want = append(want, AnyHost)
			}
		}
		if got := claims[mirror.Kind{Group: networkingIO, Kind: "Gateway"}].read(body); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
