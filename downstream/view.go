package downstream

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/mirror"
)

// maxViews bounds the variants that clients, by what they say of themselves, can make the
// relay keep.
const maxViews = 1024

// view is what some clients see of all that the sources have: a collection for each kind.
// The clients of a view share its snapshots and their encoded pages, and views share pages
// with one another.
type view struct {
	// Guarded by views.mu: what the view shows (zero: everything, as the base view does), its
	// clients, and the SotW clients among them.
	variant variant
	clients int
	sotw    int
	// changes counts the changes to any of the collections. It is raised after them.
	changes atomic.Uint64
	empty   *snapshot // of kinds that nobody has

	mu     sync.RWMutex // guards byKind
	byKind map[mirror.Kind]*collection
}

func newView(v variant) *view {
	return &view{variant: v, empty: newSnapshot(), byKind: map[mirror.Kind]*collection{}}
}

// snapshot returns the newest snapshot of a kind; of a kind that nobody has, the
// empty one.
func (v *view) snapshot(kind mirror.Kind) *snapshot {
	if c := v.find(kind); c != nil {
		return c.current.Load()
	}
	return v.empty
}

func (v *view) find(kind mirror.Kind) *collection {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byKind[kind]
}

func (v *view) set(kind mirror.Kind, c *collection) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.byKind[kind] = c
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

// views are the views that clients need at present, and the one of everything.
type views struct {
	configs Configs
	// panicked is told of panics over a key, or over several when it has no name. fault, which
	// only tests set, panics.
	panicked func(mirror.Key, *mirror.Panic)
	fault    func(mirror.Key)
	opening  atomic.Bool // set before everything is read for the first time
	// copies counts the derived views, with others. It is raised before one is filled.
	copies atomic.Int64

	mu       sync.Mutex // serializes all changes to views and their content
	released bool
	base     *view
	derived  map[variant]*view
	// others are derived views of clients that were moved, and show what base or another of
	// derived does, but have a past of their own. Nobody joins them.
	others map[*view]struct{}
	known  known
}

func newViews(configs Configs) *views {
	return &views{
		configs: configs, panicked: func(mirror.Key, *mirror.Panic) {}, base: newView(variant{}),
		derived: map[variant]*view{}, others: map[*view]struct{}{}, known: newKnown(),
	}
}

// copied returns all derived views. The caller holds mu.
func (vs *views) copied() []*view {
	if len(vs.derived)+len(vs.others) == 0 {
		return nil
	}
	return slices.AppendSeq(slices.Collect(maps.Values(vs.derived)), maps.Keys(vs.others))
}

func (vs *views) full() bool { return len(vs.derived)+len(vs.others) >= maxViews }

// acquire returns the view for a client. The caller releases it.
func (vs *views) acquire(x variant, protocol string) (*view, error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.enter(x, protocol)
}

// enter is acquire for a caller that holds mu.
func (vs *views) enter(x variant, protocol string) (*view, error) {
	v := vs.base
	if x != (variant{}) {
		if v = vs.derived[x]; v == nil {
			if vs.full() {
				return nil, refuse(reasonViews, codes.ResourceExhausted,
					"clients of %d views, clusters and control plane revisions are connected; one of another is refused", maxViews)
			}
			v = newView(x)
			vs.copies.Add(1)
			if vs.released {
				vs.fill(v, time.Now())
			}
			vs.derived[x] = v
		}
	}
	v.join(protocol)
	return v, nil
}

func (v *view) join(protocol string) {
	v.clients++
	if protocol == protocolSotW {
		v.sotw++
	}
}

// release gives a view back. With its last SotW client the encoded pages go that nobody
// else needs: they hold the resources' bytes a second time.
func (vs *views) release(v *view, protocol string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.leave(v, protocol)
}

// leave is release for a caller that holds mu.
func (vs *views) leave(v *view, protocol string) {
	if v.clients--; v.clients == 0 {
		vs.drop(v)
	}
	if protocol == protocolDelta {
		return
	}
	if v.sotw--; v.sotw == 0 {
		vs.dropEncoded(v)
	}
}

// drop forgets a derived view.
func (vs *views) drop(v *view) {
	switch _, other := vs.others[v]; {
	case other:
		delete(vs.others, v)
	case vs.derived[v.variant] == v:
		delete(vs.derived, v.variant)
	default:
		return // the base view
	}
	vs.copies.Add(-1)
}

// dropEncoded drops the encodings of the pages of v, and of the base, that are in no view
// with SotW clients.
func (vs *views) dropEncoded(v *view) {
	var users []*view
	for _, u := range vs.copied() {
		if u.sotw > 0 {
			users = append(users, u)
		}
	}
	for _, kind := range vs.base.kinds() {
		if vs.base.sotw == 0 {
			for i, p := range vs.base.snapshot(kind).pages {
				if p.encoded.Load() != nil && !slices.ContainsFunc(users, func(u *view) bool { return u.shares(kind, i) }) {
					p.encoded.Store(nil)
				}
			}
		}
		c := v.find(kind)
		if c == nil {
			continue
		}
		// Views that leave out the same may have a page in common that was the base's.
		needed := map[*page]bool{}
		for _, u := range users {
			u.eachOwn(kind, func(p *page) { needed[p] = true })
		}
		v.eachOwn(kind, func(p *page) {
			if !needed[p] {
				p.encoded.Store(nil)
			}
		})
	}
}

// shares reports whether a derived view has the base page at that index.
func (v *view) shares(kind mirror.Kind, i int) bool {
	c := v.find(kind)
	if c == nil || i >= len(c.base) {
		return false
	}
	_, own := slices.BinarySearchFunc(c.own, i, func(r region, at int) int { return cmp.Compare(r.at, at) })
	return !own
}

// eachOwn calls f with each page of a derived view that is not the base's.
func (v *view) eachOwn(kind mirror.Kind, f func(*page)) {
	if c := v.find(kind); c != nil {
		for _, r := range c.own {
			for _, p := range r.pages {
				f(p)
			}
		}
	}
}
