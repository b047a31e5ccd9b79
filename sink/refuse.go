package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
)

// States of an object that is not as desired.
const (
	stateConflict  = "conflict"
	stateForeign   = "foreign"
	stateRefused   = "refused"
	stateNamespace = "namespaceMissing"
	stateUnserved  = "kindNotServed"
	stateFailed    = "failed"
)

const (
	retryFirst, retryMost = time.Second, 5 * time.Minute
	maxReason             = 512 // bytes
	maxCauses             = 8   // fields in conflict that are told
	// forgotten is after how long without another one a drift is put right without a pause for the earlier ones.
	forgotten = 10 * time.Minute
)

// trouble is why an object is not as desired.
type trouble struct {
	state, reason string
	since, retry  time.Time
	failures      int
}

// drift counts how often others have changed an object.
type drift struct {
	times         int
	at            time.Time
	manager, what string
}

// backoff returns the pause after a number of failures in a row.
func backoff(failures int) time.Duration {
	if failures > 9 {
		return retryMost
	}
	return min(retryFirst<<(failures-1), retryMost)
}

// fails notes why an object is not as desired, and returns the pause until the next try.
func (e *engine) fails(key mirror.Key, state, reason string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.troubles[key]
	if t == nil || t.state != state {
		t = &trouble{state: state, since: time.Now()}
		e.troubles[key] = t
	}
	t.failures++
	pause := backoff(t.failures)
	t.reason, t.retry = text.Shorten(strings.ToValidUTF8(reason, "?"), maxReason), time.Now().Add(pause)
	e.counts.write(state)
	e.warnings.Warn(e.log, "object not written", "resource", key.String(), "state", state, "reason", t.reason, "attempt", t.failures)
	return pause
}

// drifted counts a change of an object by others. The caller holds mu.
func (e *engine) drifted(key mirror.Key, manager, what string) {
	d := e.drifts[key]
	if d == nil || time.Since(d.at) > forgotten {
		if len(e.drifts) >= maxListed*workers {
			e.forgetDrifts()
		}
		d = &drift{}
		e.drifts[key] = d
	}
	d.times++
	d.at, d.manager, d.what = time.Now(), text.Abbreviate(manager), what
	e.counts.drift++
	e.warnings.Warn(e.log, "object was "+what+" by others", "resource", key.String(), "manager", d.manager, "times", d.times)
}

// forgetDrifts drops the oldest half. The caller holds mu.
func (e *engine) forgetDrifts() {
	n := len(e.drifts) / 2
	for _, d := range sortedDrifts(e.drifts)[:n] {
		delete(e.drifts, d.key)
	}
}

// driftOf returns the drift of an object, nil if there was none recently. The caller holds mu.
func (e *engine) driftOf(key mirror.Key) *drift {
	if d := e.drifts[key]; d != nil && time.Since(d.at) < forgotten {
		return d
	}
	return nil
}

// driftPause returns how long a drift of an object is left: others who change it again and again win. The caller holds
// mu.
func (e *engine) driftPause(key mirror.Key) time.Duration {
	if d := e.driftOf(key); d != nil {
		return backoff(d.times)
	}
	return 0
}

