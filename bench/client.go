package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/bench/internal/wire"
)

const (
	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

	// window is the flow-control window of a stream and of a connection: that of istiod's
	// own client.
	window = 1 << 20
	// undigested is how many messages a delta client keeps before it looks into them. All clients are
	// sent as many: they begin at different ones, so that they do not look at the same moment.
	undigested = 64
)

// client asks one server for ServiceEntries and notes when it has reached the world's
// goal. It looks into a message no further than that needs; what it holds is worked out
// by digest, in the pauses of a measurement.
type client struct {
	id    int
	delta bool
	world *world
	conn  *grpc.ClientConn

	bytes    atomic.Int64 // of all responses
	messages atomic.Int64
	largest  atomic.Int64 // bytes of the largest response
	opened   atomic.Int64 // responses since the stream was opened
	trace    func(index, seq int, now time.Time)
	paused   atomic.Pointer[chan struct{}] // closed to go on reading

	mu       sync.Mutex // guards all below
	count    int        // resources held
	part     bool       // the last message was a part of an answer that goes on
	changes  int64      // sum of their seqs
	seqs     []int32    // by index; SotW: with trace
	kept     []mem.BufferSlice
	digestAt int             // how many kept messages are looked into
	held     []uint64        // by index: hash of the content
	strays   int             // resources that nobody should have sent
	versions []string        // delta: by index
	err      error           // why the stream ended last
	took     []time.Duration // with trace: of each change
}

func newClient(id int, delta bool, w *world, address string) (*client, error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithReadBufferSize(16<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec()), grpc.MaxCallRecvMsgSize(1<<30), grpc.WaitForReady(true)))
	if err != nil {
		return nil, err
	}
	c := &client{id: id, delta: delta, world: w, conn: conn, held: make([]uint64, len(w.items)), digestAt: 1 + id%undigested}
	c.seqs = make([]int32, len(w.items))
	for i, it := range w.items {
		if w.pods > 0 { // changes of Services are told by what comes after
			c.seqs[i] = int32(it.seq)
			c.changes += int64(it.seq)
		}
	}
	if delta {
		c.versions = make([]string, len(w.items))
	}
	return c, nil
}

// run keeps a stream open until ctx ends.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.stream(ctx)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		select {
		case <-time.After(time.Duration(20+rand.IntN(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (c *client) node() *corev3.Node {
	fields := map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("api")}
	if c.world.elsewhere {
		fields["CLUSTER_ID"] = structpb.NewStringValue(fmt.Sprintf("bench-%d", c.id))
	}
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~127.0.0.1~bench-%d.istio-system~istio-system.svc.cluster.local", c.id),
		Metadata: &structpb.Struct{Fields: fields},
	}
}

func (c *client) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := sotwMethod
	if c.delta {
		method = deltaMethod
	}
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	c.opened.Store(0)
	if c.delta {
		err = stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: c.node(), TypeUrl: serviceEntries, InitialResourceVersions: c.holds()})
	} else {
		err = stream.SendMsg(&discoveryv3.DiscoveryRequest{Node: c.node(), TypeUrl: serviceEntries})
	}
	for err == nil {
		m := &wire.Message{}
		if err = stream.RecvMsg(m); err != nil {
			break
		}
		now := time.Now()
		var h wire.Head
		if h, err = c.take(m.Data, now); err != nil {
			break
		}
		if c.delta {
			err = stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: h.TypeURL, ResponseNonce: h.Nonce})
		} else {
			err = stream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: h.TypeURL, ResponseNonce: h.Nonce, VersionInfo: "1"})
		}
		if pause := c.paused.Load(); pause != nil {
			select {
			case <-*pause:
			case <-ctx.Done():
			}
		}
	}
	return err
}

// holds returns what a delta client tells that it has.
func (c *client) holds() map[string]string {
	c.digest()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]string, c.count)
	for i, v := range c.versions {
		if v != "" {
			out[c.world.names[i]] = v
		}
	}
	return out
}

