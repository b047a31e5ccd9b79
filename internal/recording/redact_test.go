package recording

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	extensions "istio.io/api/extensions/v1alpha1"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

const canary = "canary-4711"

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secretive returns a resource with secrets in every place that docs/operations.md names.
func secretive(t *testing.T) *anypb.Any {
	plugin, err := structpb.NewStruct(map[string]any{
		"password": canary, "nested": map[string]any{"api_key": []any{canary, map[string]any{"a": canary}}},
		"env": []any{map[string]any{"name": "DB_PASSWORD", "value": canary}}, "host": "db.example.com",
		"text": "Authorization: Bearer " + canary, "url": "https://u:" + canary + "@hooks.example.com/" + canary,
	})
	if err != nil {
		t.Fatal(err)
	}
	body := &extensions.WasmPlugin{
		Url: "https://storage.example.com/" + canary, PluginConfig: plugin, ImagePullSecret: "the-name",
		VmConfig: &extensions.VmConfig{Env: []*extensions.EnvVar{{Name: "ACCESS_TOKEN", Value: canary}, {Name: "MODE", Value: "fast"}}},
	}
	return packed(t, &mcp.Resource{
		Metadata: &mcp.Metadata{Name: "shop/plugin", Annotations: map[string]string{lastApplied: canary, "example.com/token": canary, "team": "shop"}},
		Body:     packed(t, body),
	})
}

func TestRedactLeavesNoSecretAndKeepsTheRest(t *testing.T) {
	unknown := &anypb.Any{TypeUrl: "type.googleapis.com/example.Unknown", Value: []byte(canary)}
	gateway := packed(t, &mcp.Resource{Metadata: &mcp.Metadata{Name: "shop/gw"}, Body: packed(t, &networking.Gateway{Servers: []*networking.Server{{
		Hosts: []string{"shop.example.com"}, Tls: &networking.ServerTLSSettings{CredentialName: "shop-cert"},
	}}})})
	for _, r := range []struct {
		name string
		rec  Record
		m    proto.Message
		keep []string
	}{
		{"sotw", Record{Kind: Response}, &discoveryv3.DiscoveryResponse{TypeUrl: "a/b/C", Nonce: "n1", VersionInfo: "v1", Resources: []*anypb.Any{secretive(t), gateway, unknown}},
			[]string{"shop/plugin", "MODE", "fast", "db.example.com", "the-name", "shop-cert", "shop.example.com", "example.Unknown", "team"}},
		{"delta", Record{Kind: Response, Delta: true}, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "a/b/C", RemovedResources: []string{"shop/old"},
			Resources: []*discoveryv3.Resource{{Name: "shop/plugin", Version: "v7", Resource: secretive(t)}}}, []string{"shop/plugin", "v7", "shop/old"}},
		{"request", Record{Kind: Request}, &discoveryv3.DiscoveryRequest{TypeUrl: "a/b/C", Node: &corev3.Node{Id: canary},
			ErrorDetail: &rpcstatus.Status{Message: "bad: password=" + canary + " at line 3"}}, []string{"a/b/C", "line 3"}},
		{"delta request", Record{Kind: Request, Delta: true}, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "a/b/C", Node: &corev3.Node{Id: canary}}, []string{"a/b/C"}},
	} {
		data, err := proto.Marshal(r.m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(data, []byte(canary)) {
			t.Fatalf("%s has no secret to begin with", r.name)
		}
		r.rec.Data = data
		got, err := Redact(r.rec)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(got.Data, []byte(canary)) {
			t.Errorf("%s: a secret is left: %q", r.name, got.Data)
		}
		for _, text := range r.keep {
			if !bytes.Contains(got.Data, []byte(text)) {
				t.Errorf("%s: %s is gone", r.name, text)
			}
		}
		if err := proto.Unmarshal(got.Data, r.m.ProtoReflect().New().Interface()); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

func TestRedactEndsAtAnyDepth(t *testing.T) {
	v := structpb.NewStringValue(canary)
	for range 3000 {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	body := &structpb.Struct{Fields: map[string]*structpb.Value{"a": v}}
	data, err := proto.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{packed(t, body)}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Redact(Record{Kind: Response, Data: data})
	if err != nil || bytes.Contains(got.Data, []byte(canary)) {
		t.Errorf("%v; %d bytes are left", err, len(got.Data))
	}
}

func TestRedactRefusesWhatDoesNotDecode(t *testing.T) {
	if _, err := Redact(Record{Kind: Response, Data: []byte{0xff}}); err == nil || !strings.Contains(err.Error(), "does not decode") {
		t.Error(err)
	}
}
