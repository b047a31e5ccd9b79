package downstream

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
)

// TestCompressedRequestsAreRefused: what is small on the wire would be large here.
func TestCompressedRequestsAreRefused(t *testing.T) {
	r := startRelay(t, true)
	d := r.delta(grpc.WithCompressor(grpc.NewGZIPCompressor())) //nolint:staticcheck // the other way registers it for the server, too
	d.send(subscribeDelta(seV1))
	end := d.end()
	wantCode(t, end, codes.Unimplemented)
	if !strings.Contains(end.Error(), "gzip") {
		t.Errorf("the client is told %q", end)
	}
}

// TestFirstRequestIsBoundedByTheNode: the answer names the limit, and nothing is decoded.
func TestFirstRequestIsBoundedByTheNode(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxNodeBytes = 4096 })
	large := strings.Repeat("x", 4096+firstRequestBytes)
	s, d := r.sotw(), r.delta()
	s.send(&discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: seV1, ErrorDetail: details(1 << 20)})
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: seV1, InitialResourceVersions: map[string]string{"shop/a": large}})
	for _, end := range []error{s.end(), d.end()} {
		wantCode(t, end, codes.ResourceExhausted)
		if !strings.Contains(end.Error(), "more than 266240 (the node") {
			t.Errorf("the client is told %q", end)
		}
	}
	wantRefused(t, r, refusal.Bytes, 2)
	fits := r.delta()
	req := &discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: seV1, InitialResourceVersions: map[string]string{"shop/a": ""}}
	req.InitialResourceVersions["shop/a"] = strings.Repeat("x", 4096+firstRequestBytes-proto.Size(req)-8)
	fits.send(req)
	fits.next()
	fits.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, InitialResourceVersions: map[string]string{"shop/a": large}})
	fits.next() // a later one may be larger
}

// details returns an error with n details, of two bytes each.
func details(n int) *rpcstatus.Status {
	d := &rpcstatus.Status{Message: "no", Details: make([]*anypb.Any, n)}
	for i := range d.Details {
		d.Details[i] = &anypb.Any{}
	}
	return d
}

func newIncoming(first bool) *incoming {
	limits := &atomic.Pointer[Limits]{}
	limits.Store(Limits{}.complete())
	return &incoming{ctx: context.Background(), decoding: newDecoding(32 << 20), limits: limits, first: first}
}

// decode decodes an encoded request, and puts what was read of it into one of its type.
func (in *incoming) decode(t testing.TB, raw []byte, into proto.Message) error {
	t.Helper()
	in.ctx = t.Context()
	in.fields = fieldsOf[protocolSotW]
	if _, delta := into.(*discoveryv3.DeltaDiscoveryRequest); delta {
		in.fields = fieldsOf[protocolDelta]
	}
	if err := in.take(mem.BufferSlice{mem.SliceBuffer(raw)}); err != nil {
		return err
	}
	if in.err != nil {
		return in.err
	}
	req := in.req
	var detail *rpcstatus.Status
	if req.Rejected {
		detail = &rpcstatus.Status{Message: req.Error}
	}
	switch m := into.(type) {
	case *discoveryv3.DiscoveryRequest:
		m.TypeUrl, m.ResponseNonce, m.ErrorDetail, m.Node = req.TypeURL, req.Nonce, detail, req.node
		m.VersionInfo, m.ResourceNames = req.Version, req.Subscribe
		if req.Unsubscribe != nil || req.Versions != nil {
			t.Errorf("a SotW request has %v", req)
		}
	case *discoveryv3.DeltaDiscoveryRequest:
		m.TypeUrl, m.ResponseNonce, m.ErrorDetail, m.Node = req.TypeURL, req.Nonce, detail, req.node
		m.ResourceNamesSubscribe, m.ResourceNamesUnsubscribe, m.InitialResourceVersions = req.Subscribe, req.Unsubscribe, req.Versions
		if req.Version != "" {
			t.Errorf("a delta request has the version %q", req.Version)
		}
	}
	return nil
}

