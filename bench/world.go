package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
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
	shares    shares
	federated bool // most resources are held by two upstreams
	keeps     bool // the contender keeps on disk what it has
	rules     bool // what clients hold has passed the rules of relay-rules
	elsewhere bool // clients name clusters of their own
	instances int  // of each resource, in a registry; 0: it is no registry
	pods      int  // of each resource, which is a Service of the cluster then; 0: it is none
	omits     bool // the contender leaves out the Services
	upstreams []*upstream
	cluster   *cluster // in place of the upstreams; nil: none
	target    *cluster // everything is written into it; nil: there is none
	of        int      // how many upstreams there are to be
	rand      *rand.Rand
	sources   []string     // names, as the upstreams have them
	names     []string     // as clients see them; empty: they do not
	visible   int          // how many clients see
	changes   atomic.Int64 // so far; the sum of the seqs of all resources
	goal      atomic.Pointer[goal]

	mu     sync.RWMutex // guards all below
	items  []item
	issued [][]time.Time     // when each change of an item was made; nil unless wanted
	states map[uint64][2]int // of Services: index and seq, by the hash of the content
}

// item is one resource.
type item struct {
	seq     int
	element []byte // encoded google.protobuf.Any, as a server sends it
	copied  []byte // the same, as the next upstream has it; nil when that has none
	hash    uint64 // of the content that clients hold; zero: they do not
	created int64  // of an object of a cluster: when the server has made it
}

// newWorld makes the world of a scenario, as the clients of a contender with or without rules
// are to see it. The upstreams have the same for both.
func newWorld(s scenario, c contender) (*world, error) {
	rules := c.rules
	w := &world{federated: s.Federated, keeps: s.Starts > 0, rules: rules, elsewhere: s.Elsewhere, instances: s.Instances, of: s.Upstreams, items: make([]item, s.Configs), rand: rand.New(rand.NewPCG(1, 2))}
	for i := range w.items {
		var err error
		if w.items[i], err = w.make(i, 0); err != nil {
			return nil, err
		}
		source, name := itemName(i), itemName(i)
		if w.federated {
			source, name = atSources.name(i), atSources.name(i)
		}
		switch {
		case w.items[i].hash == 0:
			name = ""
		case rules:
			name = underRule.name(i)
		}
		w.sources, w.names = append(w.sources, source), append(w.names, name)
		if name != "" {
			w.visible++
		}
	}
	for n := range s.Upstreams {
		u, err := newUpstream(w, n, c.takesDelta(s))
		if err != nil {
			w.close()
			return nil, err
		}
		w.upstreams = append(w.upstreams, u)
	}
	return w, nil
}

func (w *world) close() {
	if w.target != nil {
		w.target.close()
	}
	for _, u := range w.upstreams {
		u.close()
	}
}

func itemName(index int) string {
	return fmt.Sprintf("team-%02d/service-%06d", index%namespaces, index)
}

// indexOf returns the index of a resource, however its namespace is called.
func indexOf(name []byte) (int, bool) {
	if len(name) < 6 {
		return 0, false
	}
	return digits(name[len(name)-6:])
}

// make makes a resource of this world after some changes.
func (w *world) make(index, seq int) (item, error) {
	if w.pods > 0 {
		return makePods(index, seq, w.pods), nil
	}
	if w.cluster != nil {
		return makeObject(index, seq, w.items[index].created)
	}
	if w.federated {
		return makeShared(index, seq, index%w.of < w.of-1, w.rules)
	}
	if w.instances > 0 {
		return makeService(index, seq, w.instances)
	}
	return makeItem(index, seq)
}

// pick returns the index of a resource to change: clients see it, with rules and without.
func (w *world) pick() int {
	for {
		if i := w.rand.IntN(len(w.items)); !w.federated || leftOutBy(i) == byNone {
			return i
		}
	}
}

func makeItem(index, seq int) (it item, err error) {
	it.seq = seq
	it.element, it.hash, err = encode(itemMetadata(index, seq), itemEntry(index, seq))
	return it, err
}

func itemEntry(index, seq int) *networking.ServiceEntry {
	address := fmt.Sprintf("10.%d.%d.%d", index>>14&255, index>>6&255, (index<<2|seq)&255)
	return &networking.ServiceEntry{
		Hosts:      []string{fmt.Sprintf("service-%06d.team-%02d.example.com", index, index%namespaces)},
		Location:   networking.ServiceEntry_MESH_INTERNAL,
		Resolution: networking.ServiceEntry_STATIC,
		Ports:      []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "HTTPS"}},
		Endpoints: []*networking.WorkloadEntry{
			{Address: address, Locality: "region-1/zone-a", ServiceAccount: "default"},
			{Address: fmt.Sprintf("10.200.%d.%d", seq>>8&255, seq&255)},
		},
	}
}

func itemMetadata(index, seq int) *mcp.Metadata {
	return &mcp.Metadata{
		Name:        itemName(index),
		CreateTime:  &timestamppb.Timestamp{Seconds: 1_700_000_000 + int64(index)},
		Version:     fmt.Sprint(seq),
		Labels:      map[string]string{"app": fmt.Sprintf("service-%06d", index)},
		Annotations: map[string]string{"bench.example/change": marker(index, seq)},
	}
}

