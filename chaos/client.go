package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/zeebo/xxh3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
)

const (
	// clientPause is how long a client waits before it connects again, give or take a half.
	clientPause = 100 * time.Millisecond
	// window is the flow-control window of a client: that of istiod's own.
	window = 1 << 20
)

// client asks a relay for all kinds, and checks what it sees.
type client struct {
	name    string
	address string
	delta   bool
	// version is which of each kind's API versions it asks for: their number from the end,
	// as far as there are so many.
	version int
	world   *world
	reader  *reader
	fail    func(*violation)

	nacks     atomic.Bool
	responses *atomic.Int64

	mu   sync.Mutex // guards all below
	view *view
	pods podView
	// holds is, by kind and name, the version of what a delta client has.
	holds []map[string]string
	// answered are the kinds that the present stream has answered.
	answered map[int]bool
	err      error // why the last stream ended
	streams  int
}

func newClient(name, address string, delta bool, version int, w *world, r *reader, responses *atomic.Int64, fail func(*violation)) *client {
	c := &client{
		name: name, address: address, delta: delta, version: version, world: w, reader: r, fail: fail, responses: responses,
		view: newView(name, w), pods: podView{}, holds: make([]map[string]string, len(kinds)), answered: map[int]bool{},
	}
	for i := range c.holds {
		c.holds[i] = map[string]string{}
	}
	return c
}

// run keeps a stream open until ctx ends.
func (c *client) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		err := c.stream(ctx, nil)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		select {
		case <-time.After(clientPause/2 + clientPause*time.Duration(n%11)/10):
		case <-ctx.Done():
		}
	}
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
}

func clientNode(name string) *corev3.Node {
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~127.0.0.1~%s.istio-system~istio-system.svc.cluster.local", name),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("api")}},
	}
}

// typeURL returns the type URL by which the client asks for a kind.
func (c *client) typeURL(k *kind) string {
	return k.typeURL(k.versions[max(0, len(k.versions)-1-c.version)])
}

// stream connects and serves one stream until it ends, or until done returns true for the number
// of kinds that were answered. done may be nil.
func (c *client) stream(ctx context.Context, done func(answered int) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(c.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	c.mu.Lock()
	c.streams++
	clear(c.answered)
	c.mu.Unlock()
	if c.delta {
		return c.streamDelta(ctx, ads, done)
	}
	return c.streamSotW(ctx, ads, done)
}

func (c *client) streamSotW(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, done func(int) bool) error {
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for i, k := range kinds {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: c.typeURL(k)}
		if i == 0 {
			req.Node = clientNode(c.name)
		}
		if err := stream.Send(req); err != nil {
			return endOf(err, stream)
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		answered, bad := c.takeAll(resp)
		if bad != nil {
			c.fail(bad)
			return bad
		}
		if done != nil && done(answered) {
			return nil
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo, ErrorDetail: c.objection(),
		}); err != nil {
			return endOf(err, stream)
		}
	}
}

func (c *client) streamDelta(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, done func(int) bool) error {
	stream, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for i, k := range kinds {
		c.mu.Lock()
		held := make(map[string]string, len(c.holds[i]))
		for name, version := range c.holds[i] {
			held[name] = version
		}
		c.mu.Unlock()
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: c.typeURL(k), InitialResourceVersions: held}
		if i == 0 {
			req.Node = clientNode(c.name)
		}
		if err := stream.Send(req); err != nil {
			return endOf(err, stream)
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		answered, bad := c.takeDifference(resp)
		if bad != nil {
			c.fail(bad)
			return bad
		}
		if done != nil && done(answered) {
			return nil
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, ErrorDetail: c.objection()}); err != nil {
			return endOf(err, stream)
		}
	}
}

// endOf returns the status of a stream on which a send failed with io.EOF.
func endOf(err error, stream grpc.ClientStream) error {
	if status := stream.RecvMsg(&discoveryv3.DiscoveryResponse{}); status != nil {
		return status
	}
	return err
}

func (c *client) objection() *rpcstatus.Status {
	if !c.nacks.Load() {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "this client objects to everything"}
}

