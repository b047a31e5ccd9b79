package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	sinkName  = "dr"
	sinkLabel = "meshrelay.io/sink"
	// byAnnotation numbers the changes that the suite itself makes of objects.
	byAnnotation = "chaos.example/by"
	// deletionSlack is how old the reason for a deletion may be: a request of a sink takes up to 5 s, and a pause of the API
	// server as long.
	deletionSlack = 20 * time.Second
	// releaseSlack is for how long after an upstream has everything again a released deletion of before may still be
	// carried out: at another replica the same hold may begin ten minutes later.
	releaseSlack = 11 * time.Minute
)

// The phases of a sink, as its Lease has them. Otherwise it writes, and has none.
const (
	promoted  = "promoted"
	adopted   = "adopted"   // and still frozen
	leaseless = "leaseless" // somebody has deleted its Lease, and nobody has given an order since
)

// donePath is a ConfigMap that the suite changes when the command that promotes has succeeded, or all relays have told that
// they are blocked.
const donePath = "istio-system/chaos-promoted"

// siteObject is an object of the cluster.
type siteObject struct {
	uid, sink, by, marker, content string
	spec                           string // as etcd has it
	path, upstreams                string // the relays that it came through, and its upstreams, by annotations
}

// siteEntry is what people have ordered about an upstream, as the ConfigMap of the replicas has it.
type siteEntry struct {
	Counter  uint64
	Frozen   *struct{ Reason, Content string }
	Released []struct{ Reason string }
}

// siteHistory is the model of a cluster with a sink. It is told all that etcd has stored, in its order, and the answers of
// commands. It is safe for use by several goroutines.
type siteHistory struct {
	world *world
	// slack is deletionSlack, and now returns the time.
	slack time.Duration
	now   func() time.Time

	reading sync.Mutex // is held while an etcd is read

	mu       sync.Mutex // guards all below
	revision int64
	restored int64 // the last revision that a restored etcd began with: up to there nothing is judged, since it was before
	lacks    bool  // the ConfigMap of a restored etcd lacks orders
	objects  map[int]siteObject
	phase    string
	done     bool   // the command that promotes, or all relays, have said that nobody writes any more
	holdAll  bool   // every deletion waits for a person
	holder   string // of the Lease
	orders   map[string]siteEntry
	seen     map[string]bool // reasons of all orders
	// own are the numbers of changes, and the UIDs of deletions, that the suite makes itself.
	own map[string]bool
	// letGo has, by source, until when deletions that a person has released are right.
	letGo   map[int]map[int]time.Time
	deleted int // by the sink
	written int // by the sink
	// promotions is how often the Lease was written as promoted.
	promotions int
	changed    chan struct{}
}

func newSiteHistory(w *world) *siteHistory {
	return &siteHistory{
		world: w, slack: deletionSlack, now: time.Now, objects: map[int]siteObject{}, seen: map[string]bool{}, own: map[string]bool{},
		letGo: map[int]map[int]time.Time{}, changed: make(chan struct{}),
	}
}

// storeEvent is an event of etcd. A deletion has no value.
type storeEvent struct {
	Type string `json:"type"`
	KV   struct {
		Key      []byte `json:"key"`
		Value    []byte `json:"value"`
		Revision string `json:"mod_revision"`
	} `json:"kv"`
}

