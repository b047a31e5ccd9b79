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

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/internal/panics"
)

// maxViews bounds the derived views. Clients decide their number by the clusters and revisions that they
// claim.
const maxViews = 1024

// view is one selection of the merged view: a collection for each type. All its clients share the snapshots and
// encoded pages. Views share pages with one another.
type view struct {
	// views.mu guards these fields. The zero selection is the base view, which shows everything. sotw counts
	// the SotW clients by form. peers counts the clients of a derived view by peer, and by what they claim.
	selection views.Selection
	clients   int
	sotw      [snapshot.Forms]int
	peers     map[seat]int
	filling   *filling // nil: the view is filled, or the server does not serve yet
	// changes counts the changes of all collections. It is increased after each change.
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

// viewSet has the base view, and the derived views of the present clients.
type viewSet struct {
	resources Resources
	// panicked is called after a panic over an item, or over several items if the name is empty.
	panicked func(item string, p *panics.Panic)
	started  atomic.Bool // set before open reads everything
	// copies counts the derived views, including forks. It is increased before a view is filled.
	copies atomic.Int64
	fills  *semaphore.Weighted

	mu      sync.Mutex // serializes all changes to views and their content
	base    *view
	derived map[views.Selection]*view
	// forks are derived views of clients that were moved. A fork has the selection of another view, with its
	// own history. No client joins it.
	forks map[*view]struct{}
	known *views.Known
}

func newViews(resources Resources) *viewSet {
	return &viewSet{
		resources: resources, panicked: func(string, *panics.Panic) {}, base: &view{}, fills: semaphore.NewWeighted(maxFills),
		derived: map[views.Selection]*view{}, forks: map[*view]struct{}{}, known: views.NewKnown(),
	}
}

// copied returns all derived views. The caller holds mu.
func (vs *viewSet) copied() []*view {
	if len(vs.derived)+len(vs.forks) == 0 {
		return nil
	}
	return slices.AppendSeq(slices.Collect(maps.Values(vs.derived)), maps.Keys(vs.forks))
}

func (vs *viewSet) full() bool { return len(vs.derived)+len(vs.forks) >= maxViews }

// viewer describes a client for views.
type viewer struct {
	delta bool
	form  snapshot.Form // of a SotW client
	// peer is the peer whose views are counted, nil for none. maxViews is the limit of its views. Each cluster and revision
	// that it claims counts, also a made-up one that shares a view: a refusal tells no known one from that.
	seat
	maxViews int
}

type seat struct {
	peer  *admit.Peer
	claim views.Origin
}

// acquire returns the view of a selection, filled. The first client fills it, and the others wait. The caller
// releases the view.
func (vs *viewSet) acquire(ctx context.Context, x views.Selection, who viewer) (*view, error) {
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

// enter adds a client to the view of a selection. If the view is being filled, it returns the fill. first is
// set if the caller must carry it out.
func (vs *viewSet) enter(x views.Selection, who viewer) (v *view, f *filling, first bool, err error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v = vs.base
	if x != (views.Selection{}) {
		v = vs.derived[x]
		if err := vs.room(v, who); err != nil {
			return nil, nil, false, err
		}
		if v == nil {
			v = &view{selection: x}
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

// room returns an error if a client can not join a derived view. v is nil for a new view.
func (vs *viewSet) room(v *view, who viewer) error {
	switch {
	case v == nil && vs.full():
		return refusal.New(refusal.Views, codes.ResourceExhausted,
			"%d views, clusters and control plane revisions have clients, no more are served; try again later", maxViews)
	case who.peer != nil && (v == nil || v.peers[who.seat] == 0) && who.peer.Views >= who.maxViews:
		return refusal.New(refusal.Views, codes.ResourceExhausted,
			"streams of %s have %d views, clusters and control plane revisions, no more of one peer are served at once; try again later",
			who.peer.Name, who.peer.Views)
	}
	return nil
}

// join adds a client to a view. The caller holds mu.
func (vs *viewSet) join(v *view, who viewer) {
	v.clients++
	if !who.delta {
		v.sotw[who.form]++
	}
	if v == vs.base || who.peer == nil {
		return
	}
	if v.peers == nil {
		v.peers = map[seat]int{}
	}
	if v.peers[who.seat]++; v.peers[who.seat] == 1 {
		who.peer.Views++
	}
}

// release removes a client from a view. The last SotW client of a form also drops the encoded pages that no
// other view needs.
func (vs *viewSet) release(v *view, who viewer) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.leave(v, who)
}

// leave is release for a caller that holds mu.
func (vs *viewSet) leave(v *view, who viewer) {
	if who.peer != nil && v != vs.base {
		if v.peers[who.seat]--; v.peers[who.seat] == 0 {
			delete(v.peers, who.seat)
			who.peer.Views--
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
func (vs *viewSet) drop(v *view) {
	switch _, fork := vs.forks[v]; {
	case fork:
		delete(vs.forks, v)
	case vs.derived[v.selection] == v:
		delete(vs.derived, v.selection)
	default:
		return // the base view
	}
	vs.copies.Add(-1)
}

// dropEncoded drops the encodings of v's pages in a form, except those of pages that views with SotW clients
// of that form share.
func (vs *viewSet) dropEncoded(v *view, form snapshot.Form) {
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
