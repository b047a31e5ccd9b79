package adsclient

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// sizedAnswer encodes a SotW response with resources of these sizes, some of equal content, and with other
// fields between them.
func sizedAnswer(random *rand.Rand, sizes ...int) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "v")
	for _, n := range sizes {
		if random.IntN(8) == 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), random.Uint64())
		}
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendBytes(b, bytes.Repeat([]byte{'a' + byte(random.IntN(3))}, n))
	}
	return protowire.AppendString(protowire.AppendTag(b, 4, protowire.BytesType), "t")
}

// walked returns a response without the places of its resources.
func walked(r *Response) *Response {
	plain := *r
	plain.places = nil
	return &plain
}

func TestResourcesAreFoundAtTheirPlaces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		sizes := make([]int, 1+random.IntN(100))
		for i := range sizes {
			sizes[i] = random.IntN(600)
		}
		sizes[0] = 20_000 // is spread over buffers, and makes room for places
		data := sizedAnswer(random, sizes...)
		for _, n := range []int{1, 7, 16 << 10} {
			r, err := Parse(pieces(data, n), false)
			if err != nil {
				t.Fatal(err)
			}
			if r.Len() != len(sizes) || r.Marks() == nil {
				t.Fatalf("%d resources, want %d with marks", r.Len(), len(sizes))
			}
			if got, want := contents(r), contents(walked(r)); !slices.Equal(got, want) {
				t.Fatalf("in pieces of %d: %q at the places, and %q in the message", n, got, want)
			}
			r.free()
		}
	}
}

func TestMarksAreThoseOfTheContent(t *testing.T) {
	data := sizedAnswer(rand.New(rand.NewPCG(1, 2)), 300, 300, 300, 300, 300, 300, 301, maxMarked, maxMarked+1)
	r, err := Parse(pieces(data, 16<<10), false)
	if err != nil {
		t.Fatal(err)
	}
	contentOf, markOf := map[uint64]string{}, map[string]uint64{}
	var marks []uint64
	for mark, size := range r.Marks() {
		if (mark == 0) != (size > maxMarked) {
			t.Errorf("%d bytes have the mark %x", size, mark)
		}
		marks = append(marks, mark)
	}
	i := 0
	for raw := range r.Resources(0) {
		if content := string(raw.Any); raw.Mark != 0 {
			if had, ok := contentOf[raw.Mark]; ok && had != content {
				t.Error("other content has the same mark")
			}
			if had, ok := markOf[content]; ok && had != raw.Mark {
				t.Error("equal content has another mark")
			}
			contentOf[raw.Mark], markOf[content] = content, raw.Mark
		}
		if raw.Mark != marks[i] {
			t.Errorf("resource %d has the mark %x, told as %x", i, raw.Mark, marks[i])
		}
		i++
	}
	var left []int
	for raw := range r.Unknown(0, func(_ uint64, size int) bool { return size != 301 }) {
		left = append(left, raw.Size)
	}
	if !slices.Equal(left, []int{301, maxMarked + 1}) { // one that has no mark is never known
		t.Errorf("resources of %d bytes are not known", left)
	}
}

func TestPlacesTakeAnEighthOfAResponse_C15(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, sizes := range map[string][]int{
		"small":            slices.Repeat([]int{2}, 1<<18),
		"small, after one": append([]int{placedBytes * 2}, slices.Repeat([]int{2}, 1<<18)...),
		"large, and small": append(slices.Repeat([]int{4 * placedBytes}, 1000), slices.Repeat([]int{2}, 1<<18)...),
	} {
		data := pieces(sizedAnswer(random, sizes...), 16<<10)
		n := allocated(func() {
			r, err := Parse(data, false)
			if err != nil || r.Len() != len(sizes) || r.Marks() != nil {
				t.Errorf("%s: %v, %d resources, marks %t", name, err, r.Len(), r.Marks() != nil)
			}
		})
		if most := data.Len()/4 + 64<<10; n > uint64(most) {
			t.Errorf("%s: %d bytes were allocated for a response of %d", name, n, data.Len())
		}
	}
}

func TestAnAnswerIsPlacedWithFewAllocations(t *testing.T) {
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: "t", Nonce: "n", VersionInfo: "v"}
	for i := range 10_000 {
		resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: "type.googleapis.com/istio.mcp.v1alpha1.Resource", Value: fmt.Appendf(nil, "%0300d", i)})
	}
	data := pieces(mustMarshal(t, resp), 16<<10)
	allocs := testing.AllocsPerRun(10, func() {
		r, err := Parse(data, false)
		if err != nil || r.Marks() == nil {
			t.Fatal(err)
		}
		for range r.Unknown(0, func(uint64, int) bool { return true }) {
			t.Fatal("what is known is told")
		}
		r.freePlaces()
	})
	if allocs > 20 {
		t.Errorf("%v allocations for %d resources", allocs, len(resp.Resources))
	}
}
