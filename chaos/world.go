package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	istiotype "istio.io/api/type/v1beta1"
)

const (
	resourceURL = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
	// markerAnnotation has the source, key and number of a content.
	markerAnnotation = "chaos.example/content"
	// historyKept is how long the model remembers entries before the present content.
	historyKept = 3 * time.Minute
)

// kind is one kind of configs.
type kind struct {
	name  string
	group string
	// versions are the API versions under which a relay serves it, newest first.
	versions []string
	make     func(marker string, size int) proto.Message
}

func (k *kind) typeURL(version string) string { return k.group + "/" + version + "/" + k.name }

// kinds are what the world consists of: a config with the index i is of kind i modulo their
// number.
var kinds = []*kind{
	{"ServiceEntry", "networking.istio.io", []string{"v1", "v1beta1", "v1alpha3"}, func(marker string, size int) proto.Message {
		e := &networking.ServiceEntry{
			Hosts:    []string{hostOf(marker)},
			Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Ports: []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "HTTPS"}},
		}
		for i := range size {
			e.Endpoints = append(e.Endpoints, &networking.WorkloadEntry{Address: fmt.Sprintf("10.1.%d.%d", i>>8, i&255), Locality: "region-1/zone-a"})
		}
		return e
	}},
	{"VirtualService", "networking.istio.io", []string{"v1", "v1beta1", "v1alpha3"}, func(marker string, size int) proto.Message {
		v := &networking.VirtualService{Hosts: []string{hostOf(marker)}}
		for i := range size {
			v.Http = append(v.Http, &networking.HTTPRoute{
				Name:  fmt.Sprintf("route-%d", i),
				Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: hostOf(marker)}}},
			})
		}
		return v
	}},
	{"AuthorizationPolicy", "security.istio.io", []string{"v1", "v1beta1"}, func(marker string, size int) proto.Message {
		p := &security.AuthorizationPolicy{
			Selector: &istiotype.WorkloadSelector{MatchLabels: map[string]string{"app": labelOf(marker)}},
		}
		for i := range size {
			p.Rules = append(p.Rules, &security.Rule{From: []*security.Rule_From{{Source: &security.Source{Namespaces: []string{fmt.Sprintf("team-%d", i)}}}}})
		}
		return p
	}},
	{"WorkloadEntry", "networking.istio.io", []string{"v1", "v1beta1", "v1alpha3"}, func(marker string, _ int) proto.Message {
		return &networking.WorkloadEntry{Address: "10.9.8.7", Labels: map[string]string{"app": labelOf(marker)}, ServiceAccount: "default"}
	}},
}

// kindOf returns the number of the kind that a type URL is of, in any of its versions.
func kindOf(typeURL string) (int, bool) {
	i := slices.IndexFunc(kinds, func(k *kind) bool {
		return slices.ContainsFunc(k.versions, func(v string) bool { return k.typeURL(v) == typeURL })
	})
	return i, i >= 0
}

func hostOf(marker string) string  { return labelOf(marker) + ".chaos.example" }
func labelOf(marker string) string { return strings.ReplaceAll(marker, "/", "-") }

// content identifies a content: number seq of a key at a source.
type content struct {
	source, key, seq int
}

// marker is how a content is written in a config, with the name of the source.
func marker(source string, key, seq int) string { return fmt.Sprintf("%s/%d/%d", source, key, seq) }

// parseMarker is the inverse of marker.
func (w *world) parseMarker(s string) (content, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return content{}, false
	}
	source := slices.IndexFunc(w.sources, func(s *source) bool { return s.name == parts[0] })
	key, err1 := strconv.Atoi(parts[1])
	seq, err2 := strconv.Atoi(parts[2])
	return content{source, key, seq}, source >= 0 && err1 == nil && err2 == nil
}

// keyName is the full name of the config with an index.
func keyName(key int) string { return fmt.Sprintf("team-%02d/config-%06d", key%17, key) }

// parseKeyName is the inverse of keyName.
func parseKeyName(name string) (key int, ok bool) {
	_, digits, found := strings.Cut(name, "/config-")
	key, err := strconv.Atoi(digits)
	return key, found && err == nil && keyName(key) == name
}

// describe names a config for people.
func describe(key int) string { return kinds[key%len(kinds)].name + " " + keyName(key) }

