package mirror

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"unique"

	"meshrelay/internal/panics"
)

// Source is a store that the Aggregate merges, with the name of its upstream.
type Source struct {
	Name  string
	Store *Store
}

// Copy is one source's copy of a resource.
type Copy struct {
	Source   string
	Resource *Resource
}

// Change is a key whose copies may have changed.
type Change struct {
	Key Key
	// Old and New are the served resources of the key before and after; nil means none. The merged view may
	// be newer than New.
	Old, New *Resource
	// Resolution is nil when there are less than two copies, unless Owners have the key not served.
	Resolution *Resolution
}

// Visible reports whether clients see a difference. They see none when only a shadowed copy has changed.
func (c Change) Visible() bool { return !c.Old.Equal(c.New) }

// Aggregate merges many stores into one read-only view. Where several sources have a key, a Policy decides
// what is served; without one, First does. Its methods may be called from any goroutine.
type Aggregate struct {
	queue    *queue
	handlers []func(Change)
	panicked []func(Key, *panics.Panic)

	contents // the merged view
	// mu also guards all below.
	policies map[Kind]Policy
	others   Policy // of kinds that are not in policies
	derived
	broken   map[ref]struct{} // keys whose merge has panicked in rebuild too; they are left as they were
	unsynced int              // the sources before this place have synced
}

// derived is what an Aggregate derives from the sources, beside the merged view.
type derived struct {
	holders   holders
	groups    map[Kind]*groups
	claims    *claims        // nil without Owners
	allocated *claims        // of addresses
	bare      map[ref]string // why some clients are not served the allocated addresses
	siblings  map[ref][]ref
}

// newDerived returns what is derived from no content of the sources of h.
func newDerived(h holders, by Owners) derived {
	d := derived{holders: h, groups: map[Kind]*groups{}, allocated: newClaims(allocations{}, true), bare: map[ref]string{}, siblings: map[ref][]ref{}}
	if by != nil {
		d.claims = newClaims(by, false)
	}
	return d
}

// change is a key of the queue, with the result of its merge.
type change struct {
	ref
	by       *Store   // the first Store that has marked the key; may be nil
	also     []*Store // the other Stores that have
	old, cur *Resource
	// resolution is nil when there are less than two copies.
	resolution *Resolution
	panicked   *panics.Panic // while the key was merged
	allocates  bool          // whether a copy does
}

// batchLen is how many keys are merged under one lock.
const batchLen = 128

// NewAggregate returns an Aggregate over no sources.
func NewAggregate() *Aggregate {
	return &Aggregate{queue: newQueue(), others: First{}, contents: contents{index: index{}}, derived: newDerived(newHolders(nil), nil), broken: map[ref]struct{}{}}
}

// SetSources sets the stores to merge, in order of priority. It may be called at any time. The resources of
// other stores leave the merged view.
func (a *Aggregate) SetSources(sources []Source) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(a.holders.sources, sources) {
		return
	}
	was := a.holders
	a.holders = was.moved(sources)
	for s := range was.stores {
		if _, stays := a.holders.stores[s]; !stays {
			s.unfollow(a.queue)
		}
	}
	for s := range a.holders.stores {
		if _, stayed := was.stores[s]; !stayed {
			s.follow(a.queue)
		}
	}
	a.unsynced = 0
	a.markAll()
	Signal(a.queue.wake) // the initial content may be complete
}

