package xds

import (
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshrelay/adsclient"
	"meshrelay/trouble"
)

// TestOnlyRelaysAreAskedForTrouble_C24: an istiod does not know the type.
func TestOnlyRelaysAreAskedForTrouble_C24(t *testing.T) {
	of := withTrouble(func(bool) []string { return []string{"a"} })
	if got := of(false); !slices.Equal(got, []string{"a"}) {
		t.Errorf("an istiod is asked for %q", got)
	}
	if got := of(true); !slices.Equal(got, []string{"a", trouble.TypeURL}) {
		t.Errorf("a relay is asked for %q", got)
	}
}

// TestATroubleResponseIsBoundedBeforeItIsDecoded_C24
func TestATroubleResponseIsBoundedBeforeItIsDecoded_C24(t *testing.T) {
	packed := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	good, err := trouble.Encode([]trouble.Problem{{What: trouble.Held, Upstream: "x", Relays: []string{"east"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		bodies []*anypb.Any
		want   string // the error, empty for none
		n      int
	}{
		"a report":          {[]*anypb.Any{packed(wrapperspb.String(good))}, "", 1},
		"none":              {nil, "", 0},
		"two":               {[]*anypb.Any{packed(wrapperspb.String(good)), packed(wrapperspb.String(good))}, "want one", 0},
		"too many bytes":    {[]*anypb.Any{packed(wrapperspb.String(strings.Repeat(" ", 1<<20)))}, "want at most", 0},
		"another message":   {[]*anypb.Any{packed(&structpb.Struct{})}, "does not decode", 0},
		"bytes of no proto": {[]*anypb.Any{{TypeUrl: packed(wrapperspb.String("")).TypeUrl, Value: []byte("\xff")}}, "does not decode", 0},
		"no JSON":           {[]*anypb.Any{packed(wrapperspb.String("x"))}, "not JSON", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: trouble.TypeURL, Nonce: "1"}
			for _, body := range tc.bodies {
				m.Resources = append(m.Resources, &discoveryv3.Resource{Name: "trouble", Resource: body})
			}
			data, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := adsclient.Parse(mem.BufferSlice{mem.SliceBuffer(data)}, true)
			if err != nil {
				t.Fatal(err)
			}
			got, err := heard(resp, "me")
			if len(got.Problems) != tc.n || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, error %v", got, err)
			}
		})
	}
}
