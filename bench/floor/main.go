// Command floor forwards xDS responses: it cuts them at their resource fields and sends
// the parts on, undecoded. It does not merge, compare, name versions, bound anything or
// survive an upstream's end; it is there to tell what moving the bytes costs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/bench/internal/wire"
)

const (
	typeURL = "networking.istio.io/v1alpha3/ServiceEntry"
	window  = 1 << 20
	// logLen is how many forwarded entries a delta client may lag behind before it is
	// sent everything again.
	logLen = 1 << 16
)

func main() {
	listen := flag.String("listen", "", "address to serve on")
	upstreams := flag.String("upstreams", "", "addresses to forward from, with commas")
	delta := flag.Bool("delta", false, "use the delta protocol")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *listen, strings.Split(*upstreams, ","), *delta); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen string, upstreams []string, delta bool) error {
	h := &hub{full: make([][][]byte, len(upstreams)), missing: len(upstreams), byName: map[string][]byte{}, waken: make(chan struct{})}
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	failed := make(chan error, len(upstreams)+1)
	for n, addr := range upstreams {
		go func() { failed <- fmt.Errorf("upstream %s: %w", addr, h.follow(ctx, n, addr, delta)) }()
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec()), grpc.MaxRecvMsgSize(64<<20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, h)
	go func() { failed <- server.Serve(lis) }()
	defer server.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// hub is what all upstreams have sent.
type hub struct {
	mu      sync.Mutex
	missing int // upstreams that have not sent yet
	waken   chan struct{}
	version int

	full [][][]byte // SotW: by upstream, runs of encoded resources fields

	byName map[string][]byte // delta: encoded resources fields
	log    [][]byte          // delta: the newest entries and removals, as fields
	base   int               // version of the first of log
}

func (h *hub) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.waken)
	h.waken = make(chan struct{})
}

func node() *corev3.Node {
	return &corev3.Node{
		Id:       "sidecar~127.0.0.1~floor.istio-system~istio-system.svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("api")}},
	}
}

// follow takes over what an upstream sends.
func (h *hub) follow(ctx context.Context, n int, addr string, delta bool) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec()), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer conn.Close()
	method := discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	if delta {
		method = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	request := func(nonce string) error {
		if delta {
			req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce}
			if nonce == "" {
				req.Node = node()
			}
			return stream.SendMsg(req)
		}
		req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce}
		if nonce == "" {
			req.Node = node()
		}
		return stream.SendMsg(req)
	}
	if err := request(""); err != nil {
		return err
	}
	first := true
	for {
		m := &wire.Message{}
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		b := m.Data.Materialize()
		m.Data.Free()
		nonce, err := "", error(nil)
		if delta {
			nonce, err = h.patch(b, first)
		} else {
			nonce, err = h.replace(n, b, first)
		}
		if err != nil {
			return err
		}
		first = false
		if err := request(nonce); err != nil {
			return err
		}
	}
}

var errBroken = errors.New("response is broken")

// cut hands each field of a response to f, with its tag and length.
func cut(b []byte, f func(num protowire.Number, field, value []byte)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || typ != protowire.BytesType {
			return errBroken
		}
		v, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			return errBroken
		}
		f(num, b[:n+m], v)
		b = b[n+m:]
	}
	return nil
}

func (h *hub) replace(upstream int, b []byte, first bool) (nonce string, err error) {
	var runs [][]byte
	begin, at := -1, 0
	err = cut(b, func(num protowire.Number, field, value []byte) {
		switch {
		case num == wire.FieldResources && begin < 0:
			begin = at
		case num != wire.FieldResources && begin >= 0:
			runs, begin = append(runs, b[begin:at]), -1
		}
		if num == wire.FieldNonce {
			nonce = string(value)
		}
		at += len(field)
	})
	if begin >= 0 {
		runs = append(runs, b[begin:])
	}
	if err == nil {
		h.update(func() {
			h.full[upstream] = runs
			h.version++
			if first {
				h.missing--
			}
		})
	}
	return nonce, err
}

func (h *hub) patch(b []byte, first bool) (nonce string, err error) {
	h.update(func() {
		if first {
			h.missing--
		}
		err = cut(b, func(num protowire.Number, field, value []byte) {
			switch num {
			case wire.FieldNonce:
				nonce = string(value)
			case wire.FieldResources:
				h.byName[string(wire.Field(value, 3))] = field
			case wire.FieldRemoved:
				delete(h.byName, string(value))
			default:
				return
			}
			if num != wire.FieldNonce && !first {
				h.log = append(h.log, field)
				h.version++
			}
		})
		if len(h.log) > 2*logLen {
			h.log = append([][]byte(nil), h.log[len(h.log)-logLen:]...)
			h.base = h.version - logLen
		}
	})
	return nonce, err
}

// serve sends what next returns for the version that a client is at.
func (h *hub) serve(stream grpc.ServerStream, next func(at int) (parts mem.BufferSlice, now int)) error {
	go func() { // acknowledgements are read and forgotten
		for stream.RecvMsg(&wire.Message{}) == nil {
		}
	}()
	for at, nonce := -1, 0; ; {
		h.mu.Lock()
		waken := h.waken
		if h.missing > 0 || at == h.version {
			h.mu.Unlock()
			select {
			case <-waken:
				continue
			case <-stream.Context().Done():
				return nil
			}
		}
		var parts mem.BufferSlice
		parts, at = next(at)
		h.mu.Unlock()
		nonce++
		header := protowire.AppendTag(nil, wire.FieldTypeURL, protowire.BytesType)
		header = protowire.AppendString(header, typeURL)
		header = protowire.AppendTag(header, wire.FieldNonce, protowire.BytesType)
		header = protowire.AppendString(header, strconv.Itoa(nonce))
		parts[0] = mem.SliceBuffer(header)
		if err := stream.SendMsg(&wire.Message{Data: parts}); err != nil {
			return err
		}
	}
}

func (h *hub) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return h.serve(stream, func(int) (mem.BufferSlice, int) {
		parts := make(mem.BufferSlice, 1, 1+2*len(h.full))
		for _, runs := range h.full {
			for _, run := range runs {
				parts = append(parts, mem.SliceBuffer(run))
			}
		}
		return parts, h.version
	})
}

func (h *hub) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return h.serve(stream, func(at int) (mem.BufferSlice, int) {
		parts := make(mem.BufferSlice, 1, 2)
		if at < h.base {
			for _, field := range h.byName {
				parts = append(parts, mem.SliceBuffer(field))
			}
			return parts, h.version
		}
		for _, field := range h.log[at-h.base:] {
			parts = append(parts, mem.SliceBuffer(field))
		}
		return parts, h.version
	})
}
