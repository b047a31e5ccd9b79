package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/bench/internal/wire"
)

const (
	serviceEntries = "networking.istio.io/v1alpha3/ServiceEntry"
	resourceURL    = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
	namespaces     = 20
)

// marker is the value of an annotation that tells which resource it is and how often
// it has changed, so that a client finds what is new in a message without decoding it:
// resources that have changed have a '~', which nothing else has.
const (
	markerLen  = 16
	markerByte = '~'
)

func marker(index, seq int) string {
	first := byte('-')
	if seq > 0 {
		first = markerByte
	}
	return fmt.Sprintf("%c%06d:%08d", first, index, seq)
}

// parseMarker is the inverse of marker, for a resource that has changed.
func parseMarker(b []byte) (index, seq int, ok bool) {
	if len(b) != markerLen || b[0] != markerByte || b[7] != ':' {
		return 0, 0, false
	}
	index, ok = digits(b[1:7])
	if ok {
		seq, ok = digits(b[8:])
	}
	return index, seq, ok
}

func digits(b []byte) (n int, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// eachMarker finds the changed resources of a message.
func eachMarker(data mem.BufferSlice, f func(index, seq int)) {
	for i, buffer := range data {
		b := buffer.ReadOnlyData()
		for {
			at := bytes.IndexByte(b, markerByte)
			if at < 0 {
				break
			}
			b = b[at:]
			m := b
			for _, more := range data[i+1:] { // it may lie in several buffers
				if len(m) >= markerLen {
					break
				}
				m = append(m[:len(m):len(m)], more.ReadOnlyData()...)
			}
			if len(m) >= markerLen {
				if index, seq, ok := parseMarker(m[:markerLen]); ok {
					f(index, seq)
				}
			}
			b = b[1:]
		}
	}
}

// world is the truth: what every client must hold in the end.
type world struct {
	upstreams []*upstream
	rand      *rand.Rand
	names     []string
	changes   atomic.Int64 // so far; the sum of the seqs of all resources
	goal      atomic.Pointer[goal]

	mu     sync.RWMutex // guards all below
	items  []item
	issued [][]time.Time // when each change of an item was made; nil unless wanted
}

// item is one resource.
type item struct {
	seq     int
	element []byte // encoded google.protobuf.Any, as a server sends it
	hash    uint64 // of the content
}

func newWorld(configs, upstreams int, delta bool) (*world, error) {
	w := &world{items: make([]item, configs), rand: rand.New(rand.NewPCG(1, 2))}
	for i := range w.items {
		w.names = append(w.names, itemName(i))
		var err error
		if w.items[i], err = makeItem(i, 0); err != nil {
			return nil, err
		}
	}
	for n := range upstreams {
		u, err := newUpstream(w, n, upstreams, delta)
		if err != nil {
			w.close()
			return nil, err
		}
		w.upstreams = append(w.upstreams, u)
	}
	return w, nil
}

func (w *world) close() {
	for _, u := range w.upstreams {
		u.close()
	}
}

func itemName(index int) string {
	return fmt.Sprintf("team-%02d/service-%06d", index%namespaces, index)
}

// indexOf is the inverse of itemName.
func indexOf(name []byte) (int, bool) {
	if len(name) < 6 {
		return 0, false
	}
	return digits(name[len(name)-6:])
}

func makeItem(index, seq int) (item, error) {
	address := fmt.Sprintf("10.%d.%d.%d", index>>14&255, index>>6&255, (index<<2|seq)&255)
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&networking.ServiceEntry{
		Hosts:      []string{fmt.Sprintf("service-%06d.team-%02d.example.com", index, index%namespaces)},
		Location:   networking.ServiceEntry_MESH_INTERNAL,
		Resolution: networking.ServiceEntry_STATIC,
		Ports:      []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "HTTPS"}},
		Endpoints: []*networking.WorkloadEntry{
			{Address: address, Locality: "region-1/zone-a", ServiceAccount: "default"},
			{Address: fmt.Sprintf("10.200.%d.%d", seq>>8&255, seq&255)},
		},
	})
	if err != nil {
		return item{}, err
	}
	const bodyURL = "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry"
	metadata := &mcp.Metadata{
		Name:        itemName(index),
		CreateTime:  &timestamppb.Timestamp{Seconds: 1_700_000_000 + int64(index)},
		Version:     fmt.Sprint(seq),
		Labels:      map[string]string{"app": fmt.Sprintf("service-%06d", index)},
		Annotations: map[string]string{"bench.example/change": marker(index, seq)},
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(metadata)
	if err != nil {
		return item{}, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&mcp.Resource{
		Metadata: metadata, Body: &anypb.Any{TypeUrl: bodyURL, Value: body},
	})
	if err != nil {
		return item{}, err
	}
	element, err := proto.MarshalOptions{Deterministic: true}.Marshal(&anypb.Any{TypeUrl: resourceURL, Value: value})
	return item{seq: seq, element: element, hash: contentHash(encoded, body)}, err
}

