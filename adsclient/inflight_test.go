package adsclient

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestAResourceOverTheLimitIsNotCopied_C15: it is refused by its name, which is read without it.
func TestAResourceOverTheLimitIsNotCopied_C15(t *testing.T) {
	const size, limit = 32 << 20, 4 << 20
	large := &anypb.Any{TypeUrl: "x/y", Value: mustMarshal(t, &anypb.Any{TypeUrl: "shop/db", Value: bytes.Repeat([]byte("v"), size)})}
	small := &anypb.Any{TypeUrl: "x/y", Value: []byte("small")}
	for _, delta := range []bool{false, true} {
		var resp proto.Message = &discoveryv3.DiscoveryResponse{TypeUrl: "t", Resources: []*anypb.Any{large, small}}
		if delta {
			resp = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t", Resources: []*discoveryv3.Resource{{Name: "one", Resource: large}, {Name: "two", Resource: small}}}
		}
		data := pieces(mustMarshal(t, resp), 16<<10)
		var sizes []int
		var names string
		var peeked anypb.Any
		n := allocated(func() {
			r, err := Parse(data, delta)
			if err != nil {
				t.Fatal(err)
			}
			for raw := range r.Resources(limit) {
				sizes = append(sizes, len(raw.Any))
				names += string(raw.Name) + " "
				if raw.Any == nil {
					if err := proto.Unmarshal(raw.Peek(), &peeked); err != nil || raw.Size < size {
						t.Errorf("%d bytes: %v", raw.Size, err)
					}
				}
			}
		})
		if n > 1<<20 {
			t.Errorf("delta %v: %d bytes were allocated", delta, n)
		}
		var inner anypb.Any
		if err := proto.Unmarshal(peeked.Value, &inner); err != nil || peeked.TypeUrl != "x/y" || inner.TypeUrl != "shop/db" || len(inner.Value) > maxOutline {
			t.Errorf("delta %v: the head is %v: %v", delta, &peeked, err)
		}
		if len(sizes) != 2 || sizes[0] != 0 || sizes[1] == 0 || delta && names != "one two " {
			t.Errorf("delta %v: sizes %v, names %q", delta, sizes, names)
		}
	}
}

// TestALargeResponseIsNotCopied_C15: its resources are handed on one by one, from where they
// came in.
func TestALargeResponseIsNotCopied_C15(t *testing.T) {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t"}
	for range 10_000 {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: "shop/db", Resource: &anypb.Any{TypeUrl: "x/y", Value: bytes.Repeat([]byte("v"), 3000)}})
		resp.RemovedResources = append(resp.RemovedResources, strings.Repeat("n", 500))
	}
	data := pieces(mustMarshal(t, resp), 16<<10)
	n := allocated(func() {
		r, err := Parse(data, true)
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for raw := range r.Resources(4 << 20) {
			bytes += len(raw.Any)
		}
		for name := range r.Removed() {
			bytes += len(name)
		}
		if bytes < 35_000_000 {
			t.Errorf("%d bytes were read", bytes)
		}
	})
	if n > 64<<10 {
		t.Errorf("%d bytes were allocated", n)
	}
}

// crowd returns a budget and so many connections, and which of them it has ended.
func crowd(limit, n int) (conns []*receiver, ended func(*receiver) bool) {
	b := newBudget()
	b.limit = limit
	causes := map[*receiver]context.Context{}
	for range n {
		ctx, cancel := context.WithCancelCause(context.Background())
		r := b.open(cancel)
		causes[r] = ctx
		conns = append(conns, r)
	}
	return conns, func(r *receiver) bool { return errors.Is(context.Cause(causes[r]), errCrowded) }
}

// TestTheLargestResponseMakesRoom_C15: a server that sends one and never ends it does not keep
// others from theirs.
func TestTheLargestResponseMakesRoom_C15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns, ended := crowd(10<<20, 2)
		large, small := conns[0], conns[1]
		for range 8 {
			large.take(1 << 20)
		}
		got := 0
		go func() {
			for range 5 {
				small.take(1 << 20)
				got++
			}
		}()
		synctest.Wait()
		if !ended(large) || ended(small) || got != 2 {
			t.Errorf("ended: %v and %v; the other has %d MiB while nothing is free", ended(large), ended(small), got)
		}
		large.close()
		synctest.Wait()
		if got != 5 || ended(small) || small.budget.held != 5<<20 {
			t.Errorf("the other has %d MiB, and %d bytes are counted", got, small.budget.held)
		}
	})
}

// TestReceivingWaitsForWhatIsHandled_C15: what is complete will be free soon, so no stream is
// ended for it.
func TestReceivingWaitsForWhatIsHandled_C15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns, ended := crowd(40<<20, 2)
		handled, other := conns[0], conns[1]
		handled.take(36 << 20)
		handled.handle()
		got := 0
		go func() {
			for range 30 {
				other.take(1 << 20)
				got++
			}
		}()
		synctest.Wait()
		if got != 4 || ended(handled) || ended(other) {
			t.Errorf("the other has %d MiB; ended: %v and %v", got, ended(handled), ended(other))
		}
		handled.handled()
		synctest.Wait()
		if got != 30 || ended(handled) || ended(other) || other.budget.held != 30<<20 {
			t.Errorf("the other has %d MiB, and %d bytes are counted; ended: %v and %v", got, other.budget.held, ended(handled), ended(other))
		}
	})
}

// TestAResponseCountsUntilItIsHandled_C15, with what it takes on the wire, and nothing of it is left.
func TestAResponseCountsUntilItIsHandled_C15(t *testing.T) {
	const size = 8 << 20
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seURL, fakexds.MCP("shop/a", &networking.ServiceEntry{Hosts: []string{strings.Repeat("x", size)}}))
	h := newRecorder()
	held, b := make(chan int, 100), inFlight
	h.reject = func(r *Response) error {
		if r.Len() > 0 {
			b.mu.Lock()
			defer b.mu.Unlock()
			held <- b.held
		}
		return nil
	}
	start(t, h, sotw, s.Addr)
	if n := await.Value(t, "a response", held); n < size-streamWindow || n > size+size/8 {
		t.Errorf("%d bytes are counted of a response of %d", n, size)
	}
	await.Until(t, "all is given back", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.held <= 2*streamWindow })
}
