package wire

import (
	"bytes"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestResponsesAreWalkedWhereverTheyAreCut(t *testing.T) {
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: "7", TypeUrl: "a/b/C", Nonce: "n", Canary: true}
	for range 3 {
		resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: "x", Value: bytes.Repeat([]byte{1}, 200)})
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	size := 2 + 1 + proto.Size(resp.Resources[0]) // with tag and length
	for cut := range b {
		data := mem.BufferSlice{mem.SliceBuffer(b[:cut]), mem.SliceBuffer(nil), mem.SliceBuffer(b[cut:])}
		h, err := ReadHead(data)
		if err != nil || h != (Head{TypeURL: "a/b/C", Nonce: "n", Resources: 3, From: 3, To: 3 + 3*size}) {
			t.Fatalf("cut at %d: %+v, %v", cut, h, err)
		}
		all := Copy(data, h.From, h.To)
		if !bytes.Equal(all, b[h.From:h.To]) || !Equal(data, h.From, all) {
			t.Fatalf("cut at %d: the resources are %x", cut, all)
		}
		for i := range all {
			all[i]++
			if Equal(data, h.From, all) {
				t.Fatalf("cut at %d: equal to what differs at %d", cut, i)
			}
			all[i]--
		}
		if Equal(data, h.From, append(all, b...)) {
			t.Fatalf("cut at %d: equal to what is longer", cut)
		}
		n := 0
		err = Walk(data, func(num protowire.Number, size int, r *Reader) bool {
			v, ok := r.Take(size)
			if num == FieldResources {
				a := &anypb.Any{}
				if err := proto.Unmarshal(v, a); err != nil || !proto.Equal(a, resp.Resources[n]) {
					t.Fatalf("cut at %d: resource %d: %v, %v", cut, n, a, err)
				}
				n++
			}
			return ok
		})
		if err != nil || n != 3 {
			t.Fatalf("cut at %d: %d resources, %v", cut, n, err)
		}
	}
	for _, short := range []int{1, 5, 100, len(b) - 1} {
		if _, err := ReadHead(mem.BufferSlice{mem.SliceBuffer(b[:short])}); err == nil {
			t.Errorf("%d bytes of %d are read without an error", short, len(b))
		}
	}
}

func TestFieldIsTheLastOfItsNumber(t *testing.T) {
	b := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "first")
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 5)
	b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), "last")
	if got := string(Field(b, 3)); got != "last" {
		t.Errorf("got %q", got)
	}
}