// contentHash is of all that a relay has to pass on: the body, and the metadata but for the
// version. It is never zero.
func contentHash(metadata, body []byte) uint64 {
	h := xxh3.New()
	_, _ = h.Write(body)
	for _, num := range []protowire.Number{2, 4, 5} { // create time, labels, annotations
		_, _ = h.Write(wire.Field(metadata, num))
	}
	return h.Sum64() | 1
}

// change changes one resource and lets its upstream send it.
func (w *world) change(index int) {
	w.mu.Lock()
	it, err := makeItem(index, w.items[index].seq+1)
	if err != nil {
		w.mu.Unlock()
		panic(err) // it worked for the same index before
	}
	w.items[index] = it
	if w.issued != nil {
		w.issued[index] = append(w.issued[index], time.Now())
	}
	w.changes.Add(1)
	w.mu.Unlock()
	w.upstreams[index%len(w.upstreams)].changed(index)
}

// issuedAt returns when the seq-th change of a resource was made, in a world that keeps
// that.
func (w *world) issuedAt(index, seq int) time.Time {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.issued[index][seq-1]
}

// size returns the mean encoded size of a resource, as an element of a SotW response.
func (w *world) size() int {
	w.mu.RLock()
	defer w.mu.RUnlock()
	total := 0
	for _, it := range w.items {
		total += 1 + protowire.SizeBytes(len(it.element))
	}
	return total / len(w.items)
}

// check compares what a client holds, by index, with the truth.
func (w *world) check(held []uint64) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var wrong []string
	for i, it := range w.items {
		switch {
		case held[i] == 0:
			wrong = append(wrong, itemName(i)+" is missing")
		case held[i] != it.hash:
			wrong = append(wrong, itemName(i)+" has other content")
		}
	}
	if n := len(wrong); n > 0 {
		return fmt.Errorf("%d of %d resources are wrong: %s", n, len(w.items), strings.Join(wrong[:min(n, 3)], ", "))
	}
	return nil
}

// goal is a state of the world that the clients are timed on their way to.
type goal struct {
	configs int
	changes int64
	since   time.Time

	mu        sync.Mutex
	took      []time.Duration // by client; zero: not there yet
	remaining int
	done      chan struct{}
}

// aim sets a goal. Changes that are part of it are made after.
func (w *world) aim(clients int, changes int64, since time.Time) *goal {
	g := &goal{
		configs: len(w.items), changes: changes, since: since,
		took: make([]time.Duration, clients), remaining: clients, done: make(chan struct{}),
	}
	w.goal.Store(g)
	return g
}

// reached records that a client is at the goal.
func (g *goal) reached(client int, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if client >= len(g.took) || g.took[client] != 0 {
		return
	}
	g.took[client] = max(now.Sub(g.since), 1)
	if g.remaining--; g.remaining == 0 {
		close(g.done)
	}
}

// wait returns how long each client took.
func (g *goal) wait(timeout time.Duration) ([]time.Duration, error) {
	select {
	case <-g.done:
		return g.took, nil
	case <-time.After(timeout):
		g.mu.Lock()
		defer g.mu.Unlock()
		return nil, fmt.Errorf("%d of %d clients did not hold everything after %v", g.remaining, len(g.took), timeout)
	}
}

// deltaEntry encodes an element as an envoy.service.discovery.v3.Resource.
func deltaEntry(b []byte, index int, it item) []byte {
	name := itemName(index)
	v := fmt.Sprint(it.seq)
	n := 1 + protowire.SizeBytes(len(v)) + 1 + protowire.SizeBytes(len(it.element)) + 1 + protowire.SizeBytes(len(name))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, v)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendBytes(b, it.element)
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	return protowire.AppendString(b, name)
}
