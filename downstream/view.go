package downstream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// maxViews bounds the variants that the claims of clients make the relay keep.
const maxViews = 1024

// view is what some clients see: a collection for each type. Its clients share snapshots and
// encoded pages, and views share pages with one another.
type view struct {
	// Guarded by views.mu: what the view shows (zero: everything, as the base view does), its
	// clients, the SotW clients among them by form, and of a derived view how many each peer has.
	variant variant
	clients int
	sotw    [snapshot.Forms]int
	peers   map[*peerUse]int
	filling *filling // nil: the view has its content, or the server does not serve yet
	// changes counts the changes to any of the collections. It is raised after them.
	changes atomic.Uint64
	byType  sync.Map // of *snapshot.Collection, by subscription.Type
}

// snapshot returns the newest snapshot of a type.
func (v *view) snapshot(t subscription.Type) *snapshot.Snapshot {
	if c := v.find(t); c != nil {
		return c.Current()
	}
	return snapshot.Empty
}

func (v *view) find(t subscription.Type) *snapshot.Collection {
	c, _ := v.byType.Load(t)
	found, _ := c.(*snapshot.Collection)
	return found
}

// each calls f with every collection of the view.
func (v *view) each(f func(subscription.Type, *snapshot.Collection)) {
	v.byType.Range(func(t, c any) bool {
		f(t.(subscription.Type), c.(*snapshot.Collection))
		return true
	})
}

// views are the views that clients need at present, and the one of everything.
type views struct {
	resources  Resources
	generators generators
	// panicked is called with panics over an item, or over several when it has no name.
	panicked func(item string, p *mirror.Panic)
	started  atomic.Bool // set before everything is read for the first time
	// copies counts the derived views, with forks. It is raised before one is filled.
	copies atomic.Int64
	fills  *semaphore.Weighted

	mu      sync.Mutex // serializes all changes to views and their content
	base    *view
	derived map[variant]*view
	// forks are derived views of clients that were moved: they show what another view does, with
	// a past of their own. No client joins them.
	forks map[*view]struct{}
	known *known
}

func newViews(resources Resources, gs generators) *views {
	return &views{
		resources: resources, generators: gs, panicked: func(string, *mirror.Panic) {}, base: &view{}, fills: semaphore.NewWeighted(maxFills),
		derived: map[variant]*view{}, forks: map[*view]struct{}{}, known: newKnown(),
	}
}

// copied returns all derived views. The caller holds mu.
func (vs *views) copied() []*view {
	if len(vs.derived)+len(vs.forks) == 0 {
		return nil
	}
	return slices.AppendSeq(slices.Collect(maps.Values(vs.derived)), maps.Keys(vs.forks))
}

func (vs *views) full() bool { return len(vs.derived)+len(vs.forks) >= maxViews }

// viewer is a client of views.
type viewer struct {
	delta bool
	form  snapshot.Form // of a SotW client
	// peer is who the view is counted for, and maxViews how many it may have; nil: nobody.
	peer     *peerUse
	maxViews int
}

// acquire returns the view of a variant, with its content: the first client fills it, others wait.
// The caller releases it.
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

// enter counts a client of the view of a variant, and returns the fill that the client waits for, or
// with first carries out.
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
			v = &view{variant: x}
			vs.copies.Add(1)
			vs.derived[x] = v
			if vs.started.Load() {
				v.filling, first = &filling{done: make(chan struct{}), all: true}, true
			}
		}
	}
	vs.join(v, who)
	return v, v.filling, first, nil
}

// room returns why a client can not join a derived view, nil for a new one.
func (vs *views) room(v *view, who viewer) error {
	switch {
	case v == nil && vs.full():
		return refusal.New(refusal.Views, codes.ResourceExhausted,
			"clients of %d views, clusters and control plane revisions are connected; one of another is refused", maxViews)
	case who.peer != nil && (v == nil || v.peers[who.peer] == 0) && who.peer.views >= who.maxViews:
		return refusal.New(refusal.Views, codes.ResourceExhausted,
			"streams of %s have %d views, clusters and control plane revisions, no more of one peer are served at once (downstream.maxViewsPerPeer); try again later",
			who.peer.key, who.peer.views)
	}
	return nil
}

// join counts a client of a view. The caller holds mu.
func (vs *views) join(v *view, who viewer) {
	v.clients++
	if !who.delta {
		v.sotw[who.form]++
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

// release gives a view back. The last SotW client of a form takes the encoded pages along that nobody
// else needs.
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
	if who.delta {
		return
	}
	if v.sotw[who.form]--; v.sotw[who.form] == 0 {
		vs.dropEncoded(v, who.form)
	}
}

// drop forgets a derived view.
func (vs *views) drop(v *view) {
	switch _, fork := vs.forks[v]; {
	case fork:
		delete(vs.forks, v)
	case vs.derived[v.variant] == v:
		delete(vs.derived, v.variant)
	default:
		return // the base view
	}
	vs.copies.Add(-1)
}

// dropEncoded drops the encodings in a form of the pages of v that are in no view with SotW clients of
// that form.
func (vs *views) dropEncoded(v *view, form snapshot.Form) {
	users := slices.DeleteFunc(append(vs.copied(), vs.base), func(u *view) bool { return u.sotw[form] == 0 })
	v.each(func(t subscription.Type, c *snapshot.Collection) {
		var of []*snapshot.Collection
		for _, u := range users {
			if c := u.find(t); c != nil {
				of = append(of, c)
			}
		}
		c.DropEncoded(form, of)
	})
}