// refused takes the error of a request, and returns the pause until the next try.
func (e *engine) refused(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, err error) time.Duration {
	status := apierrors.APIStatus(nil)
	switch {
	case errors.Is(err, errNotWriter), ctx.Err() != nil:
		return 0
	case e.pause(err):
		return e.fails(key, stateFailed, err.Error())
	case !errors.As(err, &status):
		return e.fails(key, stateFailed, e.client.Explain(err).Error())
	}
	s := status.Status()
	switch {
	case apierrors.IsConflict(err) && hasManagers(s) && a.Verb != plan.Create: // else an object is there: a server looks at managers first
		return e.fails(key, stateConflict, conflictText(s))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return e.reconsider(ctx, key, of, a, err)
	case apierrors.IsNotFound(err) && s.Details != nil && s.Details.Kind == "namespaces":
		if e.spec.CreateNamespaces && a.Verb == plan.Create {
			if err := e.createNamespace(ctx, key.Namespace); err != nil && !apierrors.IsAlreadyExists(err) {
				return e.fails(key, stateNamespace, fmt.Sprintf("the namespace %s does not exist, and can not be created: %v", key.Namespace, e.client.Explain(err)))
			}
			return 0
		}
		return e.fails(key, stateNamespace, fmt.Sprintf("the namespace %s does not exist: create it, or set createNamespaces: true", key.Namespace))
	case apierrors.IsNotFound(err) && a.Verb == plan.Apply:
		return e.reconsider(ctx, key, of, a, err)
	case apierrors.IsNotFound(err):
		return e.fails(key, stateUnserved, "the cluster does not serve "+of.Kind.String()+" "+of.Version+" any more")
	case s.Code >= 400 && s.Code < 500 && !apierrors.IsUnauthorized(err):
		return e.fails(key, stateRefused, s.Message)
	}
	return e.fails(key, stateFailed, e.client.Explain(err).Error())
}

// pause has all workers wait if a server asks for it.
func (e *engine) pause(err error) bool {
	seconds, wait := apierrors.SuggestsClientDelay(err)
	busy := apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err)
	if !wait || !busy || seconds <= 0 { // a webhook may ask for a pause as well, for one object
		return false
	}
	until := time.Now().Add(min(time.Duration(seconds)*time.Second, retryMost)).UnixNano()
	for {
		old := e.paused.Load()
		if old >= until || e.paused.CompareAndSwap(old, until) {
			return true
		}
	}
}

// reconsider reads an object again that is not as the request expected it.
func (e *engine) reconsider(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, refusal error) time.Duration {
	l, err := e.fetch(ctx, key, of)
	if err != nil {
		return e.fails(key, stateFailed, e.client.Explain(err).Error())
	}
	e.mu.Lock()
	switch {
	case l != nil && (l.Sink == e.spec.Name || l.Sink == "" && e.spec.Adopt && a.Verb == plan.Create):
		old := e.core.Live(key)
		l.Drifted = old != nil && old.UID == l.UID && old.Fields != l.Fields
		e.core.See(key, l)
	default:
		e.core.See(key, nil)
	}
	e.mu.Unlock()
	switch {
	case l == nil && a.Verb == plan.Create, l != nil && l.UID == a.UID && l.Version == a.Version:
		return e.fails(key, stateRefused, refusal.Error()) // it is as expected: a webhook, or a quota, refuses it so
	case l == nil || l.Sink == e.spec.Name:
		return standby
	case l.Sink != "":
		return e.fails(key, stateForeign, fmt.Sprintf("the sink %s has written it: have only one of both write it", text.Abbreviate(l.Sink)))
	case !e.spec.Adopt:
		return e.fails(key, stateForeign, "it has no label of a sink: delete it, or take it over with adopt: true")
	case a.Verb == plan.Create:
		return 0
	}
	return e.fails(key, stateConflict, "it changes all the time")
}

// createNamespace creates a namespace without labels: it is not the sink's, which deletes none.
func (e *engine) createNamespace(ctx context.Context, name string) error {
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	if err != nil {
		return err
	}
	err = e.send(ctx, apiserver.Write{Method: http.MethodPost, Path: "/api/v1/namespaces", Type: apiserver.TypeJSON, Body: body, Accept: acceptMetadata + "," + apiserver.AcceptJSON}, nil)
	if err == nil {
		e.log.Info("namespace created", "namespace", name)
	}
	return err
}

func hasManagers(s metav1.Status) bool {
	return s.Details != nil && len(s.Details.Causes) > 0 && s.Details.Causes[0].Type == metav1.CauseTypeFieldManagerConflict
}

// conflictText tells which fields other managers own.
func conflictText(s metav1.Status) string {
	var parts []string
	for i, c := range s.Details.Causes {
		if i == maxCauses {
			parts = append(parts, fmt.Sprintf("and %d more", len(s.Details.Causes)-i))
			break
		}
		parts = append(parts, text.Abbreviate(c.Field)+": "+text.Abbreviate(c.Message))
	}
	return strings.Join(parts, "; ")
}
