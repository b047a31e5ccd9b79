package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/object"
	"meshrelay/upstreams/kubernetes/reflector"
)

const (
	rediscover   = 30 * time.Second // between two discoveries, and readings of the credentials
	maxObjects   = 128 << 20        // bytes of the metadata of one list
	maxOwned     = 200_000          // objects with the label, when more of them are not desired
	objectNeeds  = 256 + 4*maxText  // bytes that are kept of an object, about
	discoverSoon = time.Second      // after a start or a failure; then twice as long each time
)

// follower follows the metadata of the sink's objects of one kind. It implements reflector.Sink.
type follower struct {
	discovery.Resource
	e      *engine
	cancel context.CancelFunc

	// engine.mu guards these.
	listed bool
	err    error
}

// seen is the part of an object that is kept.
type seen struct{ *plan.Live }

// Size implements object.Input.
func (s seen) Size() int { return objectNeeds + len(s.Sources) }

// Prepare implements reflector.Sink.
func (f *follower) Prepare(o *object.Object) {
	live := f.e.liveOf(&o.ObjectMeta)
	o.ManagedFields = nil
	o.Clear()
	o.Made = &object.Made{Size: seen{live}.Size(), Input: seen{live}}
}

func (f *follower) keyOf(o *object.Object) mirror.Key {
	return mirror.Key{Kind: f.Kind, Namespace: o.Namespace, Name: o.Name}
}

// Replace implements reflector.Sink.
func (f *follower) Replace(all []*object.Object) {
	e := f.e
	e.mu.Lock()
	defer e.mu.Unlock()
	first := !f.listed
	f.listed, f.err = true, nil
	// While nothing is written, a list is newer than all that is known, and no worker looks.
	still := e.applies() && (!e.lease.Writable(time.Now()) || e.frozen() != (lease.Note{}))
	has := make(map[mirror.Key]struct{}, len(all))
	for _, o := range all {
		key := f.keyOf(o)
		has[key] = struct{}{}
		l := o.Made.Input.(seen).Live
		if old := e.core.Live(key); still && old != nil && e.flying[key] == nil {
			follows(old, l)
			e.take(key, l)
			continue
		} else if old != nil && old.UID == l.UID && l.Version != old.Version && older(l.Version, old.Version) {
			e.doubted[key] = struct{}{} // the cluster was restored, or it was written while the list was read
			e.queue.Add(key)
			continue
		}
		e.see(key, l, first)
	}
	var gone []mirror.Key
	e.core.Keys(func(key mirror.Key) {
		if _, is := has[key]; key.Kind == f.Kind && !is && e.core.Live(key) != nil {
			gone = append(gone, key)
		}
	})
	for _, key := range gone {
		if still && e.flying[key] == nil {
			e.take(key, nil)
			continue
		}
		e.doubted[key] = struct{}{} // it is gone, or was written while the list was read
		e.queue.Add(key)
	}
	if first {
		e.touchAll(f.Kind)
	}
}

// take takes what the cluster certainly has of a key, nil for nothing. The caller holds mu.
func (e *engine) take(key mirror.Key, l *plan.Live) {
	delete(e.doubted, key)
	e.core.See(key, l)
	e.touch(key)
}

// Put implements reflector.Sink.
func (f *follower) Put(o *object.Object) {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	f.e.see(f.keyOf(o), o.Made.Input.(seen).Live, false)
}

// Delete implements reflector.Sink.
func (f *follower) Delete(o *object.Object) {
	e, key := f.e, f.keyOf(o)
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.flying[key]; f != nil {
		f.next, f.gone = nil, true
		return
	}
	l := e.core.Live(key)
	if l == nil || l.UID != string(o.UID) {
		return
	}
	e.core.See(key, nil)
	delete(e.doubted, key)
	if e.core.Wanted(key) != nil && e.lease.Status().Held { // without the Lease it may be a promotion
		e.drifted(key, l.Manager, "deleted")
	}
	e.touch(key)
}

// Resumed implements reflector.Sink.
func (f *follower) Resumed() { f.Failed(nil) }

// Lost implements reflector.Sink.
func (f *follower) Lost(err error) {
	f.e.cluster.Broken()
	if err != nil {
		f.Failed(err)
	}
}

// Failed implements reflector.Sink. A nil error ends a failure.
func (f *follower) Failed(err error) {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	if err == nil {
		f.err = nil
		return
	}
	first := f.err == nil && !f.listed
	if f.err = fmt.Errorf("%s is not followed: %w", f.Kind, f.e.client.Explain(err)); first {
		f.e.touchAll(f.Kind) // what is desired of the kind can not be written
	}
}

// MayResume implements reflector.Sink. After a failure everything is listed again.
func (f *follower) MayResume() bool {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	return f.err == nil
}

