package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
)

// firstVersion is a resourceVersion that no object has, because the first revision of etcd has no objects. A
// server-side apply with it creates an object, and never changes one. An object that a POST created would belong to
// another manager of the same name, and keep each field that a later apply leaves out.
const firstVersion = "1"

// standby is how long a worker waits before it asks again whether it may write.
const standby = 100 * time.Millisecond

var errNotWriter = errors.New("another process writes")

// work carries out what is due, until ctx ends.
func (e *engine) work(ctx context.Context) {
	for {
		for !e.open(time.Now()) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(standby):
			}
		}
		key, ok := e.queue.next(ctx)
		if !ok {
			return
		}
		e.queue.done(key, e.serve(ctx, key))
	}
}

// open reports whether requests may be sent at a time.
func (e *engine) open(now time.Time) bool {
	return now.UnixNano() >= e.paused.Load() && e.lease.Writable(now) && e.blocked() == ""
}

// compareClusters compares the cluster with those of the upstreams.
func (e *engine) compareClusters() {
	why := e.sameCluster()
	e.same.Store(&why)
}

// blocked returns why the sink must not write into its cluster.
func (e *engine) blocked() string {
	if why := e.same.Load(); why != nil {
		return *why
	}
	return "the cluster is not compared with those of the upstreams yet"
}

// sameCluster returns why the sink must not write into its cluster: an upstream reads it.
func (e *engine) sameCluster() string {
	e.mu.Lock()
	uid := e.uid
	e.mu.Unlock()
	of := e.deps.Clusters()
	for upstream, other := range of {
		if uid != "" && uid == other {
			return fmt.Sprintf("the upstream %s reads the same cluster (uid %s): name another cluster in one of them", upstream, uid)
		}
	}
	for _, upstream := range e.spec.Same {
		if uid == "" || of[upstream] == "" {
			return fmt.Sprintf("the upstream %s has the same connection, and it is not known whether it leads to another cluster: allow both to get the namespace kube-system, or name another cluster in one of them", upstream)
		}
	}
	return ""
}

// serve does what is to be done for a key. It returns the pause until the next look at the key, negative for none.
func (e *engine) serve(ctx context.Context, key mirror.Key) time.Duration {
	e.mu.Lock()
	_, doubt := e.doubted[key]
	f, listed := e.kinds[key.Kind], false
	var unlisted error
	if f != nil {
		listed, unlisted = f.listed, f.err
	}
	_, is := e.core.Wanted(key)
	a := e.core.Next(key)
	e.mu.Unlock()
	switch {
	case f == nil && is:
		return e.fails(key, stateUnserved, fmt.Sprintf("the cluster does not serve %s, or the sink does not know yet", key.Kind))
	case f == nil:
		return -1
	case !listed && unlisted != nil && is:
		return e.fails(key, stateFailed, unlisted.Error())
	case !listed:
		return -1 // the list looks at all keys
	}
	if doubt || a.Verb != plan.Nothing && a.Verb != plan.Skip && a.Verb != plan.Hold {
		if err := e.limiter.Wait(ctx); err != nil {
			return -1
		}
		return e.act(ctx, key, f.Resource, doubt)
	}
	return e.skip(key, a)
}

// skip notes why nothing is done for a key.
func (e *engine) skip(key mirror.Key, a plan.Action) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.Verb == plan.Nothing {
		delete(e.troubles, key)
	}
	return -1 // a change of the cause looks at the key again
}

// act sends the request for a key. While it does, what the cluster tells of the object waits.
func (e *engine) act(ctx context.Context, key mirror.Key, of discovery.Resource, doubt bool) time.Duration {
	e.mu.Lock()
	e.flying[key] = &flight{}
	e.mu.Unlock()
	defer e.land(key)
	if doubt {
		return e.refresh(ctx, key, of)
	}
	w := e.want(key)
	if w != nil && excluded(w.Resource) != "" {
		w = nil
	}
	e.mu.Lock()
	a := e.core.Next(key)
	_, is := e.core.Wanted(key)
	e.mu.Unlock()
	switch {
	case (w != nil) != is && (a.Verb == plan.Delete || w == nil):
		return standby // it has changed, and is about to be read again
	case a.Verb == plan.Delete:
		return e.remove(ctx, key, of, a)
	case a.Verb == plan.Create || a.Verb == plan.Apply:
		return e.apply(ctx, key, of, a, *w)
	}
	return e.skip(key, a)
}

