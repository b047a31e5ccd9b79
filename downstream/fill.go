package downstream

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

const (
	// maxFills bounds the fills at the same time. One peer may have three quarters of them.
	maxFills = 8
	// maxFillRounds bounds the rounds of a fill that run without views.mu.
	maxFillRounds = 4
	// fewMissed is how many missed keys the last round of a fill reads while it holds views.mu.
	fewMissed = 256
)

var (
	// errFillLeft ends the fill of a view whose client has left.
	errFillLeft = errors.New("the client that filled the view has left")
	// errFillFailed ends the streams that wait for a view whose fill panicked.
	errFillFailed = status.Error(codes.Internal, "internal error; see the relay's log")
)

// filling is the state of a fill: it gives a new view its content, without holding views.mu. Until the fill
// is done, pushes do not update the view, but add their keys to missed.
type filling struct {
	done chan struct{} // closed at the end
	err  error         // why the fill failed; set before done is closed

	// views.mu guards missed and all. missed has the keys that may have changed since the fill read them; all
	// means every key.
	missed map[mirror.Key]struct{}
	all    bool
}

// miss adds keys that may have changed.
func (f *filling) miss(full bool, keys map[mirror.Key]struct{}) {
	f.all = f.all || full
	if f.all {
		f.missed = nil
		return
	}
	if f.missed == nil {
		f.missed = make(map[mirror.Key]struct{}, len(keys))
	}
	maps.Copy(f.missed, keys)
}

// wait waits for the end of the fill, or of ctx.
func (f *filling) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// draft is the content of a view that no client sees yet.
type draft struct {
	cluster string
	accepts func(*mirror.Resource) bool
	byType  map[subscription.Type]*snapshot.Collection

	mu   sync.Mutex // guards the fields below: several goroutines read resources
	seen map[views.Origin]struct{}
	last views.Origin // the origin added last: most resources have the same
}

// see notes the origin of a resource.
func (d *draft) see(r *mirror.Resource) views.Origin {
	o := views.OriginOf(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	if o != d.last {
		d.seen[o] = struct{}{}
		d.last = o
	}
	return o
}

// fill reads the content of a new view, and closes f.done. The caller does not hold mu.
func (vs *viewSet) fill(ctx context.Context, v *view, f *filling, who viewer) (err error) {
	defer func() {
		if err != nil {
			vs.mu.Lock()
			vs.drop(v) // nobody else joins it
			vs.mu.Unlock()
			f.err = err
		}
		close(f.done)
	}()
	release, err := vs.fillSlot(ctx, who)
	if err != nil {
		return errFillLeft
	}
	defer release()
	if _, ok := vs.try("", func() bool { err = vs.fillRounds(ctx, v, f); return true }); !ok {
		return errFillFailed
	}
	return err
}

// fillSlot waits until neither the peer nor the server has too many fills.
func (vs *viewSet) fillSlot(ctx context.Context, who viewer) (release func(), err error) {
	own := semaphore.NewWeighted(1)
	if who.peer != nil {
		own = who.peer.Fills
	}
	if err := own.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := vs.fills.Acquire(ctx, 1); err != nil {
		own.Release(1)
		return nil, err
	}
	return func() { vs.fills.Release(1); own.Release(1) }, nil
}

// fillRounds reads everything, and then, round by round, the keys that changed meanwhile. When they are few,
// or after maxFillRounds, it reads them while it holds mu, and publishes the content.
func (vs *viewSet) fillRounds(ctx context.Context, v *view, f *filling) error {
	d := &draft{cluster: v.selection.Cluster, seen: map[views.Origin]struct{}{}}
	d.accepts = v.selection.Accepting(func(r *mirror.Resource) bool { return vs.known.Knows(d.see(r)) })
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for round := 0; ; round++ {
		if ctx.Err() != nil && v.clients == 1 {
			return errFillLeft
		}
		missed, all := f.missed, f.all
		f.missed, f.all = nil, false
		bases := map[subscription.Type]snapshot.Basis{}
		vs.base.each(func(t subscription.Type, c *snapshot.Collection) { bases[t] = c.Basis() })
		if round > 0 && (!all && len(missed) <= fewMissed || round >= maxFillRounds) {
			vs.read(d, missed, all, bases)
			vs.publish(v, d)
			return nil
		}
		vs.unlocked(func() { vs.read(d, missed, all, bases) })
	}
}

// unlocked unlocks mu while f runs. The caller holds mu.
func (vs *viewSet) unlocked(f func()) {
	vs.mu.Unlock()
	defer vs.mu.Lock()
	f()
}

// read updates a draft with the present content of the missed keys, or of all keys. bases are the base
// collections that the draft follows.
func (vs *viewSet) read(d *draft, missed map[mirror.Key]struct{}, all bool, bases map[subscription.Type]snapshot.Basis) {
	if all {
		d.byType = map[subscription.Type]*snapshot.Collection{}
	}
	from := &reader{vs.resources, d.cluster, d.accepts, func(r *mirror.Resource) { d.see(r) }}
	for t, list := range vs.affected(all, missed) {
		list.sort()
		updates := make([]snapshot.Update, len(list.all))
		list.read(from, updates)
		c := d.byType[t]
		if c == nil {
			if snapshot.AllGone(updates) {
				continue
			}
			c = snapshot.NewDerived()
			d.byType[t] = c
		}
		b, ok := bases[t]
		if !ok {
			b = (*snapshot.Collection)(nil).Basis()
		}
		c.Begin(b, updates, time.Now())
	}
}

// publish makes a draft the content of a view. The caller holds mu.
func (vs *viewSet) publish(v *view, d *draft) {
	for t, c := range d.byType {
		vs.collection(t) // makes the base collection, if it is missing
		v.byType.Store(t, c)
	}
	for o := range d.seen {
		vs.known.Note(o, vs.strangers)
	}
	v.filling = nil
	v.changes.Add(1)
}