// take notes what a response brings.
func (c *client) take(data mem.BufferSlice, now time.Time) (wire.Head, error) {
	h, err := wire.ReadHead(data)
	if err != nil {
		return h, err
	}
	if h.TypeURL != serviceEntries {
		return h, fmt.Errorf("asked for %s, got %s", serviceEntries, h.TypeURL)
	}
	c.bytes.Add(int64(data.Len()))
	c.largest.Store(max(c.largest.Load(), int64(data.Len()))) // nobody else stores
	c.messages.Add(1)
	c.opened.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delta {
		each := eachMarker
		if c.world.pods > 0 {
			each = c.world.eachState
		}
		if c.count < c.world.visible {
			c.count = c.distinct(data, h.Resources)
		}
		c.part = h.Part
		each(data, func(index, seq int) {
			c.changes += c.reach(index, seq, now)
		})
	} else {
		for _, old := range c.kept {
			old.Free()
		}
		c.kept = c.kept[:0]
		c.count, c.changes = h.Resources, 0
		eachMarker(data, func(index, seq int) {
			c.changes += int64(seq)
			if c.trace != nil {
				c.reach(index, seq, now)
			}
		})
	}
	if c.delta {
		data = c.world.shares.of(data, h)
	}
	c.kept = append(c.kept, data)
	if g := c.world.goal.Load(); g != nil && c.count >= g.configs && c.changes >= g.changes {
		g.reached(c.id, now)
	}
	if c.delta && len(c.kept) >= c.digestAt {
		c.digestKept()
		c.digestAt = undigested
	}
	return h, nil
}

// reach notes that a resource has come to its seq-th change, and returns how many changes are new.
func (c *client) reach(index, seq int, now time.Time) (more int64) {
	old := int(c.seqs[index])
	if seq <= old {
		return 0
	}
	c.seqs[index] = int32(seq)
	for s := old + 1; c.trace != nil && s <= seq; s++ {
		c.trace(index, s, now) // also of those that were skipped
	}
	return int64(seq - old)
}

// distinct returns how many resources a delta client holds after a message that brings
// some. The parts of one answer are believed to name none twice, and so is a first message.
func (c *client) distinct(data mem.BufferSlice, brings int) (n int) {
	if c.count == 0 || c.part {
		return c.count + brings
	}
	data.Ref()
	c.kept = append(c.kept, data)
	c.digestKept()
	for _, hash := range c.held {
		if hash != 0 {
			n++
		}
	}
	return n
}

// digest works out what the client holds from the messages that it has kept.
func (c *client) digest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.digestKept()
}

func (c *client) digestKept() {
	for _, data := range c.kept {
		if !c.delta {
			clear(c.held)
		}
		_ = wire.Walk(data, func(num protowire.Number, n int, r *wire.Reader) bool {
			switch {
			case num == wire.FieldResources:
				b, ok := r.Take(n)
				c.hold(b)
				return ok
			case num == wire.FieldRemoved && c.delta:
				b, ok := r.Take(n)
				if i, known := indexOf(b); known && i < len(c.held) {
					c.held[i], c.versions[i] = 0, ""
				} else {
					c.strays++
				}
				return ok
			}
			return r.Skip(n)
		})
	}
	if c.delta {
		for _, data := range c.kept {
			data.Free()
		}
		c.kept = nil
	}
}

// hold takes over one resource.
func (c *client) hold(b []byte) {
	element, version := b, ""
	if c.delta {
		element, version = wire.Field(b, 2), unique.Make(string(wire.Field(b, 1))).Value()
	}
	resource := wire.Field(element, 2)
	metadata := wire.Field(resource, 1)
	name := wire.Field(metadata, 1)
	i, ok := indexOf(name)
	if !ok || i >= len(c.held) || string(name) != c.world.names[i] {
		// An istiod serves the Services of its cluster as ServiceEntries, too.
		if c.world.cluster == nil || !bytes.Contains(name, []byte("/synthetic-")) {
			c.strays++
		}
		return
	}
	body := wire.Field(wire.Field(resource, 2), 2)
	if c.world.rules {
		body = canonical(body)
	}
	if c.held[i] = contentHash(metadata, body); c.world.pods > 0 {
		c.held[i] = podsHash(body)
	}
	if c.delta {
		c.versions[i] = version
	}
}

// check compares what the client holds with the truth.
func (c *client) check() error {
	c.digest()
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.world.check(c.held)
	if err == nil && c.strays > 0 {
		err = fmt.Errorf("%d resources or removals that should not be", c.strays)
	}
	if err != nil {
		return fmt.Errorf("client %d: %w", c.id, errors.Join(err, c.err))
	}
	return nil
}

// drop throws away what the client keeps.
func (c *client) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, data := range c.kept {
		data.Free()
	}
	c.kept = nil
}
