package adsclient

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestFieldsOtherThanResourcesAreBounded: they are refused before the response is copied.
// Resources, and the names of removed ones, have room to the limit of a response.
func TestFieldsOtherThanResourcesAreBounded(t *testing.T) {
	large := strings.Repeat("a", 4<<20)
	var names []string
	for range 100_000 {
		names = append(names, "shop/a-service-of-some-length.shop.svc")
	}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte(large))
	numbers := protowire.AppendVarint(protowire.AppendTag(nil, 98, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		msg     proto.Message
		extra   []byte
		delta   bool
		refused bool
	}{
		"control plane":          {&discoveryv3.DiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: large}}, nil, false, true},
		"control plane in delta": {&discoveryv3.DeltaDiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: large}}, nil, true, true},
		"nonce":                  {&discoveryv3.DiscoveryResponse{Nonce: large}, nil, false, true},
		"an unknown field":       {&discoveryv3.DiscoveryResponse{}, unknown, false, true},
		"many small fields":      {&discoveryv3.DiscoveryResponse{}, []byte(strings.Repeat(string(numbers), 1<<19)), false, true},
		"a group":                {&discoveryv3.DiscoveryResponse{}, slices.Concat(protowire.AppendTag(nil, 97, protowire.StartGroupType), unknown, protowire.AppendTag(nil, 97, protowire.EndGroupType)), false, true},
		"resources":              {&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{Value: []byte(large)}}}, nil, false, false},
		"removed names":          {&discoveryv3.DeltaDiscoveryResponse{RemovedResources: names}, nil, true, false},
	} {
		b, err := proto.Marshal(tc.msg)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, tc.extra...)
		var data mem.BufferSlice
		for rest := b; len(rest) > 0; { // as it comes: in frames
			n := min(len(rest), 16<<10)
			data, rest = append(data, mem.SliceBuffer(rest[:n])), rest[n:]
		}
		if _, err := Parse(data, tc.delta); tc.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), "its fields other than resources have") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Parse(whole(b), tc.delta); tc.refused != (err != nil) {
			t.Errorf("%s, parsed: %v", name, err)
		}
	}
}

func TestElementsOfAResponseAreBounded(t *testing.T) {
	for number, delta := range map[protowire.Number]bool{2: false, 6: true} {
		one := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), nil)
		if _, err := Parse(whole([]byte(strings.Repeat(string(one), maxElements+1))), delta); err == nil || !strings.Contains(err.Error(), "more than 4194304 resources") {
			t.Errorf("field %d: %v", number, err)
		}
	}
}

// TestEmptyResourcesHaveNoRoomMadeForThem: each would cost many times its two bytes.
func TestEmptyResourcesHaveNoRoomMadeForThem(t *testing.T) {
	for body, want := range map[string]int{"": 15, strings.Repeat("a", 200): 1000} {
		one := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte(body))
		r, err := Parse(whole([]byte(strings.Repeat(string(one), 1000))), false)
		if err != nil || r.Len() != 1000 || r.Room() != want {
			t.Errorf("%d resources of %d bytes: room for %d, want %d; %v", r.Len(), len(body), r.Room(), want, err)
		}
	}
}
