package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
)

// MaxDifferences bounds the differences of one answer.
const MaxDifferences = 100

// Difference is what a sink would change of an object.
type Difference struct {
	Resource string `json:"resource"`
	// Do is create, apply or delete.
	Do string `json:"do"`
	// Live is the object of the cluster, Then the one after the change: JSON, empty for none.
	Live json.RawMessage `json:"live,omitempty"`
	Then json.RawMessage `json:"then,omitempty"`
	// Error is why the cluster would refuse the change, or why it is not known.
	Error string `json:"error,omitempty"`
}

// Differences are the first differences between a cluster and what is desired, and the number of all.
type Differences struct {
	Total       int          `json:"total"`
	Differences []Difference `json:"differences"`
}

// Diff asks the cluster of a sink what its writes would change, and changes nothing: of one object, or of the first
// most objects if key is nil.
func (s *Set) Diff(ctx context.Context, name string, key *mirror.Key, most int) (Differences, error) {
	e, err := s.find(name)
	if err != nil {
		return Differences{}, err
	}
	var keys []mirror.Key
	e.mu.Lock()
	if !e.read || !e.discovered {
		e.mu.Unlock()
		return Differences{}, fmt.Errorf("%w: the sink %s starts, and has not read everything yet: \"relay sink status %[2]s\" tells why", ErrNotPossible, name)
	}
	e.core.Keys(func(k mirror.Key) {
		a := e.core.Next(k)
		if key != nil && k == *key || key == nil && (a.Verb == plan.Create || a.Verb == plan.Apply || a.Verb == plan.Delete || a.Verb == plan.Hold || a.Reason == plan.ReasonFrozen) {
			keys = append(keys, k)
		}
	})
	e.mu.Unlock()
	slices.SortFunc(keys, compareKeys)
	out := Differences{Total: len(keys), Differences: []Difference{}}
	for _, k := range keys[:min(len(keys), most, MaxDifferences)] {
		d, err := e.difference(ctx, k)
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		if err != nil {
			d.Error = e.client.Explain(err).Error()
		}
		out.Differences = append(out.Differences, d)
	}
	return out, nil
}

// difference asks for the difference of one object.
func (e *engine) difference(ctx context.Context, key mirror.Key) (Difference, error) {
	e.mu.Lock()
	f, live := e.kinds[key.Kind], e.core.Live(key)
	e.mu.Unlock()
	d := Difference{Resource: key.String()}
	if f == nil {
		return d, fmt.Errorf("the cluster does not serve %s", key.Kind)
	}
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return d, err
	}
	var now map[string]any
	if err := conn.Read(ctx, pathOf(f.Resource, key), apiserver.AcceptJSON, &now); err != nil && !apierrors.IsNotFound(err) {
		return d, err
	}
	if d.Live, err = plainObject(now); err != nil {
		return d, err
	}
	w := e.want(key)
	switch {
	case w == nil:
		d.Do = words[plan.Delete]
		return d, nil
	case now == nil:
		d.Do = words[plan.Create]
	default:
		d.Do = words[plan.Apply]
	}
	if now != nil && live == nil && !e.spec.Adopt {
		return d, fmt.Errorf("the object has no label of this sink: delete it, or take it over with adopt: true")
	}
	return d, e.dryRun(ctx, conn, f.Resource, key, *w, &d)
}

// dryRun asks a server for the result of an apply.
func (e *engine) dryRun(ctx context.Context, conn *apiserver.Conn, of discovery.Resource, key mirror.Key, w wanted, d *Difference) error {
	b, _, err := e.bodyOf(w, of.Version)
	if err != nil {
		return err
	}
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	query := url.Values{"fieldManager": {managerOf(e.spec.Name)}, "fieldValidation": {"Strict"}, "dryRun": {"All"}}
	if e.spec.Conflicts == config.ConflictsTake || e.spec.Adopt {
		query.Set("force", "true")
	}
	var then map[string]any
	if err := conn.Write(ctx, apiserver.Write{Method: http.MethodPatch, Path: pathOf(of, key), Query: query, Type: apiserver.TypeApply, Body: body}, &then); err != nil {
		return err
	}
	d.Then, err = plainObject(then)
	return err
}

// plainObject returns an object without the fields that the server writes, nil for none.
func plainObject(o map[string]any) (json.RawMessage, error) {
	if o == nil {
		return nil, nil
	}
	delete(o, "status")
	if m, ok := o["metadata"].(map[string]any); ok {
		for _, field := range []string{"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"} {
			delete(m, field)
		}
	}
	return json.Marshal(o)
}
