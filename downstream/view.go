package downstream

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/mirror"
)

// maxViews bounds the revisions that clients can make the relay keep a view for.
const maxViews = 32

// view is what the clients of one control plane revision see of the merged view
// (PROTOCOL C11, S14): a collection for each kind. The clients of a view share its
// snapshots and their encoded pages.
type view struct {
	revision string // empty: everything
	clients  int    // guarded by views.mu
	sotw     int    // SotW clients among them
	// changes counts the changes to any of the collections. It is raised after them.
	changes atomic.Uint64
	empty   *snapshot // of kinds that nobody has

	mu     sync.RWMutex // guards byKind
	byKind map[mirror.Kind]*collection
}

func newView(revision string) *view {
	return &view{revision: revision, empty: newSnapshot(), byKind: map[mirror.Kind]*collection{}}
}

func (v *view) accepts(r *mirror.Resource) bool {
	return v.revision == "" || r.Revision() == "" || r.Revision() == v.revision
}

// snapshot returns the newest snapshot of a kind; of a kind that nobody has, the
// empty one.
func (v *view) snapshot(kind mirror.Kind) *snapshot {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if c := v.byKind[kind]; c != nil {
		return c.current.Load()
	}
	return v.empty
}

func (v *view) collection(kind mirror.Kind) *collection {
	v.mu.RLock()
	c := v.byKind[kind]
	v.mu.RUnlock()
	if c == nil {
		c = newCollection()
		v.mu.Lock()
		v.byKind[kind] = c
		v.mu.Unlock()
	}
	return c
}

func (v *view) kinds() []mirror.Kind {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]mirror.Kind, 0, len(v.byKind))
	for k := range v.byKind {
		out = append(out, k)
	}
	return out
}

// apply brings the view's collection of a kind to updates. Only one goroutine at a
// time calls it.
func (v *view) apply(kind mirror.Kind, updates []update, changedAt time.Time) bool {
	mine := make([]update, len(updates))
	for i, u := range updates {
		mine[i] = u
		if u.res != nil && !v.accepts(u.res) {
			mine[i].res = nil
		}
	}
	if !v.collection(kind).apply(mine, changedAt) {
		return false
	}
	v.changes.Add(1)
	return true
}

// views are the views that clients need at present, and the one of everything.
type views struct {
	configs Configs
	opening atomic.Bool // set before everything is read for the first time

	mu       sync.Mutex // serializes all changes to views and their content
	released bool
	byRev    map[string]*view
}

func newViews(configs Configs) *views {
	return &views{configs: configs, byRev: map[string]*view{"": newView("")}}
}

// acquire returns the view for a client. The caller releases it.
func (vs *views) acquire(revision, protocol string) (*view, error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.byRev[revision]
	if v == nil {
		if len(vs.byRev) >= maxViews {
			return nil, status.Errorf(codes.ResourceExhausted, "clients of %d control plane revisions are connected; one more is refused", maxViews)
		}
		v = newView(revision)
		if vs.released {
			vs.refresh(v, time.Now())
		}
		vs.byRev[revision] = v
	}
	v.clients++
	if protocol == protocolSotW {
		v.sotw++
	}
	return v, nil
}

// release gives a view back. When that was its last SotW client, the encoded pages, which
// hold the resources' bytes a second time, are dropped.
func (vs *views) release(v *view, protocol string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.clients--; v.clients == 0 && v.revision != "" {
		delete(vs.byRev, v.revision)
	}
	if protocol == protocolDelta {
		return
	}
	if v.sotw--; v.sotw > 0 {
		return
	}
	for _, kind := range v.kinds() {
		for _, p := range v.snapshot(kind).pages {
			p.encoded.Store(nil)
		}
	}
}

// open fills the views for the first time; before, nothing is pushed.
func (vs *views) open(now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.opening.Store(true)
	vs.released = true
	for _, v := range vs.byRev {
		vs.refresh(v, now)
	}
}

// update brings all views to the present content of keys, or of everything, and
// reports whether any differed.
func (vs *views) update(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if !vs.released {
		return false
	}
	changed := false
	if full {
		for _, v := range vs.byRev {
			changed = vs.refresh(v, changedAt) || changed
		}
		return changed
	}
	byKind := map[mirror.Kind][]update{}
	for key := range keys {
		byKind[key.Kind] = append(byKind[key.Kind], update{key.FullName(), vs.configs.Get(key)})
	}
	for kind, updates := range byKind {
		for _, v := range vs.byRev {
			changed = v.apply(kind, updates, changedAt) || changed
		}
	}
	return changed
}

// refresh compares a view with everything that there is.
func (vs *views) refresh(v *view, changedAt time.Time) bool {
	changed := false
	there := map[mirror.Kind]bool{}
	for _, kind := range vs.configs.Kinds() {
		there[kind] = true
		list := vs.configs.List(kind, "")
		updates := make([]update, 0, len(list))
		for _, r := range list {
			updates = append(updates, update{r.FullName(), r})
		}
		// Both are sorted by name.
		v.snapshot(kind).each(func(r *mirror.Resource) {
			for len(list) > 0 && list[0].FullName() < r.FullName() {
				list = list[1:]
			}
			if len(list) == 0 || list[0].FullName() != r.FullName() {
				updates = append(updates, update{name: r.FullName()})
			}
		})
		changed = v.apply(kind, updates, changedAt) || changed
	}
	for _, kind := range v.kinds() {
		if there[kind] {
			continue
		}
		var updates []update
		v.snapshot(kind).each(func(r *mirror.Resource) { updates = append(updates, update{name: r.FullName()}) })
		changed = v.apply(kind, updates, changedAt) || changed
	}
	return changed
}
