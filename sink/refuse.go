package sink

import (
	"context"
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
	maxReason             = 512     // bytes
	maxDrifts             = 100_000 // objects
	// forgotten is after how long without another one a drift is put right without a pause for the earlier ones.
	forgotten = 10 * time.Minute
)

// Trouble is why an object is not as desired. State is conflict, foreign, refused, namespaceMissing, kindNotServed or
// failed.
type Trouble struct {
	Resource string    `json:"resource"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Retry    time.Time `json:"retry,omitzero"`
	failures int
	answered bool // by the cluster
}

// Drift counts how often others have changed or deleted an object. Manager is the last one, if it is known.
type Drift struct {
	Resource string    `json:"resource"`
	Manager  string    `json:"manager,omitempty"`
	What     string    `json:"what"` // changed or deleted
	Times    int       `json:"times"`
	At       time.Time `json:"at"`
}

// backoff returns the pause after a number of failures in a row.
func backoff(failures int) time.Duration { return min(retryFirst<<min(failures-1, 9), retryMost) }

// fails notes why an object is not as desired, and returns the pause until the next try.
func (e *engine) fails(key mirror.Key, state string, why error) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.troubles[key]
	if t == nil || t.State != state {
		t = &Trouble{Resource: key.String(), State: state, Since: time.Now()}
		e.troubles[key] = t
	}
	t.failures++
	t.answered = false
	pause := backoff(t.failures)
	t.Reason, t.Retry = text.Shorten(strings.ToValidUTF8(why.Error(), "?"), maxReason), time.Now().Add(pause)
	e.calm = false
	if t.failures == 1 {
		e.warnings.Warn(e.log, "object not written", "resource", t.Resource, "state", state, "reason", t.Reason)
	}
	return pause
}

// driftOf returns the drift of an object, a new one without a time if there was none lately. The caller holds mu.
func (e *engine) driftOf(key mirror.Key) *Drift {
	d := e.drifts[key]
	if d == nil || time.Since(d.At) > forgotten {
		for old := range e.drifts { // any
			if len(e.drifts) < maxDrifts {
				break
			}
			delete(e.drifts, old)
		}
		d = &Drift{Resource: key.String()}
		e.drifts[key] = d
	}
	return d
}

// drifted counts a change of an object by others. The caller holds mu.
func (e *engine) drifted(key mirror.Key, manager, what string) {
	d := e.driftOf(key)
	d.Times++
	d.At, d.Manager, d.What = time.Now(), text.Abbreviate(manager), what
	e.drift++
	e.warnings.Warn(e.log, "object was "+what+" by others", "resource", d.Resource, "manager", d.Manager, "times", d.Times)
}

// tookOver notes that this relay has written what another one had. A relay that got another name does so once for each object;
// more often it is a drift. The caller holds mu.
func (e *engine) tookOver(key mirror.Key, relay string) {
	d := e.driftOf(key)
	if !d.At.IsZero() {
		e.drifted(key, relay, "changed")
	}
	d.At = time.Now()
}

// driftPause returns how long a drift of an object is left: others who change it again and again win. The caller holds
// mu.
func (e *engine) driftPause(key mirror.Key) time.Duration {
	if d := e.drifts[key]; d != nil && d.Times > 0 && time.Since(d.At) < forgotten {
		return backoff(d.Times)
	}
	return 0
}

// refused takes the error of a request, and returns the pause until the next try.
func (e *engine) refused(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, err error) time.Duration {
	status := apierrors.APIStatus(nil)
	switch {
	case errors.Is(err, errNotWriter), ctx.Err() != nil:
		return 0
	case e.pause(err) || !errors.As(err, &status):
		return e.fails(key, stateFailed, e.client.Explain(err))
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if t := e.troubles[key]; t != nil {
			t.answered = true
		}
	}()
	s := status.Status()
	switch {
	case apierrors.IsConflict(err) && hasManagers(s) && a.Verb != plan.Create: // else an object is there: a server looks at managers first
		return e.fails(key, stateConflict, conflicts(s))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return e.reconsider(ctx, key, of, a, err)
	case apierrors.IsNotFound(err) && s.Details != nil && s.Details.Kind == "namespaces":
		why := fmt.Errorf("the namespace %s does not exist: create it, or set createNamespaces: true", key.Namespace)
		if e.spec.CreateNamespaces && !e.applies() {
			return retryMost // it would be created
		}
		if e.spec.CreateNamespaces && a.Verb == plan.Create {
			err := e.createNamespace(ctx, key.Namespace)
			if err == nil || apierrors.IsAlreadyExists(err) || errors.Is(err, errNotWriter) || e.pause(err) {
				return 0
			}
			why = fmt.Errorf("the namespace %s does not exist, and can not be created: %w", key.Namespace, e.client.Explain(err))
		}
		return e.fails(key, stateNamespace, why)
	case apierrors.IsNotFound(err) && a.Verb == plan.Apply:
		return e.reconsider(ctx, key, of, a, err)
	case apierrors.IsNotFound(err):
		return e.fails(key, stateUnserved, fmt.Errorf("the cluster does not serve %s %s any more", of.Kind, of.Version))
	case s.Code >= 400 && s.Code < 500 && !apierrors.IsUnauthorized(err), strings.Contains(s.Message, "typed patch object"): // a schema, by code 500
		return e.fails(key, stateRefused, errors.New(s.Message))
	}
	return e.fails(key, stateFailed, e.client.Explain(err))
}

// pause has all workers wait if a server asks for it.
func (e *engine) pause(err error) bool {
	seconds, wait := apierrors.SuggestsClientDelay(err)
	busy := apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err)
	webhook := strings.HasPrefix(err.Error(), "admission webhook ") // it asks for one object
	if !wait || !busy || webhook || seconds <= 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if until := time.Now().Add(min(time.Duration(seconds)*time.Second, retryMost)); until.After(e.paused) {
		e.paused = until
	}
	return true
}

// reconsider reads an object again that is not as the request expected it.
func (e *engine) reconsider(ctx context.Context, key mirror.Key, of discovery.Resource, a plan.Action, refusal error) time.Duration {
	l, err := e.look(ctx, key, of)
	switch {
	case err != nil:
		return e.fails(key, stateFailed, err)
	case l == nil && a.Verb == plan.Create, l != nil && l.UID == a.UID && l.Version == a.Version:
		return e.fails(key, stateRefused, refusal) // it is as expected: a webhook, or a quota, refuses it so
	case l == nil || l.Sink == e.spec.Name, e.spec.Adopt && l.Sink == "" && a.Verb == plan.Create:
		return standby
	case l.Sink != "":
		return e.fails(key, stateForeign, fmt.Errorf("the sink %s has written it: have only one of both write it", text.Abbreviate(l.Sink)))
	case !e.spec.Adopt:
		return e.fails(key, stateForeign, errors.New("it has no label of a sink: delete it, or take it over with adopt: true"))
	}
	return e.fails(key, stateConflict, errors.New("it changes all the time"))
}

// createNamespace creates a namespace without labels: it is not the sink's, which deletes none.
func (e *engine) createNamespace(ctx context.Context, name string) error {
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
	err := e.send(ctx, apiserver.Write{Method: http.MethodPost, Path: "/api/v1/namespaces", Type: apiserver.TypeJSON, Body: body, Accept: apiserver.AcceptMetadata + "," + apiserver.AcceptJSON}, nil)
	if err == nil {
		e.log.Info("namespace created", "namespace", name)
	}
	return err
}

func hasManagers(s metav1.Status) bool {
	return s.Details != nil && len(s.Details.Causes) > 0 && s.Details.Causes[0].Type == metav1.CauseTypeFieldManagerConflict
}

// conflicts tells which fields other managers own.
func conflicts(s metav1.Status) error {
	var parts []string
	for _, c := range s.Details.Causes {
		parts = append(parts, text.Abbreviate(c.Field)+": "+text.Abbreviate(c.Message))
	}
	return errors.New(strings.Join(parts, "; "))
}
