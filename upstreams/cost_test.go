package upstreams_test

import (
	"fmt"
	"io"
	"log/slog"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/mirror"
)

// Costs of an istiod's full-state response, counted in allocations and changes.

// fullState encodes a response of n resources. Of those, the ones in changed have the
// given host.
func fullState(tb testing.TB, n int, changed map[int]string) []byte {
	tb.Helper()
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: xdsEntryURL, VersionInfo: "1", Nonce: "n"}
	for i := range n {
		host := fmt.Sprintf("host-%d.example", i)
		if h, ok := changed[i]; ok {
			host = h
		}
		resp.Resources = append(resp.Resources, xdsEntry(fmt.Sprintf("shop/entry-%d", i), host).Any)
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// quietXDS returns a source without a connection, and its store.
func quietXDS(tb testing.TB) (*xdsSource, *mirror.Store) {
	tb.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	x, err := newXDS(cfg, node, config.Provenance{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		tb.Fatal(err)
	}
	x.Attach(x.u)
	x.HandleState(adsclient.State{Phase: adsclient.Streaming, Protocol: adsclient.SotW})
	return x, x.u.Store()
}

func handle(tb testing.TB, x *xdsSource, b []byte) {
	parsed, err := adsclient.Parse(mem.BufferSlice{mem.SliceBuffer(b)}, false)
	if err == nil {
		err = x.HandleResponse(parsed)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// TestUnchangedResourcesCostNothing: a response of known resources costs no allocation for each.
func TestUnchangedResourcesCostNothing(t *testing.T) {
	x, store := quietXDS(t)
	b := fullState(t, 10000, nil)
	handle(t, x, b)
	if n := len(store.List(xdsEntryKind, "")); n != 10000 {
		t.Fatalf("%d resources", n)
	}
	if allocs := testing.AllocsPerRun(5, func() { handle(t, x, b) }); allocs > 30 {
		t.Errorf("%v allocations for 10,000 unchanged resources", allocs)
	}
}

// TestOneChangeInAFullStateCostsOneResource: what else the response has is not decoded,
// stored or told again.
func TestOneChangeInAFullStateCostsOneResource(t *testing.T) {
	x, store := quietXDS(t)
	two := [][]byte{fullState(t, 10000, map[int]string{5000: "a.example"}), fullState(t, 10000, map[int]string{5000: "b.example"})}
	handle(t, x, two[0])
	before := map[string]*mirror.Resource{}
	for _, r := range store.List(xdsEntryKind, "") {
		before[r.FullName()] = r
	}
	i := 0
	if allocs := testing.AllocsPerRun(5, func() { i++; handle(t, x, two[i%2]) }); allocs > 60 {
		t.Errorf("%v allocations for one change among 10,000 resources", allocs)
	}
	replaced := 0
	for _, r := range store.List(xdsEntryKind, "") {
		if r != before[r.FullName()] {
			replaced++
		}
	}
	if replaced > 1 {
		t.Errorf("%d resources were stored again", replaced)
	}
}

func BenchmarkFullState(b *testing.B) {
	unchanged := fullState(b, 10000, map[int]string{5000: "a.example"})
	changed := fullState(b, 10000, map[int]string{5000: "b.example"})
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x, _ := quietXDS(b)
			handle(b, x, unchanged)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		x, _ := quietXDS(b)
		handle(b, x, unchanged)
		b.ReportAllocs()
		for b.Loop() {
			handle(b, x, unchanged)
		}
	})
	b.Run("one change", func(b *testing.B) {
		x, _ := quietXDS(b)
		two := [][]byte{unchanged, changed}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			handle(b, x, two[i%2])
		}
	})
}