// encode returns a resource as a server sends it, and the hash of its content.
func encode(metadata *mcp.Metadata, entry *networking.ServiceEntry) (element []byte, hash uint64, err error) {
	const bodyURL = "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry"
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(entry)
	if err != nil {
		return nil, 0, err
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(metadata)
	if err != nil {
		return nil, 0, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&mcp.Resource{
		Metadata: metadata, Body: &anypb.Any{TypeUrl: bodyURL, Value: body},
	})
	if err != nil {
		return nil, 0, err
	}
	element, err = proto.MarshalOptions{Deterministic: true}.Marshal(&anypb.Any{TypeUrl: resourceURL, Value: value})
	return element, contentHash(encoded, body), err
}

// contentHash hashes the content that a relay has to pass on: the body, and the metadata without
// the version and the relay's own annotations. Labels and annotations may come in any order,
// so their hashes are added up. It is never zero.
func contentHash(metadata, body []byte) uint64 {
	const createTime, labels, annotations = 2, 4, 5
	sum := xxh3.Hash(body)
	wire.Fields(metadata, func(num protowire.Number, v []byte) {
		switch num {
		case createTime:
			sum += xxh3.HashSeed(v, createTime)
		case labels, annotations:
			key, value := wire.Field(v, 1), wire.Field(v, 2)
			if num != annotations || !isProvenance(key) {
				sum += xxh3.HashSeed(value, xxh3.HashSeed(key, uint64(num)))
			}
		}
	})
	return sum | 1
}

// isProvenance reports whether an annotation is one by which the relay tells where a
// resource comes from, or the copy that kubectl keeps, which others pass on.
func isProvenance(key []byte) bool {
	return string(key) == "meshrelay.io/from" || string(key) == "kubectl.kubernetes.io/last-applied-configuration"
}

// change changes resources of one upstream, and lets it send them together. It returns when that began, or
// when the raw reader of a cluster had the first.
func (w *world) change(indices ...int) time.Time {
	w.mu.Lock()
	began := time.Now()
	for _, index := range indices {
		it, err := w.make(index, w.items[index].seq+1)
		if err != nil {
			w.mu.Unlock()
			panic(err) // it worked for the same index before
		}
		w.items[index] = it
		if w.states != nil {
			w.states[it.hash] = [2]int{index, it.seq}
		}
		if w.issued != nil {
			w.issued[index] = append(w.issued[index], time.Now())
		}
		w.changes.Add(1)
	}
	index, seq := indices[0], w.items[indices[0]].seq
	w.mu.Unlock()
	if w.cluster == nil {
		w.upstreams[index%len(w.upstreams)].changed(indices...)
		return began
	}
	seen, err := w.write(index, seq)
	if err != nil {
		panic(err) // nothing of the run can be right any more
	}
	return seen
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
		case held[i] == it.hash:
		case held[i] == 0:
			wrong = append(wrong, w.names[i]+" is missing")
		case it.hash == 0:
			wrong = append(wrong, w.sources[i]+" should not be served")
		default:
			wrong = append(wrong, w.names[i]+" has other content")
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

	mu        sync.Mutex // guards all below
	since     time.Time
	at        []time.Time // by client; zero: not there yet
	remaining int
	done      chan struct{}
}

// aim sets a goal. Changes that are part of it are made after.
func (w *world) aim(clients int, changes int64, since time.Time) *goal {
	g := &goal{
		configs: w.visible, changes: changes, since: since,
		at: make([]time.Time, clients), remaining: clients, done: make(chan struct{}),
	}
	w.goal.Store(g)
	return g
}

// reached records that a client is at the goal.
func (g *goal) reached(client int, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if client >= len(g.at) || !g.at[client].IsZero() {
		return
	}
	g.at[client] = now
	if g.remaining--; g.remaining == 0 {
		close(g.done)
	}
}

// began sets the time from which clients are timed.
func (g *goal) began(since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = since
}

// wait returns how long each client took.
func (g *goal) wait(timeout time.Duration) ([]time.Duration, error) {
	select {
	case <-g.done:
		g.mu.Lock()
		defer g.mu.Unlock()
		took := make([]time.Duration, len(g.at))
		for i, at := range g.at {
			took[i] = max(at.Sub(g.since), 1)
		}
		return took, nil
	case <-time.After(timeout):
		g.mu.Lock()
		defer g.mu.Unlock()
		return nil, fmt.Errorf("%d of %d clients did not hold everything after %v", g.remaining, len(g.at), timeout)
	}
}

// deltaEntry encodes an element as an envoy.service.discovery.v3.Resource.
func deltaEntry(b []byte, name string, version int, element []byte) []byte {
	v := strconv.Itoa(version)
	n := 1 + protowire.SizeBytes(len(v)) + 1 + protowire.SizeBytes(len(element)) + 1 + protowire.SizeBytes(len(name))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, v)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendBytes(b, element)
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	return protowire.AppendString(b, name)
}
