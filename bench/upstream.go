package main

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshrelay/bench/internal/wire"
)

// pushInterval is how far apart a SotW upstream's pushes are at least: an istiod
// debounces for as long.
const pushInterval = 100 * time.Millisecond

// upstream is a control plane that has every n-th resource of the world and, in a
// federation, copies of those of the upstream before it. On SotW
// streams it sends its full state on each change, as istiod does; on delta streams,
// which it has only when it stands for a relay, what changed.
type upstream struct {
	world  *world
	n      int
	has    []int // indices: first its own, then those of which it has a copy
	delta  bool
	pause  time.Duration // between pushes on SotW streams, at least
	server *grpc.Server
	addr   string
	done   chan struct{}

	mu    sync.Mutex // guards all below
	log   []int      // every change, by index
	waken chan struct{}
}

func newUpstream(w *world, n int, delta bool) (*upstream, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{world: w, n: n, delta: delta, pause: pushInterval, addr: lis.Addr().String(), done: make(chan struct{}), waken: make(chan struct{})}
	if w.instances > 0 {
		u.pause = 0 // a registry gathers nothing
	}
	for i := n; i < len(w.items); i += w.of {
		u.has = append(u.has, i)
	}
	if w.federated && n > 0 {
		for i := n - 1; i < len(w.items); i += w.of {
			u.has = append(u.has, i)
		}
	}
	u.server = grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec()), grpc.MaxRecvMsgSize(64<<20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(u.server, u)
	go func() { defer close(u.done); _ = u.server.Serve(lis) }()
	return u, nil
}

func (u *upstream) close() {
	u.server.Stop()
	<-u.done
}

// content returns what the upstream has of a resource, and its version. The caller holds
// the world's lock.
func (u *upstream) content(index int) (element []byte, version int) {
	it := u.world.items[index]
	if index%u.world.of != u.n {
		return it.copied, 0
	}
	return it.element, it.seq
}

func (u *upstream) changed(indices ...int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log = append(u.log, indices...)
	close(u.waken)
	u.waken = make(chan struct{})
}

// since returns what changed after the first n changes, and what will be closed on
// the next.
func (u *upstream) since(n int) (changed []int, now int, next <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.log[n:len(u.log):len(u.log)], len(u.log), u.waken
}

// isServiceEntry reports whether a type is the ServiceEntry in any of its versions, of
// which an istiod 1.23 knows one, and a relay all.
func isServiceEntry(typeURL string) bool {
	return strings.HasPrefix(typeURL, "networking.istio.io/") && strings.HasSuffix(typeURL, "/ServiceEntry")
}

// request is what requests of both protocols have in common.
type request interface {
	proto.Message
	GetTypeUrl() string
}

// receive hands on the type URLs that a stream is asked for, each once.
func receive(stream grpc.ServerStream, newRequest func() request) <-chan string {
	asked := make(chan string, 256)
	go func() {
		defer close(asked)
		seen := map[string]bool{}
		for {
			req := newRequest()
			if stream.RecvMsg(req) != nil {
				return
			}
			if url := req.GetTypeUrl(); !seen[url] {
				seen[url] = true
				asked <- url
			}
		}
	}()
	return asked
}

func (u *upstream) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	asked := receive(stream, func() request { return &discoveryv3.DiscoveryRequest{} })
	var next <-chan struct{}
	var pause <-chan time.Time // isolated changes leave at once, more of them together
	sent := 0
	for {
		select {
		case url, ok := <-asked:
			if !ok {
				return nil
			}
			if url != serviceEntries {
				if err := stream.SendMsg(&discoveryv3.DiscoveryResponse{TypeUrl: url, VersionInfo: "1", Nonce: url}); err != nil {
					return err
				}
				continue
			}
		case <-pause:
			pause = nil
			changed, _, more := u.since(sent)
			if next = more; len(changed) == 0 {
				continue
			}
		case <-next:
		}
		_, sent, _ = u.since(sent)
		b, err := u.fullState(sent)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&wire.Message{Data: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			return err
		}
		next, pause = nil, time.After(u.pause)
	}
}

func (u *upstream) fullState(version int) ([]byte, error) {
	u.world.mu.RLock()
	defer u.world.mu.RUnlock()
	n := 256
	for _, i := range u.has {
		element, _ := u.content(i)
		n += 8 + len(element)
	}
	b := make([]byte, 0, n)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, strconv.Itoa(version))
	for _, i := range u.has {
		element, _ := u.content(i)
		b = protowire.AppendTag(b, wire.FieldResources, protowire.BytesType)
		b = protowire.AppendBytes(b, element)
	}
	return appendTypeAndNonce(b, serviceEntries, strconv.Itoa(version)), nil
}

func appendTypeAndNonce(b []byte, typeURL, nonce string) []byte {
	b = protowire.AppendTag(b, wire.FieldTypeURL, protowire.BytesType)
	b = protowire.AppendString(b, typeURL)
	b = protowire.AppendTag(b, wire.FieldNonce, protowire.BytesType)
	return protowire.AppendString(b, nonce)
}

func (u *upstream) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if !u.delta {
		return status.Error(codes.Unimplemented, "this upstream has no delta protocol")
	}
	if err := stream.SendHeader(metadata.Pairs("x-meshrelay", "delta")); err != nil {
		return err
	}
	asked := receive(stream, func() request { return &discoveryv3.DeltaDiscoveryRequest{} })
	var next <-chan struct{}
	var typeURL string
	sent := 0
	for {
		var changed []int
		select {
		case url, ok := <-asked:
			if !ok {
				return nil
			}
			if !isServiceEntry(url) {
				if err := stream.SendMsg(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: url}); err != nil {
					return err
				}
				continue
			}
			typeURL = url
			_, sent, next = u.since(0)
			changed = u.has
		case <-next:
			changed, sent, next = u.since(sent)
			changed = slices.Compact(slices.Sorted(slices.Values(changed)))
		}
		b := appendTypeAndNonce(nil, typeURL, strconv.Itoa(sent))
		u.world.mu.RLock()
		for _, i := range changed {
			element, version := u.content(i)
			b = deltaEntry(b, u.world.sources[i], version, element)
		}
		u.world.mu.RUnlock()
		if err := stream.SendMsg(&wire.Message{Data: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			return err
		}
	}
}