// makeMetadata and makeBody make a content: it depends on nothing else, so that whoever
// sees one can tell whether it is as it was made.
func makeMetadata(source string, key, seq int) *mcp.Metadata {
	m := marker(source, key, seq)
	return &mcp.Metadata{
		Name:        keyName(key),
		CreateTime:  &timestamppb.Timestamp{Seconds: 1_700_000_000 + int64(key)},
		Version:     strconv.Itoa(seq),
		Labels:      map[string]string{"app": fmt.Sprintf("app-%d", key), "content": labelOf(m)},
		Annotations: map[string]string{markerAnnotation: m},
	}
}

func makeBody(source string, key, seq int) proto.Message {
	size := 1
	if key%10 == 0 {
		size = 40 // some are much larger than others
	}
	return kinds[key%len(kinds)].make(marker(source, key, seq), size)
}

func bodyURL(body proto.Message) string {
	return "type.googleapis.com/" + string(body.ProtoReflect().Descriptor().FullName())
}

// encode returns the element by which an istiod sends a content.
func encode(source string, key, seq int) (*anypb.Any, error) {
	deterministic := proto.MarshalOptions{Deterministic: true}
	body := makeBody(source, key, seq)
	encoded, err := deterministic.Marshal(body)
	if err != nil {
		return nil, err
	}
	value, err := deterministic.Marshal(&mcp.Resource{
		Metadata: makeMetadata(source, key, seq),
		Body:     &anypb.Any{TypeUrl: bodyURL(body), Value: encoded},
	})
	return &anypb.Any{TypeUrl: resourceURL, Value: value}, err
}

// world is the truth: the content of each source, its past, and the history that it has sent.
type world struct {
	sources []*source // the first that has a key wins
	keys    int
	most    int       // sources that have the same key
	pods    *podWorld // nil: there are none
	journal *journal

	mu sync.Mutex // guards the contents of the sources and all below
	// anyOrder is set while the order of the sources changes, and for a moment after.
	anyOrder bool
	// order is the order of the sources by which clients are to see them in the end.
	order   []int
	changes int
}

// source is one source of configs.
type source struct {
	number int
	name   string
	world  *world

	// items are guarded by the world, as is all else. Keys that the source never has are
	// not among them.
	items   map[int]*item
	byKind  [][]int  // the keys of each kind, in order
	revs    []uint64 // by kind: how often something of it has changed
	commit  uint64   // how often anything has
	changed chan struct{}
	// leaves means that a relay's config has lost the source, or is about to: whatever the source
	// says, clients may see it, and see it go.
	leaves bool
}

// item is one config of one source.
type item struct {
	seq     int
	present bool
	element *anypb.Any // nil unless it is present
	// holdFor is how long a guard is to hold its deletion.
	holdFor time.Duration
	// log has the commits of the source at which the item changed, since the history began.
	log []commit

	// history has the entries that the source has sent, oldest first. It is never empty: it
	// begins with a deletion. first is the number of its first entry.
	history []entry
	first   int
	// newest is the last entry that was new and no repetition.
	newest entry
}

// commit is a change of an item.
type commit struct {
	number  uint64
	seq     int
	present bool
}

// entry is one content, or a deletion, in the history of a config.
type entry struct {
	seq  int
	gone bool
	at   time.Time
	// notBefore is when a client may act on it at the earliest: a guard holds deletions.
	notBefore time.Time
}

// newWorld returns a world in which each source has every n-th key. The sources after it have
// some of these, too: up to most sources have the same key.
func newWorld(names []string, keys, most int, j *journal) *world {
	w := &world{keys: keys, most: most, journal: j}
	for n, name := range names {
		s := &source{
			number: n, name: name, world: w, items: map[int]*item{}, changed: make(chan struct{}),
			revs: make([]uint64, len(kinds)), byKind: make([][]int, len(kinds)),
		}
		w.sources, w.order = append(w.sources, s), append(w.order, n)
	}
	for key := range keys {
		for _, n := range w.holders(key) {
			s := w.sources[n]
			s.items[key] = &item{history: []entry{{gone: true}}, newest: entry{gone: true}}
			s.byKind[key%len(kinds)] = append(s.byKind[key%len(kinds)], key)
		}
	}
	return w
}

