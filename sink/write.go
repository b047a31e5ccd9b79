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
	"meshrelay/sink/lease"
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
		key, ended := e.queue.Get()
		for !ended && !e.open(time.Now()) {
			ended = !mirror.Sleep(ctx, standby)
		}
		if ended || ctx.Err() != nil {
			return
		}
		pause := e.serve(ctx, key)
		if e.queue.Done(key); pause >= 0 {
			e.queue.AddAfter(key, pause)
		}
	}
}

// open reports whether requests may be sent at a time.
func (e *engine) open(now time.Time) bool {
	if e.applies() && !e.lease.Writable(now) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.same == "" && e.frozen() == (lease.Note{}) && now.After(e.paused)
}

// compare looks whether an upstream reads the cluster of the sink, which must not write then.
func (e *engine) compare() {
	of := e.deps.Clusters()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.same = e.sameCluster(of)
}

func (e *engine) sameCluster(of map[string]string) string {
	for upstream, other := range of {
		if e.uid != "" && e.uid == other {
			return fmt.Sprintf("the upstream %s reads the same cluster (uid %s): name another cluster in one of them", upstream, e.uid)
		}
	}
	for _, upstream := range e.spec.Same {
		if e.uid == "" || of[upstream] == "" {
			return fmt.Sprintf("the upstream %s has the same connection, and it is not known whether it leads to another cluster: allow both to get the namespace kube-system, or name another cluster in one of them", upstream)
		}
	}
	return ""
}

// serve does what is to be done for a key. It returns the pause until the next look at the key, negative for none. While
// it sends a request, what the cluster tells of the object waits.
func (e *engine) serve(ctx context.Context, key mirror.Key) time.Duration {
	e.mu.Lock()
	_, doubt := e.doubted[key]
	is := e.core.Wanted(key) != nil
	verb := e.core.Next(key).Verb
	todo := doubt || verb.Writes()
	if verb == plan.Nothing {
		delete(e.troubles, key) // it was noted after the last touch
	}
	f, listed, failure := e.kinds[key.Kind], false, fmt.Errorf("the cluster does not serve %s, or the sink does not know yet", key.Kind)
	if f != nil {
		listed, failure = f.listed, f.err
	}
	e.mu.Unlock()
	switch {
	case f == nil && is:
		return e.fails(key, stateUnserved, failure)
	case !listed && failure != nil && is:
		return e.fails(key, stateFailed, failure)
	case !listed || !todo || e.limiter.Wait(ctx) != nil:
		return -1 // the list, or a change of what hinders, looks at the key again
	}
	e.mu.Lock()
	e.flying[key] = &flight{}
	e.mu.Unlock()
	defer e.land(key)
	if doubt {
		if _, err := e.look(ctx, key, f.Resource); err != nil {
			return e.fails(key, stateFailed, err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.driftPause(key)
	}
	return e.act(ctx, key, f.Resource)
}

// act sends the request for a key.
func (e *engine) act(ctx context.Context, key mirror.Key, of discovery.Resource) time.Duration {
	w := e.want(key, of.Version)
	if w.err != nil {
		return e.fails(key, stateRefused, w.err)
	}
	e.mu.Lock()
	d := e.core.Wanted(key)
	a := e.core.Next(key)
	unsaved := e.errs["state"] != nil
	e.mu.Unlock()
	switch {
	case (d != nil) != (w.Resource != nil) || d != nil && *d != w.digest:
		e.changed(key) // its resources have, or an upstream that may have it is heard again: nothing else tells of that
		return -1
	case !a.Verb.Writes(), a.Verb == plan.Delete && !e.applies():
		return -1
	case a.Verb == plan.Delete && unsaved:
		return judgeEach // a restart would forget what the guard has let pass
	case a.Verb == plan.Delete && len(e.withSilent(key, w.sources)) > 0:
		return judgeEach // an upstream may have it since it was judged
	case a.Verb == plan.Delete:
		return e.remove(ctx, key, of, a)
	}
	return e.apply(ctx, key, of, a, w)
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
		e.queue.Add(key)
	}
}

func pathOf(of discovery.Resource, key mirror.Key) string {
	return of.Path(key.Namespace) + "/" + url.PathEscape(key.Name)
}

// request makes the request that creates or changes an object.
func (e *engine) request(of discovery.Resource, key mirror.Key, b *body, force bool) (w apiserver.Write, err error) {
	w = apiserver.Write{Method: http.MethodPatch, Path: pathOf(of, key), Type: apiserver.TypeApply}
	w.Query = url.Values{"fieldManager": {managerOf(e.spec.Name)}, "fieldValidation": {"Strict"}}
	if force {
		w.Query.Set("force", "true")
	}
	w.Body, err = json.Marshal(b)
	return w, err
}

// apply creates or changes an object.
func (e *engine) apply(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, w wanted) time.Duration {
	w.body.Metadata.UID, w.body.Metadata.ResourceVersion = a.UID, a.Version
	if a.Verb == plan.Create {
		w.body.Metadata.ResourceVersion = firstVersion
	}
	r, err := e.request(of, key, w.body, a.Force)
	if err != nil {
		return e.fails(key, stateRefused, err)
	}
	if e.applies() {
		e.bind()
	} else {
		r.Query.Set("dryRun", "All")
	}
	r.Accept = apiserver.AcceptMetadata
	var o metav1.PartialObjectMetadata
	if err = e.send(ctx, r, &o); err != nil {
		return e.refused(ctx, key, of, a, err)
	}
	if !e.applies() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.troubles, key)
		return -1
	}
	live := e.liveOf(&o.ObjectMeta)
	live.Digest, live.Drifted = w.digest, false
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.core.Live(key)
	e.core.See(key, live)
	delete(e.troubles, key)
	switch {
	case a.Verb == plan.Create || before == nil || before.Sink == "" || live.Version == a.Version:
	case a.Drift:
		e.drifted(key, before.Manager, "changed")
	case before.Relay != "":
		e.tookOver(key, before.Relay)
	}
	return -1
}

