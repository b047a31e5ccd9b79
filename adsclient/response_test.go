package adsclient

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestResponsesReadAsProtobufReadsThem(t *testing.T) {
	a := &anypb.Any{TypeUrl: "x/y", Value: []byte("value")}
	full := &discoveryv3.DiscoveryResponse{
		VersionInfo: "v", TypeUrl: "t", Nonce: "n", Resources: []*anypb.Any{a, {}, a},
		ControlPlane: &corev3.ControlPlane{Identifier: "id"}, Canary: true,
	}
	r, err := Parse(whole(mustMarshal(t, full)), false)
	if err != nil {
		t.Fatal(err)
	}
	if r.Version != "v" || r.TypeURL != "t" || r.Nonce != "n" || r.Len() != 3 || r.Delta || !r.Complete {
		t.Errorf("read %+v", r)
	}
	inc := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "v", TypeUrl: "t", Nonce: "n", RemovedResources: []string{"a", "b"},
		Resources:    []*discoveryv3.Resource{{Name: "one", Version: "1", Resource: a}, {Name: "two"}},
		ControlPlane: &corev3.ControlPlane{Identifier: "id"},
	}
	if r, err = Parse(whole(mustMarshal(t, inc)), true); err != nil {
		t.Fatal(err)
	}
	var got string
	for raw := range r.Resources(0) {
		got += fmt.Sprintf("%s/%s/%v ", raw.Name, raw.Version, bytes.Equal(raw.Any, mustMarshal(t, a)))
	}
	if got != "one/1/true two//false " || r.RemovedLen() != 2 || r.Complete {
		t.Errorf("read %+v: %s", r, got)
	}
}

func removed(r *Response) (names []string) {
	for name := range r.Removed() {
		names = append(names, string(name))
	}
	return names
}

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// whole is an encoded response in one piece.
func whole(data []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(data)} }

func TestTruncatedResponsesAreErrors(t *testing.T) {
	data := mustMarshal(t, &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: "t", Resources: []*discoveryv3.Resource{{Name: "one", Resource: &anypb.Any{TypeUrl: "x", Value: []byte("v")}}},
	})
	bad := 0
	for n := range data {
		if _, err := Parse(whole(data[:n]), true); err != nil {
			bad++
		}
	}
	if bad == 0 {
		t.Error("no truncation is noticed")
	}
}

func TestWhatIsSentBackOrKeptIsBounded_C6(t *testing.T) {
	long := strings.Repeat("x", maxOpaque+1)
	for name, resp := range map[string]*discoveryv3.DiscoveryResponse{
		"type URL": {TypeUrl: long[:maxTypeURL+1]}, "version": {TypeUrl: "t", VersionInfo: long}, "nonce": {TypeUrl: "t", Nonce: long},
	} {
		if _, err := Parse(whole(mustMarshal(t, resp)), false); err == nil || len(err.Error()) > 200 {
			t.Errorf("%s: error %v", name, err)
		}
	}
	good := &discoveryv3.DiscoveryResponse{
		TypeUrl: long[:maxTypeURL], VersionInfo: long[:maxOpaque], Nonce: long[:maxOpaque], ControlPlane: &corev3.ControlPlane{Identifier: "a\n" + long},
	}
	if _, err := Parse(whole(mustMarshal(t, good)), false); err != nil {
		t.Fatal(err)
	}
}

// largeResponse returns a SotW response of 10,000 resources, as the transport hands it
// over, and what reads it.
func largeResponse(tb testing.TB) (read func()) {
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: "t", Nonce: "n", VersionInfo: "v"}
	for i := range 10000 {
		resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: "type.googleapis.com/istio.mcp.v1alpha1.Resource", Value: fmt.Appendf(nil, "resource %d", i)})
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		tb.Fatal(err)
	}
	data := mem.BufferSlice{mem.SliceBuffer(b)}
	c := codec{encoding.GetCodecV2("proto")}
	return func() {
		var m rawMessage
		if err := c.Unmarshal(data, &m); err != nil {
			tb.Fatal(err)
		}
		r, err := Parse(m.buffers, false)
		if err != nil {
			tb.Fatal(err)
		}
		n := 0
		for raw := range r.Resources(0) {
			n += len(raw.Any)
		}
		if n == 0 {
			tb.Fatal("nothing read")
		}
		m.buffers.Free()
	}
}

func TestALargeResponseIsReadWithFewAllocations(t *testing.T) {
	if allocs := testing.AllocsPerRun(10, largeResponse(t)); allocs > 20 {
		t.Errorf("%v allocations for 10,000 resources", allocs)
	}
}

