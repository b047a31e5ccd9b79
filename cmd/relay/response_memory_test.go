//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"

	"meshrelay/internal/testing/await"
)

// rawCodec sends bytes unchanged.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(mem.BufferSlice); ok {
		raw.Ref()
		return raw, nil
	}
	return c.CodecV2.Marshal(v)
}

// hostile is a server that sends a given answer for ServiceEntries, and empty answers for other types.
type hostile struct {
	addr   string
	delta  bool
	answer mem.BufferSlice // without its type URL and nonce
	// asked is closed when all servers that answer at the same time were asked. Nil: there are no others.
	asked <-chan struct{}
	// wasAsked tells that this one was.
	wasAsked func()
}

// upstream returns the config of the server as an upstream.
func (h *hostile) upstream(name string) string {
	protocol := "sotw"
	if h.delta {
		protocol = "delta"
	}
	return fmt.Sprintf("- {name: %s, xds: {addresses: [%q], plaintext: true, protocol: %s}}\n", name, h.addr, protocol)
}

func startHostile(t *testing.T, h *hostile) *hostile {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2("proto")}), grpc.UnknownServiceHandler(h.serve)}
	s := grpc.NewServer(options...)
	go s.Serve(lis) //nolint:errcheck // it ends with Stop
	t.Cleanup(s.Stop)
	h.addr = lis.Addr().String()
	return h
}

func (h *hostile) serve(_ any, stream grpc.ServerStream) error {
	if method, _ := grpc.MethodFromServerStream(stream); strings.Contains(method, "Delta") != h.delta {
		return status.Error(codes.Unimplemented, "the other one")
	}
	for n := 0; ; n++ {
		typeURL, nonce, err := h.receive(stream)
		if err != nil {
			return err
		}
		if nonce != "" {
			continue
		}
		var resp proto.Message = &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: strconv.Itoa(n + 1), VersionInfo: "1"}
		if h.delta {
			resp = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: strconv.Itoa(n + 1), SystemVersionInfo: "1"}
		}
		head, err := proto.Marshal(resp)
		if err != nil {
			return err
		}
		out := mem.BufferSlice{mem.SliceBuffer(head)}
		if typeURL == entryType {
			if h.asked != nil {
				h.wasAsked()
				<-h.asked
			}
			out = append(out, h.answer...)
		}
		if err := stream.SendMsg(out); err != nil {
			return err
		}
	}
}

func (h *hostile) receive(stream grpc.ServerStream) (typeURL, nonce string, err error) {
	if h.delta {
		req := &discoveryv3.DeltaDiscoveryRequest{}
		err = stream.RecvMsg(req)
		return req.TypeUrl, req.ResponseNonce, err
	}
	req := &discoveryv3.DiscoveryRequest{}
	err = stream.RecvMsg(req)
	return req.TypeUrl, req.ResponseNonce, err
}

// head returns the head of a length-delimited field of n bytes.
func head(number protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.BytesType), uint64(n)) // not negative
}

// field returns a length-delimited field.
func field(number protowire.Number, value []byte) []byte {
	return append(head(number, len(value)), value...)
}

// huge returns a field of n bytes that begins with inner.
func huge(number protowire.Number, n int, inner ...[]byte) mem.BufferSlice {
	begin := bytes.Join(inner, nil)
	out := mem.BufferSlice{mem.SliceBuffer(append(head(number, n), begin...))}
	chunk := mem.SliceBuffer(bytes.Repeat([]byte("a"), mib)) // one copy in memory for all uses
	for n -= len(begin); n > len(chunk); n -= len(chunk) {
		out = append(out, chunk)
	}
	return append(out, chunk[:n])
}

// again repeats a field to about n bytes.
func again(n int, field []byte) (out mem.BufferSlice) {
	chunk := mem.SliceBuffer(bytes.Repeat(field, mib/len(field)))
	for ; n > 0; n -= len(chunk) {
		out = append(out, chunk)
	}
	return out
}

