package adsclient

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

func TestAcknowledgementsWaitInOrderUpToABound(t *testing.T) {
	a := newAcks()
	var in []proto.Message
	for range acksWaiting {
		m := &discoveryv3.DiscoveryRequest{}
		if in = append(in, m); !a.add(m) {
			t.Fatalf("no room for %d", len(in))
		}
	}
	if a.add(&discoveryv3.DiscoveryRequest{}) {
		t.Errorf("more than %d wait", acksWaiting)
	}
	for i, want := range in[:acksWaiting-2] {
		select {
		case <-a.more:
		default:
			t.Fatalf("number %d waits, and nobody is told", i)
		}
		if got := a.next(); got != want {
			t.Fatalf("number %d is another", i)
		}
	}
	if rest := a.all(); len(rest) != 2 || rest[0] != in[acksWaiting-2] || rest[1] != in[acksWaiting-1] {
		t.Errorf("%d are left, in another order", len(rest))
	}
	if a.next() != nil || a.all() != nil || cap(a.waiting) > 0 {
		t.Error("with none waiting there is still room for some")
	}
	if !a.add(in[0]) || a.next() != in[0] || cap(a.waiting) > 0 {
		t.Error("the last one leaves room behind")
	}
}
