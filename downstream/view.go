package downstream

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
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
	// clients, the SotW clients among them, and of a derived view how many each peer has.
	variant variant
	clients int
	sotw    int
	peers   map[*peerUse]int
	filling *filling // nil: the view has its content, or the server does not serve yet
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
	fills  *semaphore.Weighted

	mu       sync.Mutex // serializes all changes to views and their content
	released bool
	base     *view
	derived  map[variant]*view
	// others are derived views of clients that were moved, and show what base or another of
	// derived does, but have a past of their own. Nobody joins them.
	others map[*view]struct{}
	known  *known
}

func newViews(configs Configs) *views {
	return &views{
		configs: configs, panicked: func(mirror.Key, *mirror.Panic) {}, base: newView(variant{}), fills: semaphore.NewWeighted(maxFills),
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

// viewer is a client of views.
type viewer struct {
	protocol string
	// peer is who the view is counted for, and maxViews how many it may have; nil: nobody.
	peer     *peerUse
	maxViews int
}

// acquire returns the view of a variant, with its content. The first client fills the view,
// others wait for that. The caller releases it.
func (vs *views) acquire(ctx context.Context, x variant, who viewer) (*view, error) {
	for {
		v, f, first, err := vs.enter(x, who)
		switch {
		case err != nil:
			return nil, err
		case first:
			err = vs.fill(ctx, v, f, who)
		case f != nil:
			err = f.wait(ctx)
		}
		if err == nil {
			return v, nil
		}
		vs.release(v, who)
		if first || !errors.Is(err, errFillLeft) {
			return nil, err
		}
	}
}

// enter counts a client of the view of a variant, and returns the view's fill if there is
// one. With first, the caller has to carry it out.
func (vs *views) enter(x variant, who viewer) (v *view, f *filling, first bool, err error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v = vs.base
	if x != (variant{}) {
		v = vs.derived[x]
		if err := vs.room(v, who); err != nil {
			return nil, nil, false, err
		}
		if v == nil {
			v = newView(x)
			vs.copies.Add(1)
			vs.derived[x] = v
			if vs.released {
				v.filling, first = newFilling(), true
			}
		}
	}
	vs.join(v, who)
	return v, v.filling, first, nil
}

// room returns an error when a client can not join a derived view, nil for a new one,
// because there are too many.
func (vs *views) room(v *view, who viewer) error {
	switch {
	case v == nil && vs.full():
		return refuse(reasonViews, codes.ResourceExhausted,
			"clients of %d views, clusters and control plane revisions are connected; one of another is refused", maxViews)
	case who.peer != nil && (v == nil || v.peers[who.peer] == 0) && who.peer.views >= who.maxViews:
		return refuse(reasonViews, codes.ResourceExhausted,
			"streams of %s have %d views, clusters and control plane revisions, no more of one peer are served at once (downstream.maxViewsPerPeer); try again later",
			who.peer.key, who.peer.views)
	}
	return nil
}

// join counts a client of a view. The caller holds mu.
func (vs *views) join(v *view, who viewer) {
	v.clients++
	if who.protocol == protocolSotW {
		v.sotw++
	}
	if v == vs.base || who.peer == nil {
		return
	}
	if v.peers == nil {
		v.peers = map[*peerUse]int{}
	}
	if v.peers[who.peer]++; v.peers[who.peer] == 1 {
		who.peer.views++
	}
}

// release gives a view back. With its last SotW client the encoded pages go that nobody
// else needs: they hold the resources' bytes a second time.
func (vs *views) release(v *view, who viewer) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.leave(v, who)
}

// leave is release for a caller that holds mu.
func (vs *views) leave(v *view, who viewer) {
	if who.peer != nil && v != vs.base {
		if v.peers[who.peer]--; v.peers[who.peer] == 0 {
			delete(v.peers, who.peer)
			who.peer.views--
		}
	}
	if v.clients--; v.clients == 0 {
		vs.drop(v)
	}
	if who.protocol == protocolDelta {
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