// holders returns the sources that have a key at times.
func (w *world) holders(key int) []int {
	first := key / len(kinds) % len(w.sources)
	out := []int{first}
	for i := 1; i < min(w.most-key%7, len(w.sources)); i++ {
		out = append(out, (first+i)%len(w.sources))
	}
	return out
}

// put makes a source give a key new content, if the key is one of its own.
func (w *world) put(source, key int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sources[source]
	it := s.items[key]
	if it == nil {
		return nil
	}
	element, err := encode(s.name, key, it.seq+1)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", describe(key), s.name, err)
	}
	it.holdFor = 0
	s.change(key, it, true, element)
	return nil
}

// remove makes a source delete a key. A guard must hold that back for holdFor. remove returns
// false if the source does not have the key.
func (w *world) remove(source, key int, holdFor time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sources[source]
	it := s.items[key]
	if it == nil || !it.present {
		return false
	}
	it.holdFor = holdFor
	s.change(key, it, false, nil)
	return true
}

// change is called with the world's lock.
func (s *source) change(key int, it *item, present bool, element *anypb.Any) {
	it.seq++
	it.present, it.element = present, element
	s.commit++
	s.world.changes++
	it.log = append(it.log, commit{s.commit, it.seq, present})
	if len(it.log) > maxLog {
		it.log = append(it.log[:0:0], it.log[len(it.log)/2:]...)
	}
	s.revs[key%len(kinds)]++
	what := "has"
	if !present {
		what = "deletes, as"
	}
	s.world.journal.of(key, "%s %s #%d", s.name, what, it.seq)
	close(s.changed)
	s.changed = make(chan struct{})
}

// maxLog bounds the commits of one item that are remembered.
const maxLog = 4096

// wait returns what will be closed on the next change, and the revision of each kind.
func (s *source) wait() (changed <-chan struct{}, revs []uint64) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.changed, slices.Clone(s.revs)
}

// leave notes that a relay's config loses these sources, and stay that it gets them back.
func (w *world) leave(sources []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range sources {
		s := w.sources[n]
		s.leaves = true
		for key, it := range s.items {
			s.recordLater(key, it.newest.seq, false, 0)
		}
	}
}

func (w *world) stay(sources []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range sources {
		w.sources[n].leaves = false
	}
}

// record appends to the history that the source has a content of a key, or none. The caller
// holds the world's lock, and has held it since it read the content.
func (s *source) record(key int, seq int, present bool) {
	s.recordLater(key, seq, present, s.items[key].holdFor)
}

// recordLater is record for a deletion that the relay may carry out only after a while.
func (s *source) recordLater(key int, seq int, present bool, after time.Duration) {
	it := s.items[key]
	if it.newest.gone == !present && (it.newest.seq == seq || it.newest.gone) {
		return
	}
	now := time.Now()
	e := entry{seq: seq, gone: !present, at: now}
	if !present {
		e.notBefore = now.Add(after)
	}
	it.newest = e
	it.history = append(it.history, e)
	if s.leaves && present {
		it.newest = entry{seq: seq, gone: true, at: now}
		it.history = append(it.history, it.newest)
	}
	// Entries before an old one are of use to nobody.
	if n := len(it.history); n > 64 && n&63 == 0 {
		old := 0
		for old < n-1 && now.Sub(it.history[old+1].at) > historyKept {
			old++
		}
		it.history = append(it.history[:0:0], it.history[old:]...)
		it.first += old
	}
}

// expected is what a client is to see of each key, when all is well.
func (w *world) expected() map[int]content {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[int]content, w.keys)
	for key := range w.keys {
		for _, n := range w.order {
			if it := w.sources[n].items[key]; it != nil && it.present {
				out[key] = content{n, key, it.seq}
				break
			}
		}
	}
	return out
}

// reorder changes the order of the sources. Until settled is called, clients may see either.
func (w *world) reorder(order []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order, w.anyOrder = slices.Clone(order), true
}

// settled notes that clients have come to see the present order.
func (w *world) settled() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.anyOrder = false
}

// present returns the keys of a source that it has now, in order.
func (s *source) present() []int {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	var out []int
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if s.items[key].present {
			out = append(out, key)
		}
	}
	return out
}