// follow tells a history all that an etcd stores, until ctx ends or something is wrong.
func (h *siteHistory) follow(ctx context.Context, url string, fail func(*violation)) {
	for ctx.Err() == nil {
		if bad := h.read(ctx, url); bad != nil {
			fail(bad)
			return
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

func (h *siteHistory) read(ctx context.Context, url string) *violation {
	h.reading.Lock()
	defer h.reading.Unlock()
	h.mu.Lock()
	from := h.revision + 1
	h.mu.Unlock()
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	body := fmt.Sprintf(`{"create_request": {"key": %q, "range_end": %q, "start_revision": %d}}`, b64("/registry/"), b64("/registry0"), from)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v3/watch", strings.NewReader(body))
	if err != nil {
		return nil
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // without a timeout
	if err != nil {
		return nil // it is down
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var answer struct {
			Result struct {
				Events []storeEvent `json:"events"`
			} `json:"result"`
		}
		if lines.Decode(&answer) != nil {
			return nil // it is down
		}
		for _, e := range answer.Result.Events {
			if bad := h.take(e); bad != nil {
				return bad
			}
		}
	}
}

// take takes the next event.
func (h *siteHistory) take(e storeEvent) *violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	revision, err := strconv.ParseInt(e.KV.Revision, 10, 64)
	if err != nil || revision < h.revision {
		return &violation{alive, "etcd", -1, fmt.Sprintf("its event has the revision %q after %d", e.KV.Revision, h.revision)}
	}
	h.revision = revision
	defer func() { close(h.changed); h.changed = make(chan struct{}) }()
	path := strings.TrimPrefix(string(e.KV.Key), "/registry/")
	switch path {
	case "configmaps/" + donePath:
		if revision > h.restored {
			h.done = h.phase == promoted || h.phase == leaseless
			h.world.journal.say("etcd %d: nobody writes any more: %t", revision, h.done)
		}
		return nil
	case "leases/istio-system/meshrelay-sink-" + sinkName:
		return h.lease(revision, e.KV.Value)
	case "configmaps/istio-system/relay-orders":
		var m struct{ Data struct{ Orders string } }
		_ = json.Unmarshal(e.KV.Value, &m)
		return h.ordered(revision, m.Data.Orders)
	}
	if key, ok := keyAt(path); ok {
		return h.object(revision, key, e.KV.Value)
	}
	return nil
}

// lease takes the Lease of the sink. That it is deleted ends no promotion, and no freeze (S2).
func (h *siteHistory) lease(revision int64, value []byte) *violation {
	var l struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct{ HolderIdentity string }
	}
	if json.Unmarshal(value, &l) != nil { // a deletion
		h.world.journal.say("etcd %d: the Lease is deleted", revision)
		if h.holder = ""; h.phase == "" && revision > h.restored {
			h.phase = leaseless
		}
		return nil
	}
	if h.holder != l.Spec.HolderIdentity {
		h.world.journal.say("etcd %d: the writer is %q after %q", revision, l.Spec.HolderIdentity, h.holder)
	}
	if h.holder = l.Spec.HolderIdentity; revision <= h.restored {
		return nil
	}
	h.holdAll = l.Metadata.Annotations["meshrelay.io/deletions"] == "held"
	was := h.phase
	switch frozen := l.Metadata.Annotations["meshrelay.io/frozen-since"] != ""; {
	case h.holder == promoted:
		h.phase = promoted
		h.promotions++
	case frozen && was != "":
		h.phase, h.done = adopted, false
	case was == promoted || was == leaseless:
		return &violation{afterPromotion, "the Lease", -1, fmt.Sprintf("etcd %d: %q has taken it, of a sink that is %s, without an order", revision, h.holder, was)}
	default:
		h.phase, h.done = "", false
	}
	if h.phase != was {
		h.world.journal.say("etcd %d: the sink is %q after %q", revision, h.phase, was)
	}
	return nil
}

// stands returns whether the sink must not write: it was promoted or has lost its Lease, and who knows has said so, or it is
// adopted and frozen.
func (h *siteHistory) stands() bool {
	return (h.phase == promoted || h.phase == leaseless) && h.done || h.phase == adopted
}

// keyAt returns the key of the object at a path of etcd.
func keyAt(path string) (key int, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 4 {
		return 0, false
	}
	key, ok = parseKeyName(parts[2] + "/" + parts[3])
	if !ok {
		return 0, false
	}
	k := kinds[key%len(kinds)]
	return key, parts[0] == k.group && parts[1] == pluralOf(k)
}

// ordered takes the orders of the replicas: of each upstream, the counter never falls, and no freeze ends with the same counter
// (S4). One may begin with it: two replicas that do not know of each other's order count alike, and then the one that freezes
// counts.
func (h *siteHistory) ordered(revision int64, text string) *violation {
	var now struct{ Upstreams map[string]siteEntry }
	if err := json.Unmarshal([]byte(text), &now); err != nil && text != "" {
		return &violation{forgotten, "the orders", -1, fmt.Sprintf("etcd %d: they can not be read: %v", revision, err)}
	}
	for upstream, was := range h.orders {
		is := now.Upstreams[upstream]
		if is.Counter > was.Counter || is.Counter == was.Counter && (is.Frozen != nil || was.Frozen == nil) {
			continue
		}
		if h.lacks { // replicas that know more write it again
			return nil
		}
		return &violation{forgotten, "the orders", -1, fmt.Sprintf("etcd %d: upstream %s has %+v after %+v", revision, upstream, is, was)}
	}
	h.lacks = false
	for upstream, is := range now.Upstreams {
		if was := h.orders[upstream]; is.Counter != was.Counter || len(is.Released) != len(was.Released) {
			h.world.journal.say("etcd %d: order %d about %s, frozen: %t, releases: %d", revision, is.Counter, upstream, is.Frozen != nil, len(is.Released))
		}
		if is.Frozen != nil {
			h.seen[is.Frozen.Reason] = true
		}
		for _, r := range is.Released {
			h.seen[r.Reason] = true
		}
	}
	h.orders = now.Upstreams
	return nil
}

// frozenNow returns the frozen upstreams, with what they are. The caller holds mu.
func (h *siteHistory) frozenNow() map[string]string {
	out := map[string]string{}
	for upstream, e := range h.orders {
		switch {
		case e.Frozen != nil && e.Frozen.Content != "":
			out[upstream] = "rollback"
		case e.Frozen != nil:
			out[upstream] = "freeze"
		}
	}
	return out
}

// frozen is frozenNow for those who do not hold mu.
func (h *siteHistory) frozen() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.frozenNow()
}

// parseSiteObject reads an object as etcd has it.
func parseSiteObject(value []byte) (o siteObject, err error) {
	var v struct {
		Metadata struct {
			UID         string
			Labels      map[string]string
			Annotations map[string]string
		}
		Spec json.RawMessage
	}
	err = json.Unmarshal(value, &v)
	var spec bytes.Buffer
	if err == nil && len(v.Spec) > 0 {
		err = json.Compact(&spec, v.Spec)
	}
	m := v.Metadata
	return siteObject{
		uid: m.UID, sink: m.Labels[sinkLabel], content: m.Labels["content"], by: m.Annotations[byAnnotation], marker: m.Annotations[markerAnnotation],
		path: m.Annotations["meshrelay.io/relays"], upstreams: m.Annotations["meshrelay.io/upstreams"], spec: spec.String(),
	}, err
}

// object takes what has become of the object of a key (S1, S2, S5).
func (h *siteHistory) object(revision int64, key int, value []byte) *violation {
	was, existed := h.objects[key]
	wrong := func(invariant, format string, args ...any) *violation {
		return &violation{invariant, fmt.Sprintf("the cluster at revision %d", revision), key,
			fmt.Sprintf(format, args...) + fmt.Sprintf("; the sink is %q, the writer is %q, and before the object was %+v", h.phase, h.holder, was)}
	}
	if len(value) == 0 {
		delete(h.objects, key)
		if revision <= h.restored {
			return nil
		}
		if h.own[was.uid] {
			h.world.journal.of(key, "etcd %d: somebody has deleted it", revision)
			return nil
		}
		h.deleted++
		h.world.journal.of(key, "etcd %d: the sink has deleted it, written by %s", revision, h.holder)
		switch {
		case was.sink != sinkName:
			return wrong(lostObject, "an object was deleted that is not the sink's")
		case h.stands() || h.holdAll:
			return wrong(afterPromotion, "an object was deleted by a sink that is promoted, or that nobody has looked at since")
		}
		if has := h.has(key); has != "" {
			return wrong(lostObject, "an object was deleted that %s still has", has)
		}
		return nil
	}
	is, err := parseSiteObject(value)
	if err != nil {
		return wrong(alive, "the object can not be read: %v", err)
	}
	if h.objects[key] = is; revision <= h.restored {
		return nil
	}
	if is.by != was.by && h.own[is.by] {
		h.world.journal.of(key, "etcd %d: somebody has changed it (%s)", revision, is.by)
		return nil
	}
	if h.stands() {
		return wrong(afterPromotion, "an object was written by a sink that is promoted, or was not unfrozen since: it is %+v now", is)
	}
	if existed && was.sink != sinkName {
		return wrong(notOurs, "an object without the label of the sink was written: it is %+v now", is)
	}
	h.written++
	h.world.journal.of(key, "etcd %d: the sink has written %s", revision, is.marker)
	return nil
}

// has returns the upstream that has told last that it has a key, and why that counts. Who has told otherwise within slack
// does not count.
func (h *siteHistory) has(key int) string {
	now := h.now()
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	for n, s := range h.world.sources {
		it := s.items[key]
		if it == nil || now.Before(h.letGo[n][key]) || it.newest.gone {
			continue
		}
		ok := false
		for i, e := range it.history {
			// A deletion counts until the next entry, and slack more. That of the start is none.
			if e.gone && !e.at.IsZero() && (i+1 == len(it.history) || now.Sub(it.history[i+1].at) < h.slack) {
				ok = true
			}
		}
		if !ok {
			return fmt.Sprintf("%s, which has told #%d %s,", s.name, it.newest.seq, age(now, it.newest.at))
		}
	}
	return ""
}

// release notes that a person releases what a source does not tell at present.
func (h *siteHistory) release(source int, keys []int, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.letGo[source] == nil {
		h.letGo[source] = map[int]time.Time{}
	}
	for _, key := range keys {
		h.letGo[source][key] = until
	}
}

// mine notes a change or deletion that the suite is about to make.
func (h *siteHistory) mine(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own[id] = true
}

// await waits until something is so, for some time at most. It reports whether it is.
func (h *siteHistory) await(ctx context.Context, within time.Duration, is func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		h.mu.Lock()
		done, changed := is(), h.changed
		h.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