// TestNoFieldCostsManyTimesItsBytes: lists of what is next to nothing when encoded are left
// out, counted, or in bounds.
func TestNoFieldCostsManyTimesItsBytes(t *testing.T) {
	const size = 4 << 20
	field := func(num protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), v)
	}
	for _, tc := range []struct {
		name    string
		into    proto.Message
		raw     []byte
		refused bool
	}{
		{"SotW error details", &discoveryv3.DiscoveryRequest{}, field(6, bytes.Repeat(field(3, nil), size/2)), false},
		{"delta error details", &discoveryv3.DeltaDiscoveryRequest{}, field(7, bytes.Repeat(field(3, nil), size/2)), false},
		{"SotW names", &discoveryv3.DiscoveryRequest{}, bytes.Repeat(field(3, nil), size/2), true},
		{"delta names", &discoveryv3.DeltaDiscoveryRequest{}, bytes.Repeat(field(3, nil), size/2), true},
		{"delta names to leave", &discoveryv3.DeltaDiscoveryRequest{}, bytes.Repeat(field(4, nil), size/2), true},
		{"versions", &discoveryv3.DeltaDiscoveryRequest{}, bytes.Repeat(field(5, nil), size/2), true},
		{"locators", &discoveryv3.DiscoveryRequest{}, bytes.Repeat(field(7, nil), size/2), false},
		{"unknown fields", &discoveryv3.DiscoveryRequest{}, bytes.Repeat(field(99, nil), size/3), false},
		{"node of a later request", &discoveryv3.DiscoveryRequest{}, field(2, bytes.Repeat(field(9, nil), size/2)), false},
		{"version", &discoveryv3.DiscoveryRequest{}, field(1, make([]byte, size)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := newIncoming(false)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := in.decode(t, tc.raw, tc.into)
			runtime.ReadMemStats(&after)
			if refusal.Is(err) != tc.refused || err != nil && !refusal.Is(err) {
				t.Errorf("refused with %v", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > size/16 {
				t.Errorf("%d bytes to decode %d", n, len(tc.raw))
			}
		})
	}
	in := newIncoming(true)
	n := node()
	raw := must(proto.Marshal(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1}))
	raw = append(raw, field(2, bytes.Repeat(field(9, nil), 100<<10))...) // extensions
	req := &discoveryv3.DiscoveryRequest{}
	if err := in.decode(t, raw, req); err != nil || len(req.Node.GetExtensions()) != 0 || req.Node.GetId() != n.Id {
		t.Errorf("%v, node %q with %d extensions", err, req.Node.GetId(), len(req.Node.GetExtensions()))
	}
}

// TestRequestsAreDecodedInTurn: all streams have one budget, and what is small does not wait.
func TestRequestsAreDecodedInTurn(t *testing.T) {
	r := startRelay(t, true)
	d := r.deltaBy("a", seV1)
	d.next()
	if !r.server.decoding.used.TryAcquire(mostDecoding) {
		t.Fatal("something is being decoded")
	}
	waits := r.deltaBy("b", seV1)
	waits.next()
	waits.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", smallRequest)}})
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1})
	d.next()
	for _, c := range r.server.Clients() {
		if c.NodeID == "b" && len(c.Types) != 1 {
			t.Error("a large request was decoded over the budget")
		}
	}
	gone := r.deltaBy("c", seV1)
	gone.next()
	gone.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", smallRequest)}})
	gone.cancel()
	r.eventually(t, "a stream that has ended waits no longer", func() bool { return len(r.server.Clients()) == 2 })
	r.server.decoding.used.Release(mostDecoding)
	waits.next()
}

// TestAcknowledgementIsLookedAtWithoutAllocation: an ACK costs no more than what decoding it
// by itself does.
func TestAcknowledgementIsLookedAtWithoutAllocation(t *testing.T) {
	for name, tc := range map[string]struct {
		ack      proto.Message
		protocol string
		fresh    func() proto.Message
	}{
		"SotW": {ack(&discoveryv3.DiscoveryResponse{TypeUrl: seV1, VersionInfo: "AAAAAAAAAAAAAAAAAAAAAA", Nonce: "17"}), protocolSotW,
			func() proto.Message { return &discoveryv3.DiscoveryRequest{} }},
		"delta": {&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: "17"}, protocolDelta,
			func() proto.Message { return &discoveryv3.DeltaDiscoveryRequest{} }},
	} {
		t.Run(name, func(t *testing.T) {
			raw := must(proto.Marshal(tc.ack))
			if n := testing.AllocsPerRun(100, func() {
				if o, err := fieldsOf[tc.protocol].outline(raw); err != nil || string(o.typeURL) != seV1 {
					t.Fatal(o, err)
				}
			}); n != 0 {
				t.Errorf("%v allocations to look at it", n)
			}
			in, data := newIncoming(false), mem.BufferSlice{mem.SliceBuffer(raw)}
			in.ctx, in.fields = t.Context(), fieldsOf[tc.protocol]
			ours := testing.AllocsPerRun(100, func() {
				if err := in.take(data); err != nil {
					t.Fatal(err)
				}
			})
			theirs := testing.AllocsPerRun(100, func() {
				if err := (codec{encoding.GetCodecV2("proto")}).Unmarshal(data, tc.fresh()); err != nil {
					t.Fatal(err)
				}
			})
			if ours > theirs {
				t.Errorf("%v allocations to decode it, %v by protobuf", ours, theirs)
			}
		})
	}
}

