package upstreams_test

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

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

// heldBy returns the bytes of what make makes and holds.
func heldBy(make func() any) int {
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what is finalized, or in a pool, goes with the second one
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := live()
	held := make()
	after := live()
	runtime.KeepAlive(held)
	return after - before
}

// TestAResourceCostsItsBytesAndALittle: the resource, its name, its record and the places in the
// store and in the record's scope.
func TestAResourceCostsItsBytesAndALittle(t *testing.T) {
	const n = 20_000
	b, encoded := fullState(t, n, nil), 0
	held := heldBy(func() any {
		x, store := quietXDS(t)
		handle(t, x, b)
		x.u.TakeChanges() // what waits for the disk
		for _, r := range store.List(xdsEntryKind, "") {
			encoded += len(r.DeltaEntry())
		}
		return x
	})
	t.Logf("a resource of %d bytes takes %d", encoded/n, held/n)
	if rest := (held - encoded) / n; rest > 260 {
		t.Errorf("a resource costs %d bytes beyond its own %d", rest, encoded/n)
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

// entriesOf encodes a response of n ServiceEntries of at least size bytes, in an order of their own:
// an istiod lists them in another one each time. The one of number changed, if any, has another host.
func entriesOf(tb testing.TB, n, size, changed int, order *rand.Rand) mem.BufferSlice {
	tb.Helper()
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: xdsEntryURL, VersionInfo: "1", Nonce: "n", Resources: make([]*anypb.Any, n)}
	at := make([]int, n)
	for i := range at {
		at[i] = i
	}
	if order != nil {
		at = order.Perm(n)
	}
	for i := range n {
		host := fmt.Sprintf("host-%d.example", i)
		if i == changed {
			host = "changed.example"
		}
		resp.Resources[at[i]] = xdsEntry(fmt.Sprintf("shop/entry-%d", i), host+strings.Repeat("x", max(0, size-190))).Any
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		tb.Fatal(err)
	}
	var buffers mem.BufferSlice
	for piece := range slices.Chunk(b, 16<<10) { // as gRPC receives them
		buffers = append(buffers, mem.SliceBuffer(piece))
	}
	return buffers
}

func handleBuffers(tb testing.TB, x *xdsSource, buffers mem.BufferSlice) {
	parsed, err := adsclient.Parse(buffers, false)
	if err == nil {
		err = x.HandleResponse(parsed)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// cpuTime returns what the process has used: other work on the machine has no part in it.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// BenchmarkFullState is the CPU of the full answer of an istiod, without that of gRPC.
func BenchmarkFullState(b *testing.B) {
	const n = 25_000
	for _, size := range []int{360, 1200} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			random := rand.New(rand.NewPCG(1, 2))
			first := entriesOf(b, n, size, -1, nil)
			b.Run("first", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					x, _ := quietXDS(b)
					handleBuffers(b, x, first)
				}
			})
			for name, answers := range map[string][]mem.BufferSlice{
				"unchanged":             {first},
				"one change":            {first, entriesOf(b, n, size, 5000, nil)},
				"one change, any order": {entriesOf(b, n, size, 5000, random), entriesOf(b, n, size, 5001, random), entriesOf(b, n, size, 5002, random)},
			} {
				b.Run(name, func(b *testing.B) {
					x, _ := quietXDS(b)
					for range 2 {
						handleBuffers(b, x, first)
					}
					b.ReportAllocs()
					began := cpuTime(b)
					for i := 0; b.Loop(); i++ {
						handleBuffers(b, x, answers[i%len(answers)])
					}
					b.ReportMetric(float64((cpuTime(b)-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
				})
			}
		})
	}
	b.Run("empty", func(b *testing.B) {
		x, _ := quietXDS(b)
		empty := entriesOf(b, 0, 0, -1, nil)
		handleBuffers(b, x, empty)
		b.ReportAllocs()
		for b.Loop() {
			handleBuffers(b, x, empty)
		}
	})
}