// see takes an object of the cluster. first: it comes with the first list. The caller holds mu.
func (e *engine) see(key mirror.Key, l *plan.Live, first bool) {
	if f := e.flying[key]; f != nil {
		f.next = l // it may be the result of the request
		return
	}
	old := e.core.Live(key)
	if old != nil && old.UID == l.UID && older(l.Version, old.Version) {
		return
	}
	if delete(e.doubted, key); !first {
		follows(old, l)
	}
	if l.Sink != e.spec.Name {
		l = nil
	}
	if _, owned := e.core.Counts(); old == nil && l != nil && e.core.Wanted(key) == nil && owned >= maxOwned {
		if f := e.kinds[key.Kind]; f != nil {
			f.err = fmt.Errorf("%s: the cluster has more than %d objects with the label of the sink: find out who makes them; those above are left alone", key.Kind, maxOwned)
		}
		return
	}
	e.core.See(key, l)
	e.touch(key)
}

// older reports whether a version is not newer than another one of the same object.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return version == than || err == nil && order < 0
}

// touch has a worker look at a key, if there is something to do for it. The caller holds mu.
func (e *engine) touch(key mirror.Key) {
	a, pause := e.core.Next(key), time.Duration(0)
	if e.calm = false; a.Verb == plan.Nothing {
		delete(e.troubles, key)
		return
	}
	if f := e.kinds[key.Kind]; !e.discovered || f != nil && !f.listed && f.err == nil {
		return // the discovery, or the list, looks at all keys
	}
	if e.troubles[key] != nil {
		pause = retryFirst
	}
	if l := e.core.Live(key); a.Drift || a.Verb == plan.Create || l != nil && l.Relay != "" {
		pause = max(pause, e.driftPause(key))
	}
	e.queue.AddAfter(key, pause)
}

// touchAll touches all keys of a kind. The caller holds mu.
func (e *engine) touchAll(kind mirror.Kind) {
	e.core.Keys(func(key mirror.Key) {
		if key.Kind == kind {
			e.touch(key)
		}
	})
}

// connect reads the credentials, discovers the kinds that the cluster serves, and follows them, until ctx ends.
func (e *engine) connect(ctx context.Context) {
	defer e.followers.Wait()
	for wait := discoverSoon; ctx.Err() == nil; wait = min(2*wait, rediscover) {
		e.trouble("credentials", e.client.Refresh(ctx))
		err := e.discover(ctx)
		if e.trouble("discovery", err); err != nil {
			wait = discoverSoon
		}
		mirror.Sleep(ctx, wait) // a server that starts answers before it has read its definitions
	}
}

// discover fetches the kinds that the cluster serves, and follows the new ones.
func (e *engine) discover(ctx context.Context) error {
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return e.client.Explain(err)
	}
	wanted := e.deps.Resources.SourceKinds()
	for _, info := range mirror.Kinds() {
		wanted = append(wanted, info.Kind)
	}
	answer, err := discovery.Fetch(ctx, conn, wanted)
	if err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("discovery of the API server: %w: give the identity the ClusterRole system:discovery", err)
		}
		return e.client.Explain(err)
	}
	fresh := false
	e.mu.Lock()
	for _, kind := range wanted {
		best, served := answer.Best(kind)
		f := e.kinds[kind]
		if !served || kind == mirror.MeshConfig || f != nil && (f.Version == best.Version || !e.tracker.Improves(best, f.Resource, time.Now())) {
			continue
		}
		if f != nil {
			f.cancel()
		}
		e.follow(ctx, best)
		fresh = true
	}
	if !e.discovered {
		e.discovered = true
		e.core.Keys(e.touch) // also kinds that are not served
	}
	e.mu.Unlock()
	if fresh {
		e.readAll()
	}
	return nil
}

// follow begins to follow a kind. The caller holds mu.
func (e *engine) follow(ctx context.Context, r discovery.Resource) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{Resource: r, e: e, cancel: cancel}
	e.kinds[r.Kind] = f
	reader := reflector.New(reflector.Config{
		Name: r.Kind.String(), Path: r.Path(""), Selector: mirror.SinkLabel + "=" + e.spec.Name, Owners: true,
		AcceptList: apiserver.AcceptMetadataList, AcceptWatch: apiserver.AcceptMetadata + "," + apiserver.AcceptJSON,
		Pace:    reflector.Pace{Retry: 800 * time.Millisecond, RetryMax: 30 * time.Second, Request: 800 * time.Millisecond, Forgive: time.Hour},
		Connect: e.cluster.Verify, Begin: func() *object.Reading { return e.lists.Begin(true) }, Log: e.log,
	}, f)
	e.followers.Add(1)
	go func() {
		defer e.followers.Done()
		e.contain(func() { reader.Run(ctx) })
	}()
}

// kindProblems returns a line for each kind that is not followed, and whether all are listed. A kind that the identity
// may not list, and of which nothing is desired, does not count. The caller holds mu.
func (e *engine) kindProblems() (lines []string, listed bool) {
	listed = e.discovered
	for _, kind := range slices.SortedFunc(maps.Keys(e.kinds), mirror.CompareKinds) {
		f := e.kinds[kind]
		if apierrors.IsForbidden(f.err) && !e.core.Wants(kind) {
			continue
		}
		listed = listed && (f.listed || apierrors.IsForbidden(f.err))
		if f.err != nil && !errors.Is(f.err, context.Canceled) && len(lines) < maxListed {
			lines = append(lines, text.Abbreviate(f.err.Error()))
		}
	}
	return lines, listed
}