// bind keeps the UID of the cluster, before the first write into it.
func (e *engine) bind() {
	e.mu.Lock()
	fresh := e.uid != "" && e.bound != e.uid
	if fresh {
		e.bound = e.uid
	}
	e.mu.Unlock()
	if fresh {
		e.save() //nolint:errcheck // it is a problem in the status
	}
}

// remove deletes an object.
func (e *engine) remove(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action) time.Duration {
	text := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":%q,"resourceVersion":%q}}`, a.UID, a.Version)
	err := e.send(ctx, apiserver.Write{Method: http.MethodDelete, Path: pathOf(of, key), Type: apiserver.TypeJSON, Body: text, Accept: apiserver.AcceptMetadata + "," + apiserver.AcceptJSON}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return e.refused(ctx, key, of, a, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.See(key, nil) // one with finalizers comes back with the next list
	delete(e.troubles, key)
	return -1
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
	err = conn.Write(ctx, w, to)
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) {
		e.mu.Lock()
		e.done++
		e.mu.Unlock()
	}
	return err
}

// look reads the metadata of an object, nil if there is none.
func (e *engine) look(ctx context.Context, key mirror.Key, of discovery.Resource) (l *plan.Live, err error) {
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return nil, e.client.Explain(err)
	}
	var o metav1.PartialObjectMetadata
	switch err := conn.Read(ctx, pathOf(of, key), apiserver.AcceptMetadata+","+apiserver.AcceptJSON, &o); {
	case err == nil:
		l = e.liveOf(&o.ObjectMeta)
	case !apierrors.IsNotFound(err):
		return nil, e.client.Explain(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.doubted, key)
	old := e.core.Live(key)
	wanted := e.core.Wanted(key) != nil
	if l == nil && old != nil && wanted {
		e.drifted(key, old.Manager, "deleted")
	}
	if l != nil && (l.Sink == e.spec.Name || l.Sink == "" && e.spec.Adopt && wanted) {
		follows(old, l)
		e.core.See(key, l)
	} else {
		e.core.See(key, nil)
	}
	return l, nil
}

// follows sets whether an object has drifted since it was seen as old. The times of managers, which have seconds, are
// not needed where it is known what the sink owned.
func follows(old, l *plan.Live) {
	switch {
	case old == nil || old.UID != l.UID:
		l.Drifted = false
	case old.Digest == l.Digest:
		l.Drifted = old.Drifted || old.Fields != l.Fields
	}
}