// FuzzDecodeRequest: what the relay reads of a request is what protobuf reads.
func FuzzDecodeRequest(f *testing.F) {
	for _, m := range []proto.Message{
		subscribe(seV1), subscribeDelta(seV1),
		&discoveryv3.DiscoveryRequest{Node: node("CLUSTER_ID", "west"), TypeUrl: seV1, ResourceNames: []string{"a", "*"}, VersionInfo: "1", ResponseNonce: "2", ErrorDetail: details(2)},
		&discoveryv3.DeltaDiscoveryRequest{Node: node("LABELS", "x"), TypeUrl: seV1, ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
			InitialResourceVersions: map[string]string{"a": "1", "b": ""}, ResponseNonce: "2", ErrorDetail: details(1)},
	} {
		f.Add(must(proto.Marshal(m)), false)
		f.Add(must(proto.Marshal(m)), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, delta bool) {
		var got, want proto.Message = &discoveryv3.DiscoveryRequest{}, &discoveryv3.DiscoveryRequest{}
		if delta {
			got, want = &discoveryv3.DeltaDiscoveryRequest{}, &discoveryv3.DeltaDiscoveryRequest{}
		}
		err := newIncoming(true).decode(t, raw, got)
		if wantErr := proto.Unmarshal(raw, want); wantErr != nil {
			return // protobuf also refuses what the relay does not look at
		}
		if refusal.Is(err) {
			return
		}
		if err != nil {
			t.Fatalf("%v, which protobuf decodes", err)
		}
		var typeURL string
		switch m := want.(type) {
		case *discoveryv3.DiscoveryRequest:
			typeURL = m.TypeUrl
			m.ResourceLocators, m.ErrorDetail = nil, lean(m.ErrorDetail)
			m.Node = leanNode(m.Node, typeURL)
			cutAll(&m.TypeUrl, &m.VersionInfo, &m.ResponseNonce)
		case *discoveryv3.DeltaDiscoveryRequest:
			typeURL = m.TypeUrl
			m.ResourceLocatorsSubscribe, m.ResourceLocatorsUnsubscribe, m.ErrorDetail = nil, nil, lean(m.ErrorDetail)
			m.Node = leanNode(m.Node, typeURL)
			cutAll(&m.TypeUrl, &m.ResponseNonce)
		}
		want.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(got, want) {
			t.Errorf("read %v\nwant %v", got, want)
		}
	})
}

func lean(st *rpcstatus.Status) *rpcstatus.Status {
	if st == nil {
		return nil
	}
	cutAll(&st.Message)
	return &rpcstatus.Status{Message: st.Message}
}

func leanNode(n *corev3.Node, typeURL string) *corev3.Node {
	if n == nil || typeURL == healthType {
		return nil
	}
	return &corev3.Node{Id: n.Id, Metadata: n.Metadata}
}

func cutAll(texts ...*string) {
	for _, s := range texts {
		*s = (*s)[:min(len(*s), maxToken)]
	}
}

// TestNodeIsReadAsItIsMerged: a field of a message that comes twice is one.
func TestNodeIsReadAsItIsMerged(t *testing.T) {
	one := must(proto.Marshal(&discoveryv3.DiscoveryRequest{Node: node("CLUSTER_ID", "west")}))
	two := must(proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: seV1, Node: &corev3.Node{Metadata: &structpb.Struct{
		Fields: map[string]*structpb.Value{"ISTIO_REVISION": structpb.NewStringValue("blue")}}}}))
	req := &discoveryv3.DiscoveryRequest{}
	if err := newIncoming(true).decode(t, append(one, two...), req); err != nil {
		t.Fatal(err)
	}
	c := must(views.ParseNode(req.Node))
	if c.NodeID != node().Id || c.ClusterID != "west" || c.Revision != "blue" {
		t.Errorf("read %+v", c)
	}
}