// entryOf returns the encoded element of a ServiceEntry with a host of n bytes.
func entryOf(t *testing.T, name string, n int) []byte {
	t.Helper()
	value, err := proto.Marshal(&mcp.Resource{
		Metadata: &mcp.Metadata{Name: name, Version: "1"},
		Body:     &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry", Value: field(1, bytes.Repeat([]byte("h"), n))},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(&anypb.Any{TypeUrl: "type.googleapis.com/istio.mcp.v1alpha1.Resource", Value: value})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// peak returns the most memory that the process has had, in bytes.
func (p *process) peak() int {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			kib, err := strconv.Atoi(f[1])
			if err != nil {
				p.t.Fatal(err)
			}
			return kib << 10
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

const mib = 1 << 20

// TestAResponseIsInMemoryOnce_C15 sends responses of 60 MiB, just below the limit. The rest of the relay needs 45 MiB,
// and refused resources leave some garbage. The test below sends those of the default limit.
func TestAResponseIsInMemoryOnce_C15(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory of its own: make unit without RACE runs this")
	}
	if testing.Short() {
		t.Skip("it moves some GiB: go test without -short runs this")
	}
	const size, limit, most = 60 * mib, 64 * mib, 150 * mib // a response may have an eighth of the memory
	element := bytes.Join([][]byte{
		[]byte("\x0a\x2ftype.googleapis.com/istio.mcp.v1alpha1.Resource"), head(2, size-100), head(1, 9), []byte("\x0a\x07shop/db"), head(2, size-200),
	}, nil)
	const refused, broken = "refused in part", "does not decode"
	for name, tc := range map[string]struct {
		answer mem.BufferSlice
		delta  bool
		want   string // in the log; empty: it is taken
	}{
		"one identifier":           {answer: huge(6, size, head(1, size-6)), want: broken},
		"one version":              {answer: huge(1, size), want: broken},
		"one resource":             {answer: huge(2, size, element), want: "shop/db: over the limit"},
		"one name again and again": {answer: again(size, field(2, entryOf(t, "shop/db", 1000))), want: refused},
		"empty resources":          {answer: again(size, field(2, nil)), want: broken},
		"names of removed ones":    {answer: again(size, field(6, []byte("shop/"+strings.Repeat("x", 60)))), delta: true},
		"short removed names":      {answer: again(size, field(6, []byte("x"))), delta: true, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHostile(t, &hostile{answer: tc.answer, delta: tc.delta})
			p := newProcess(t, "downstream: {LISTEN}\nupstreams:\n"+h.upstream("east"))
			p.env = []string{fmt.Sprint("GOMEMLIMIT=", 8*limit)}
			p.start()
			defer p.kill()
			if tc.want == "" {
				p.awaitReady(t)
			} else {
				p.awaitLog(tc.want)
			}
			if got := p.peak(); got > most {
				t.Errorf("%d MiB, want at most %d MiB", got/mib, most/mib)
			} else {
				t.Logf("%d MiB", got/mib)
			}
		})
	}
}

// TestResponsesOfAllUpstreamsAreBoundedTogether_C15: three servers answer with 250 MiB at the same time. The relay has
// no memory limit here, so that half of what is held may be garbage.
func TestResponsesOfAllUpstreamsAreBoundedTogether_C15(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory of its own: make unit without RACE runs this")
	}
	if testing.Short() {
		t.Skip("it moves some GiB: go test without -short runs this")
	}
	const size, most = 250 * mib, 560 * mib
	config := "downstream: {LISTEN}\nupstreams:\n"
	asked, missing := make(chan struct{}), atomic.Int32{}
	missing.Store(3)
	for _, name := range []string{"east", "west", "north"} {
		wasAsked := sync.OnceFunc(func() {
			if missing.Add(-1) == 0 {
				close(asked)
			}
		})
		config += startHostile(t, &hostile{answer: again(size, field(6, []byte("shop/"+strings.Repeat("x", 60)))), delta: true, asked: asked, wasAsked: wasAsked}).upstream(name)
	}
	p := newProcess(t, config)
	p.start()
	defer p.kill()
	p.awaitReady(t)
	if got := p.peak(); got > most {
		t.Errorf("%d MiB, want at most %d MiB", got/mib, most/mib)
	} else {
		t.Logf("%d MiB", got/mib)
	}
	if !strings.Contains(p.logged(), "too large to be received at once") {
		t.Error("nothing waited: the servers did not answer at the same time")
	}
}

// awaitLog waits until a line of the log has a text.
func (p *process) awaitLog(text string) {
	p.t.Helper()
	await.Until(p.t, fmt.Sprintf("%q is logged", text), func() bool { return strings.Contains(p.logged(), text) }, func() any { return p.logged() })
}
