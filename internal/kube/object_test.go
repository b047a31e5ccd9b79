package kube

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

var created = time.Date(2024, 2, 3, 4, 5, 6, 700, time.FixedZone("", 3600))

func build(t *testing.T, key mirror.Key, body *anypb.Any) *mirror.Resource {
	t.Helper()
	r, err := mirror.New(mirror.Spec{
		Key: key, Source: "east", CreateTime: created, Body: body,
		Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"note": "on"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func packed(t *testing.T, msg proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(msg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestObjects(t *testing.T) {
	route, err := structpb.NewStruct(map[string]any{"hostnames": []any{"a.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	const meta = `"resourceVersion":"5","creationTimestamp":"2024-02-03T03:05:06Z","labels":{"app":"db"},"annotations":{"note":"on"}}`
	for name, tc := range map[string]struct {
		key        mirror.Key
		apiVersion string
		body       *anypb.Any
		want       string
	}{
		"newest version": {
			mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: "db"}, "",
			packed(t, &networking.ServiceEntry{Hosts: []string{"db"}}),
			`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"db","namespace":"shop",` + meta + `,"spec":{"hosts":["db"]}}`,
		},
		"a given version": {
			mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: "db"}, "v1alpha3",
			packed(t, &networking.ServiceEntry{}),
			`{"apiVersion":"networking.istio.io/v1alpha3","kind":"ServiceEntry","metadata":{"name":"db","namespace":"shop",` + meta + `,"spec":{}}`,
		},
		"cluster-scoped, not protobuf": {
			mirror.Key{Kind: mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}, Name: "x"}, "", packed(t, route),
			`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"GatewayClass","metadata":{"name":"x",` + meta + `,"spec":{"hostnames":["a.example.com"]}}`,
		},
		"unknown kind": {
			mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, Namespace: "shop", Name: "w"}, "",
			&anypb.Any{TypeUrl: "type.googleapis.com/example.Widget", Value: []byte{8, 1}},
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"shop",` + meta + `,"spec":{"@type":"type.googleapis.com/example.Widget","value":"CAE="}}`,
		},
		"unknown kind, known message": {
			mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, Namespace: "shop", Name: "w"}, "v2", packed(t, route),
			`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"w","namespace":"shop",` + meta + `,"spec":{"hostnames":["a.example.com"]}}`,
		},
		"MeshConfig": {
			mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, "", packed(t, &mesh.MeshConfig{IngressClass: "x"}),
			`{"apiVersion":"core/v1alpha1","kind":"MeshConfig","metadata":{"name":"mesh","resourceVersion":"5"},"spec":{"ingressClass":"x"}}`,
		},
	} {
		o, err := New(build(t, tc.key, tc.body), tc.apiVersion, "5")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, string(got)); d != "" {
			t.Errorf("%s: -want +got:\n%s", name, d)
		}
	}
}