// takeAll takes over a SotW response, which has all resources of a kind.
func (c *client) takeAll(resp *discoveryv3.DiscoveryResponse) (answered int, bad *violation) {
	c.responses.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := kindOf(resp.TypeUrl)
	if !ok || resp.TypeUrl != c.typeURL(kinds[n]) {
		return 0, c.violated(-1, "it was sent the type %s, which it has not asked for", resp.TypeUrl)
	}
	seen := make(map[int]content, len(resp.Resources))
	list := make([]content, 0, len(resp.Resources))
	services := podView{}
	for _, element := range resp.Resources {
		of, held, isService, err := c.world.pods.read(element)
		if err != nil {
			return 0, c.violated(-1, "%s: %v", resp.TypeUrl, err)
		}
		if isService {
			services[of] = held
			continue
		}
		is, err := c.reader.read(n, element)
		if err != nil {
			return 0, c.violated(-1, "%s: %v", resp.TypeUrl, err)
		}
		if _, twice := seen[is.key]; twice {
			return 0, c.violated(is.key, "it was sent the name twice in one response")
		}
		seen[is.key] = is
		list = append(list, is)
	}
	if n == 0 {
		c.pods = services
	}
	var gone []int
	for key := range c.view.shown {
		if _, there := seen[key]; !there && key%len(kinds) == n {
			gone = append(gone, key)
		}
	}
	return c.apply(n, list, gone)
}

// takeDifference takes over a delta response.
func (c *client) takeDifference(resp *discoveryv3.DeltaDiscoveryResponse) (answered int, bad *violation) {
	c.responses.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := kindOf(resp.TypeUrl)
	if !ok || resp.TypeUrl != c.typeURL(kinds[n]) {
		return 0, c.violated(-1, "it was sent the type %s, which it has not asked for", resp.TypeUrl)
	}
	// The first answer to a client that has nothing is complete.
	complete := !c.answered[n] && len(c.holds[n]) == 0
	seen := make(map[int]bool, len(resp.Resources))
	list := make([]content, 0, len(resp.Resources))
	if complete && n == 0 {
		c.pods = podView{}
	}
	for _, r := range resp.Resources {
		of, held, isService, err := c.world.pods.read(r.Resource)
		if err != nil {
			return 0, c.violated(-1, "%s: %v", resp.TypeUrl, err)
		}
		if isService {
			c.pods[of], c.holds[n][r.Name] = held, r.Version
			continue
		}
		is, err := c.reader.read(n, r.Resource)
		if err == nil && keyName(is.key) != r.Name {
			err = fmt.Errorf("the element %q has the resource %q", r.Name, keyName(is.key))
		}
		if err != nil {
			return 0, c.violated(-1, "%s: %v", resp.TypeUrl, err)
		}
		list, seen[is.key] = append(list, is), true
		c.holds[n][r.Name] = r.Version
	}
	var gone []int
	for key := range c.view.shown {
		if complete && !seen[key] && key%len(kinds) == n {
			gone = append(gone, key)
		}
	}
	for _, name := range resp.RemovedResources {
		delete(c.holds[n], name)
		if c.world.pods != nil {
			if of, is := c.world.pods.parsePodService(name); is {
				delete(c.pods, of)
			}
		}
		if key, ok := parseKeyName(name); ok {
			gone = append(gone, key)
		}
	}
	return c.apply(n, list, gone)
}

// apply checks what a response of a kind changes. The caller holds mu.
func (c *client) apply(kind int, seen []content, gone []int) (answered int, bad *violation) {
	now := time.Now()
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for _, is := range seen {
		had := c.view.shown[is.key]
		if bad := c.view.sees(is, now); bad != nil {
			return 0, bad
		}
		if had != is {
			c.world.journal.of(is.key, "%s sees #%d of %s", c.name, is.seq, c.world.sources[is.source].name)
		}
	}
	slices.Sort(gone)
	for _, key := range gone {
		_, had := c.view.shown[key]
		if bad := c.view.misses(key, now); bad != nil {
			return 0, bad
		}
		if had {
			c.world.journal.of(key, "%s sees that it is gone", c.name)
		}
	}
	c.answered[kind] = true
	return len(c.answered), nil
}

