package main

import (
	"bytes"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/bench/internal/wire"
)

// TestEqualContentsAreKeptOnce: of equal resources under other nonces, and not of others, nor of removals.
func TestEqualContentsAreKeptOnce(t *testing.T) {
	var s shares
	kept := func(nonce string, fill byte, size int, removed ...string) []byte {
		t.Helper()
		b, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: serviceEntries, Nonce: nonce, RemovedResources: removed,
			Resources: []*discoveryv3.Resource{{Name: "a/b", Resource: &anypb.Any{Value: bytes.Repeat([]byte{fill}, size)}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		data := mem.BufferSlice{mem.SliceBuffer(b[:100:100]), mem.SliceBuffer(b[100:])}
		h, err := wire.ReadHead(data)
		if err != nil {
			t.Fatal(err)
		}
		out := s.of(data, h)
		again, err := wire.ReadHead(out)
		if err != nil || again.Resources != h.Resources || again.Removed != len(removed) {
			t.Fatalf("%+v of %+v, %v", again, h, err)
		}
		return out[0].ReadOnlyData()
	}
	same := func(a, b []byte) bool { return &a[0] == &b[0] }
	first := kept("1", 'x', leastShared)
	if !same(first, kept("another nonce", 'x', leastShared)) {
		t.Error("equal resources are kept twice")
	}
	for name, other := range map[string][]byte{
		"content": kept("1", 'y', leastShared), "size": kept("1", 'x', leastShared+1),
		"removals": kept("1", 'x', leastShared, "a/c"), "small": kept("1", 'x', 200),
	} {
		if same(first, other) {
			t.Errorf("another %s is taken for the same", name)
		}
	}
	for i := range 2 * mostShared {
		kept("1", 'z', leastShared+2+i)
	}
	if len(s.all) != mostShared {
		t.Errorf("%d contents are kept for others", len(s.all))
	}
}