// SetPolicies sets the policies, by kind. It may be called at any time. others is the Policy of all other
// kinds; nil is First. Singletons always have First.
func (a *Aggregate) SetPolicies(policies map[Kind]Policy, others Policy) {
	if others == nil {
		others = First{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policies, a.others, a.groups = maps.Clone(policies), others, map[Kind]*groups{}
	a.markAll()
}

// markAll queues every key that is served or has an entry in several. Stores have marked all other keys.
func (a *Aggregate) markAll() {
	clear(a.broken)
	for _, byName := range a.index {
		for _, r := range byName {
			a.queue.mark(r.ref(), nil)
		}
	}
	for k := range a.holders.entries {
		a.queue.mark(k, nil)
	}
}

// next merges a batch of keys from the head of the queue. After a panic it merges all keys anew, and returns them all.
func (a *Aggregate) next(batch []change) []change {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch = a.pop(batch)
	for i := range batch {
		c := &batch[i]
		if p := panics.Try(func() { a.merge(c) }); p != nil {
			c.panicked = p
			return a.rebuild(batch[:i+1])
		}
	}
	return batch
}

// pop moves keys from the head of the queue to batch. Claims mark each other at most once in a batch.
func (a *Aggregate) pop(batch []change) []change {
	if a.allocated.round++; a.claims != nil {
		a.claims.round++
	}
	return a.queue.pop(batch)
}

// rebuild merges all content of the sources anew, because a panic may have left half changed what is derived from it. Nobody reads
// meanwhile. A key that panics here, too, is left as it was told before, and all others are merged without it. tried was merged and
// is not told yet; the last one has panicked. The changes replace those of tried.
func (a *Aggregate) rebuild(tried []change) (all []change) {
	panicked := map[ref]*panics.Panic{}
	for _, c := range slices.Backward(tried) {
		a.index.replace(a.index.get(c.ref), c.old)
		panicked[c.ref] = cmp.Or(c.panicked, panicked[c.ref])
	}
	told, merged := a.index, map[ref]change{}
	for broken := -1; broken < len(a.broken); {
		broken = len(a.broken)
		clear(merged) // a source may have removed a key meanwhile
		a.restart()
		for batch := a.pop(make([]change, 0, batchLen)); len(batch) > 0; batch = a.pop(batch[:0]) {
			for _, c := range batch {
				if _, is := a.broken[c.ref]; is {
					a.leave(&c, told.get(c.ref))
				} else if p := panics.Try(func() { a.merge(&c) }); p != nil {
					a.broken[c.ref], panicked[c.ref] = struct{}{}, p
				}
				merged[c.ref] = c
			}
		}
	}
	for _, byName := range told {
		for _, r := range byName {
			if _, is := merged[r.ref()]; !is {
				merged[r.ref()] = change{ref: r.ref()}
			}
		}
	}
	for k, c := range merged {
		c.old, c.panicked = told.get(k), panicked[k]
		all = append(all, c)
	}
	return all
}

// restart forgets all that was merged, and queues all that the sources have.
func (a *Aggregate) restart() {
	var by Owners
	if a.claims != nil {
		by = a.claims.by
	}
	next := newHolders(a.holders.sources)
	next.looked = a.holders.looked
	a.index, a.derived = index{}, newDerived(next, by)
	a.queue.clear()
	for s := range a.holders.stores {
		s.unfollow(a.queue)
		s.follow(a.queue)
	}
}

// leave has a broken key served as r, without a merge.
func (a *Aggregate) leave(c *change, r *Resource) {
	a.index.replace(a.index.get(c.ref), r)
	a.holders.update(c, r)
	a.holders.keep(c.ref, r, r)
	c.old, c.cur = r, r
}

// merge resolves a key and puts the result into the merged view. A broken key waits for a change of a copy.
func (a *Aggregate) merge(c *change) {
	c.old = a.index.get(c.ref)
	if _, is := a.broken[c.ref]; is {
		a.leave(c, c.old)
		if c.by != nil { // what panics without having changed anything costs the others nothing
			c.panicked = panics.Try(func() { a.serve(c.ref, "", everything) })
		}
		if c.by == nil || c.panicked != nil {
			return
		}
		delete(a.broken, c.ref)
	}
	a.holders.update(c, c.old)
	keys := mergesKeys(a.policy(c.kind.Value()))
	if keys {
		a.regroup(c.ref)
	}
	if a.claims != nil && a.claims.by.Owns(c.kind.Value()) {
		a.reclaim(a.claims, c.ref, false)
	}
	if c.allocates || a.allocated.of(c.ref) != nil {
		a.reclaim(a.allocated, c.ref, false)
	}
	a.relate(c.ref)
	c.cur, c.resolution = a.serve(c.ref, "", everything)
	if c.cur != nil && c.cur != c.old && c.old.Equal(c.cur) && (keys || c.allocates) {
		// A Policy may make a new resource each time: equal content is never held twice.
		c.cur = c.old.withSourceVersion(c.cur.sourceVersion)
	}
	a.holders.keep(c.ref, c.old, c.cur)
	a.index.replace(c.old, c.cur)
	a.judgeAllocated(c)
	if a.claims != nil && c.cur != c.old {
		for _, k := range slices.Collect(maps.Keys(a.claims.follow[c.ref])) { // reclaim changes it
			a.queue.mark(k, nil)
			a.reclaim(a.claims, k, true)
		}
	}
}

func (a *Aggregate) policy(kind Kind) Policy {
	if p := a.policies[kind]; p != nil {
		return p
	}
	if kind.Singleton() {
		return First{}
	}
	return a.others
}

// copies returns the copies of a key that accept accepts, in order of priority.
func (a *Aggregate) copies(k ref, accept func(*Resource) bool) []Copy {
	var out []Copy
	accept = a.ofMain(k, accept)
	for _, p := range a.holders.of(k, a.index.get(k)) {
		if r := a.holders.copy(k, p); r != nil && accept(r) {
			out = append(out, Copy{a.holders.sources[p].Name, r})
		}
	}
	return out
}

// serve returns the resource that clients of a cluster are served under a key, if they see only the copies that
// accept accepts. It also returns the Resolution when there are several copies, or when Owners have
// the key not served. The caller holds mu.
func (a *Aggregate) serve(k ref, cluster string, accept func(*Resource) bool) (*Resource, *Resolution) {
	places := a.holders.of(k, a.index.get(k))
	if len(places) == 0 {
		return nil, nil
	}
	if len(places) == 1 && !mergesKeys(a.policy(k.kind.Value())) {
		r := a.holders.copy(k, places[0])
		if r == nil || !a.ofMain(k, accept)(r) {
			return nil, nil
		}
		if !a.isJudged(k) && a.allocated.of(k) == nil {
			return r, nil // the usual case, without an allocation
		}
	}
	r := a.resolve(k, cluster, accept)
	if len(r.Copies) < 2 && r.Yields == "" {
		return r.Served, nil
	}
	return r.Served, &r
}

// deliver calls the handlers for a batch. A panic of a handler ends the process: what the handler keeps may be half changed.
func (a *Aggregate) deliver(batch []change) {
	for i := range batch {
		c := &batch[i]
		a.report(c.ref, c.panicked)
		told := Change{Key: c.key(), Old: c.old, New: c.cur, Resolution: c.resolution}
		for _, h := range a.handlers {
			h(told)
		}
	}
	a.queue.done()
}

// report calls the panic handlers, unless p is nil.
func (a *Aggregate) report(r ref, p *panics.Panic) {
	if p == nil {
		return
	}
	for _, f := range a.panicked {
		f(r.key(), p)
	}
}

// Keys returns the merged keys of a kind, sorted by full name: all keys that a source has, served or not.
func (a *Aggregate) Keys(kind Kind) []Key {
	handle := unique.Make(kind)
	a.mu.RLock()
	names := slices.AppendSeq(make([]string, 0, len(a.index[handle])), maps.Keys(a.index[handle]))
	names = slices.AppendSeq(names, maps.Keys(a.holders.several[handle]))
	a.mu.RUnlock()
	slices.Sort(names)
	names = slices.Compact(names)
	out := make([]Key, len(names))
	for i, name := range names {
		out[i] = ref{handle, name}.key()
	}
	return out
}

// SourceKinds returns the kinds that have Keys, in sending order.
func (a *Aggregate) SourceKinds() []Kind {
	a.mu.RLock()
	out := slices.Collect(a.index.kinds)
	for k := range a.holders.several {
		if len(a.holders.several[k]) > 0 {
			out = append(out, k.Value())
		}
	}
	a.mu.RUnlock()
	slices.SortFunc(out, CompareKinds)
	return slices.Compact(out)
}

// RegisterHandler adds a handler, before Run is called. Handlers run in the order of their registration, on the
// goroutine of Run, and must not block.
func (a *Aggregate) RegisterHandler(h func(Change)) { a.handlers = append(a.handlers, h) }

// RegisterPanicHandler adds a handler for each panic while a key is merged, before Run is called. It may run
// on any goroutine.
func (a *Aggregate) RegisterPanicHandler(h func(key Key, p *panics.Panic)) {
	a.panicked = append(a.panicked, h)
}

// Run merges the keys of the queue and calls the handlers, until ctx ends. It is called once.
func (a *Aggregate) Run(ctx context.Context) error {
	room := make([]change, batchLen)
	for {
		a.checkInitial()
		select {
		case <-ctx.Done():
			return nil
		case <-a.queue.wake:
		}
		a.checkInitial()
		for ctx.Err() == nil {
			batch := a.next(room[:0])
			if len(batch) == 0 {
				break
			}
			a.deliver(batch)
			clear(room)
		}
	}
}

// checkInitial makes the keys queued so far the initial content once every source has synced.
func (a *Aggregate) checkInitial() {
	if a.queue.began {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.holders.sources[a.unsynced:] {
		if !s.Store.HasSynced() {
			return
		}
		a.unsynced++
	}
	a.queue.began = true
	a.queue.wait(a.queue.synced)
}

// Synced returns a channel. It is closed once every source has synced, and every handler was called for the
// content that the sources had then.
func (a *Aggregate) Synced() <-chan struct{} { return a.queue.synced }

// CaughtUp waits until the merged view has all changes of the sources, SetSources and SetPolicies that were
// made before the call. It returns the error of ctx when ctx ends. Run must be running.
func (a *Aggregate) CaughtUp(ctx context.Context) error { return a.queue.await(ctx) }