// podView returns what the client sees of Services.
func (c *client) podView() podView {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.pods) // nobody changes the addresses of one
}

func (c *client) violated(key int, format string, args ...any) *violation {
	return &violation{wrong, c.name, key, fmt.Sprintf(format, args...)}
}

// check compares what the client holds with what it is to hold.
func (c *client) check(expected map[int]content) *violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	examples, first, total := c.view.differs(expected)
	if total == 0 {
		return nil
	}
	return &violation{wrong, c.name, first, fmt.Sprintf("%d of %d configs are not as they are to be: %s; the stream is number %d, and the one before ended with: %v",
		total, c.world.keys, strings.Join(examples, "; "), c.streams, c.err)}
}

// reader finds out which content an element is, and that it is as it was made. It is safe
// for use by several goroutines.
type reader struct {
	world *world
	known sync.Map // of the hash of an element: its content
	size  atomic.Int64
}

// maxKnown bounds the elements that a reader remembers.
const maxKnown = 1 << 17

func (r *reader) read(kind int, element *anypb.Any) (content, error) {
	if element.GetTypeUrl() != resourceURL {
		return content{}, fmt.Errorf("an element is of the type %s", element.GetTypeUrl())
	}
	hash := xxh3.Hash128Seed(element.Value, uint64(kind))
	if is, ok := r.known.Load(hash); ok {
		return is.(content), nil
	}
	is, err := r.decode(kind, element.Value)
	if err != nil {
		return is, err
	}
	if r.size.Add(1) > maxKnown {
		r.known.Clear()
		r.size.Store(1)
	}
	r.known.Store(hash, is)
	return is, nil
}

func (r *reader) decode(kind int, value []byte) (content, error) {
	got := &mcp.Resource{}
	if err := proto.Unmarshal(value, got); err != nil {
		return content{}, fmt.Errorf("an element does not decode: %w", err)
	}
	name, m := got.GetMetadata().GetName(), got.GetMetadata().GetAnnotations()[markerAnnotation]
	is, ok := r.world.parseMarker(m)
	if key, named := parseKeyName(name); !ok || !named || key != is.key || key%len(kinds) != kind {
		return is, fmt.Errorf("an element is called %q and marked %q, which no source has given", name, m)
	}
	source := r.world.sources[is.source].name
	want := makeMetadata(source, is.key, is.seq)
	for key, value := range got.Metadata.Annotations {
		if want.Annotations[key] != value && !strings.HasPrefix(key, "meshrelay.io/") {
			return is, fmt.Errorf("%s, %s: the annotation %s is %q and was made %q", describe(is.key), m, key, value, want.Annotations[key])
		}
	}
	if len(got.Metadata.Labels) != len(want.Labels) {
		return is, fmt.Errorf("%s, %s: the labels are %v and were made %v", describe(is.key), m, got.Metadata.Labels, want.Labels)
	}
	for key, value := range want.Labels {
		if got.Metadata.Labels[key] != value {
			return is, fmt.Errorf("%s, %s: the labels are %v and were made %v", describe(is.key), m, got.Metadata.Labels, want.Labels)
		}
	}
	if got.Metadata.GetCreateTime().GetSeconds() != want.CreateTime.Seconds {
		return is, fmt.Errorf("%s, %s: the time of its making is %v and was %v", describe(is.key), m, got.Metadata.GetCreateTime().AsTime(), want.CreateTime.AsTime())
	}
	body := makeBody(source, is.key, is.seq)
	if typeURL := bodyURL(body); got.GetBody().GetTypeUrl() != typeURL {
		return is, fmt.Errorf("%s, %s: the body is of the type %s and was made of %s", describe(is.key), m, got.GetBody().GetTypeUrl(), typeURL)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return is, err
	}
	if bytes.Equal(encoded, got.GetBody().GetValue()) {
		return is, nil
	}
	other := body.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(got.GetBody().GetValue(), other); err != nil || !proto.Equal(body, other) {
		return is, fmt.Errorf("%s, %s: the body is not as it was made", describe(is.key), m)
	}
	return is, nil
}