// land takes what the cluster has told of an object during a request.
func (e *engine) land(key mirror.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.flying[key]
	delete(e.flying, key)
	switch l := e.core.Live(key); {
	case f.next != nil:
		e.see(key, f.next, false)
	case f.gone && l != nil:
		e.doubted[key] = struct{}{} // the deletion may be the one before the request
		e.queue.add(key, time.Now())
	}
}

func pathOf(of discovery.Resource, key mirror.Key) string {
	return of.Path(key.Namespace) + "/" + url.PathEscape(key.Name)
}

// apply creates or changes an object.
func (e *engine) apply(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, w wanted) time.Duration {
	b, digest, err := e.bodyOf(w, of.Version)
	if err != nil {
		return e.fails(key, stateRefused, err.Error())
	}
	b.Metadata.UID, b.Metadata.ResourceVersion = a.UID, a.Version
	if a.Verb == plan.Create {
		b.Metadata.ResourceVersion = firstVersion
	}
	query := url.Values{"fieldManager": {managerOf(e.spec.Name)}, "fieldValidation": {"Strict"}}
	if a.Force {
		query.Set("force", "true")
	}
	text, err := json.Marshal(b)
	if err != nil {
		return e.fails(key, stateRefused, err.Error())
	}
	var o partial
	err = e.send(ctx, apiserver.Write{Method: http.MethodPatch, Path: pathOf(of, key), Query: query, Type: apiserver.TypeApply, Body: text, Accept: acceptMetadata}, &o)
	if err != nil {
		return e.refused(ctx, key, of, a, err)
	}
	live := e.liveOf(&o.Metadata)
	live.Digest, live.Drifted = digest, false
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.core.Live(key)
	e.core.See(key, live)
	delete(e.troubles, key)
	switch changed := live.Version != a.Version; {
	case a.Verb == plan.Create:
		e.counts.write(resultCreated)
	case before != nil && before.Sink == "":
		e.counts.write(resultAdopted)
	case !changed:
		e.counts.write(resultUnchanged)
	default:
		e.counts.write(resultApplied)
		if a.Drift && before != nil {
			e.drifted(key, before.Manager, "changed")
		}
	}
	return -1
}

// remove deletes an object.
func (e *engine) remove(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action) time.Duration {
	text := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":%q,"resourceVersion":%q}}`, a.UID, a.Version)
	err := e.send(ctx, apiserver.Write{Method: http.MethodDelete, Path: pathOf(of, key), Type: apiserver.TypeJSON, Body: text, Accept: acceptMetadata + "," + apiserver.AcceptJSON}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return e.refused(ctx, key, of, a, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.See(key, nil) // one with finalizers comes back with the next list
	e.core.Deleted(time.Now())
	e.counts.deletes++
	delete(e.troubles, key)
	return -1
}

// acceptMetadata requests the metadata of an object.
const acceptMetadata = apiserver.AcceptMetadata

// partial is the metadata of an object.
type partial struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
}

// send sends a request if this process may write at that moment.
func (e *engine) send(ctx context.Context, w apiserver.Write, to any) error {
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	if !e.open(now) {
		return errNotWriter
	}
	ctx, cancel := context.WithDeadline(ctx, now.Add(apiserver.WriteTimeout)) // what Writable promises lasts from now
	defer cancel()
	return conn.Write(ctx, w, to)
}

// refresh reads the metadata of an object.
func (e *engine) refresh(ctx context.Context, key mirror.Key, of discovery.Resource) time.Duration {
	l, err := e.fetch(ctx, key, of)
	if err != nil {
		return e.fails(key, stateFailed, e.client.Explain(err).Error())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.doubted, key)
	old := e.core.Live(key)
	switch {
	case l == nil && old != nil:
		e.core.See(key, nil)
		if _, wanted := e.core.Wanted(key); wanted {
			e.drifted(key, old.Manager, "deleted")
		}
	case l != nil && l.Sink == e.spec.Name:
		if old != nil && old.UID == l.UID {
			l.Drifted = old.Drifted || old.Fields != l.Fields && old.Digest == l.Digest
		}
		e.core.See(key, l)
	default:
		e.core.See(key, nil)
	}
	if e.core.Next(key).Verb == plan.Nothing {
		return -1
	}
	return e.driftPause(key)
}

// fetch returns the metadata of an object, nil if there is no object.
func (e *engine) fetch(ctx context.Context, key mirror.Key, of discovery.Resource) (*plan.Live, error) {
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return nil, err
	}
	var o partial
	if err := conn.Read(ctx, pathOf(of, key), acceptMetadata+","+apiserver.AcceptJSON, &o); apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is no object
	} else if err != nil {
		return nil, err
	}
	return e.liveOf(&o.Metadata), nil
}