func BenchmarkReadLargeResponse(b *testing.B) {
	read := largeResponse(b)
	b.ReportAllocs()
	for b.Loop() {
		read()
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add(mustMarshal(f, &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: "t", Nonce: "n", Resources: []*anypb.Any{{TypeUrl: "x", Value: []byte("v")}}}), false)
	f.Add(mustMarshal(f, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Resources: []*anypb.Any{{TypeUrl: "x", Value: make([]byte, 3*placedBytes)}, {TypeUrl: "y"}, {}}}), false)
	f.Add(mustMarshal(f, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t", Nonce: "n", RemovedResources: []string{"a"},
		Resources: []*discoveryv3.Resource{{Name: "one", Version: "1", Resource: &anypb.Any{TypeUrl: "x"}}}}), true)
	f.Fuzz(func(t *testing.T, data []byte, delta bool) {
		r, err := Parse(whole(data), delta)
		sameInPieces(t, r, err, data, delta)
		if err == nil && !slices.Equal(contents(r), contents(walked(r))) {
			t.Fatalf("%q at the places, and %q in the message", contents(r), contents(walked(r)))
		}
		if delta {
			want := &discoveryv3.DeltaDiscoveryResponse{}
			if proto.Unmarshal(data, want) != nil {
				return // protobuf may be stricter: about what we pass through
			}
			if len(want.TypeUrl) > maxTypeURL || max(len(want.SystemVersionInfo), len(want.Nonce)) > maxOpaque {
				if err == nil {
					t.Fatal("what is sent back is not bounded")
				}
				return
			}
			if err != nil {
				t.Fatalf("protobuf reads it, we do not: %v", err)
			}
			if r.TypeURL != want.TypeUrl || r.Nonce != want.Nonce || r.Len() != len(want.Resources) || r.RemovedLen() != len(want.RemovedResources) {
				t.Fatalf("read %+v, want %v", r, want)
			}
			i := 0
			for raw := range r.Resources(0) {
				if string(raw.Name) != want.Resources[i].Name || string(raw.Version) != want.Resources[i].Version {
					t.Fatalf("resource %d: %q %q, want %v", i, raw.Name, raw.Version, want.Resources[i])
				}
				if (raw.Any != nil) != (want.Resources[i].Resource != nil) {
					t.Fatalf("resource %d: element %x, want %v", i, raw.Any, want.Resources[i])
				}
				sameAny(t, raw.Any, want.Resources[i].Resource)
				i++
			}
			if !slices.Equal(removed(r), want.RemovedResources) || r.Version != want.SystemVersionInfo {
				t.Fatalf("read %+v, want %v", r, want)
			}
			return
		}
		want := &discoveryv3.DiscoveryResponse{}
		if proto.Unmarshal(data, want) != nil {
			return
		}
		if len(want.TypeUrl) > maxTypeURL || max(len(want.VersionInfo), len(want.Nonce)) > maxOpaque {
			if err == nil {
				t.Fatal("what is sent back is not bounded")
			}
			return
		}
		if err != nil {
			t.Fatalf("protobuf reads it, we do not: %v", err)
		}
		if r.TypeURL != want.TypeUrl || r.Nonce != want.Nonce || r.Version != want.VersionInfo || r.Len() != len(want.Resources) {
			t.Fatalf("read %+v, want %v", r, want)
		}
		i := 0
		for raw := range r.Resources(0) {
			sameAny(t, raw.Any, want.Resources[i])
			i++
		}
	})
}

// sameInPieces compares a response with that of the same bytes in pieces.
func sameInPieces(t *testing.T, whole *Response, wholeErr error, data []byte, delta bool) {
	t.Helper()
	for _, n := range []int{1, 7} {
		r, err := Parse(pieces(data, n), delta)
		if (err == nil) != (wholeErr == nil) {
			t.Fatalf("in pieces of %d: %v, and as a whole %v", n, err, wholeErr)
		}
		if err != nil {
			continue
		}
		if got, want := contents(r), contents(whole); !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d: %q, and as a whole %q", n, got, want)
		}
	}
}

// pieces returns data as it comes in frames of n bytes.
func pieces(data []byte, n int) (out mem.BufferSlice) {
	for part := range slices.Chunk(data, n) {
		out = append(out, mem.SliceBuffer(part))
	}
	return out
}

// contents returns all that a response tells, with a limit that large resources are over.
func contents(r *Response) []string {
	all := append([]string{r.TypeURL, r.Version, r.Nonce}, removed(r)...)
	for raw := range r.Resources(64) {
		all = append(all, string(raw.Name), string(raw.Version), string(raw.Any), string(raw.Peek()), fmt.Sprint(raw.Size))
	}
	return all
}

func sameAny(t *testing.T, data []byte, want *anypb.Any) {
	t.Helper()
	got := &anypb.Any{}
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatalf("element does not decode: %v", err)
	}
	if got.TypeUrl != want.GetTypeUrl() || !bytes.Equal(got.Value, want.GetValue()) {
		t.Fatalf("element %v, want %v", got, want)
	}
}
