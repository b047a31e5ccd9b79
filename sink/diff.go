package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// Difference is what a sink would change of an object.
type Difference struct {
	Resource string `json:"resource"`
	// Do is create, apply, delete, held, left, or added for an object that has only Added.
	Do string `json:"do"`
	// Added are fields of the spec that others have added at the site. They stay.
	Added []string `json:"added,omitempty"`
	// Live is the object of the cluster, Then the one after the change, nil for none.
	Live *kube.Object `json:"live,omitempty"`
	Then *kube.Object `json:"then,omitempty"`
	// Error is why the cluster would refuse the change, or why it is not known.
	Error string `json:"error,omitempty"`
}

// Differences are a page of the differences between a cluster and what is desired.
type Differences struct {
	Differences []Difference `json:"differences"`
	// Left counts the objects after the page that may differ.
	Left int `json:"left"`
	// Next is what Wanted.After has for the next page, empty for none.
	Next string `json:"next,omitempty"`
}

// Wanted are the differences to show. Empty fields stand for all.
type Wanted struct {
	Kind, Namespace string // kind or group/kind
	Do              string
	After           string // resource
}

func (q Wanted) has(k mirror.Key, do string) bool {
	return (q.Kind == "" || strings.EqualFold(q.Kind, k.Kind.Kind) || strings.EqualFold(q.Kind, k.Kind.String())) &&
		(q.Namespace == "" || q.Namespace == k.Namespace) && (q.Do == "" || q.Do == do)
}

// Diff asks the cluster of a sink what its writes would change, and changes nothing. It returns up to a hundred differences.
func (s *Set) Diff(ctx context.Context, name string, q Wanted) (Differences, error) {
	e, err := s.find(name)
	if err != nil {
		return Differences{}, err
	}
	all := map[string]mirror.Key{}
	do := map[string]string{}
	e.mu.Lock()
	starts, other := !e.read || !e.discovered, e.other
	e.core.Keys(func(k mirror.Key) {
		verb := words[e.core.Next(k).Verb]
		if l := e.core.Live(k); verb == "" && l != nil && l.Added {
			verb = "added"
		}
		if verb != "" && q.has(k, verb) {
			all[k.String()], do[k.String()] = k, verb
		}
	})
	e.mu.Unlock()
	if other != nil {
		return Differences{}, fmt.Errorf("%w: sink %s: %w", ErrNotPossible, name, other)
	}
	if starts {
		return Differences{}, fmt.Errorf("%w: the sink %s starts, and has not read everything yet: \"relay sink %[2]s\" tells why", ErrNotPossible, name)
	}
	maps.DeleteFunc(all, func(name string, _ mirror.Key) bool { return name <= q.After })
	out := Differences{Differences: []Difference{}}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if i == maxListed {
			out.Left = len(all) - i
			break
		}
		out.Next = name
		d := Difference{Resource: name, Do: do[name]}
		if err := e.difference(ctx, all[name], &d); ctx.Err() != nil {
			return out, ctx.Err()
		} else if err != nil {
			d.Error = e.client.Explain(err).Error()
		}
		for _, o := range []*kube.Object{d.Live, d.Then} {
			if o != nil { // the relay's annotations are no difference
				maps.DeleteFunc(o.Metadata.Annotations, func(k, _ string) bool { return strings.HasPrefix(k, prefix) })
			}
		}
		if d.Error == "" && len(d.Added) == 0 && d.Live != nil && d.Then != nil && same(d.Live, d.Then) {
			continue // somebody has made the same change
		}
		out.Differences = append(out.Differences, d)
	}
	if out.Left == 0 {
		out.Next = ""
	}
	return out, nil
}

// same reports whether a change changes nothing of what is shown.
func same(live, then *kube.Object) bool {
	var a, b any
	if json.Unmarshal(live.Spec, &a) != nil || json.Unmarshal(then.Spec, &b) != nil {
		return false
	}
	return reflect.DeepEqual(a, b) && maps.Equal(live.Metadata.Labels, then.Metadata.Labels) && maps.Equal(live.Metadata.Annotations, then.Metadata.Annotations)
}

// managed is an object with who manages its fields.
type managed struct {
	kube.Object
	Metadata struct {
		kube.Metadata
		ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields"`
	} `json:"metadata"`
}

// object returns the object without managers, nil for nil.
func (m *managed) object() *kube.Object {
	if m == nil {
		return nil
	}
	m.Object.Metadata = m.Metadata.Metadata
	return &m.Object
}

// difference asks for the difference of one object.
func (e *engine) difference(ctx context.Context, key mirror.Key, d *Difference) error {
	e.mu.Lock()
	f := e.kinds[key.Kind]
	e.mu.Unlock()
	if f == nil {
		return fmt.Errorf("the cluster does not serve %s", key.Kind)
	}
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return err
	}
	var live, then *managed
	if err := conn.Read(ctx, pathOf(f.Resource, key), apiserver.AcceptJSON, &live); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	d.Live = live.object()
	w, label := e.want(key, f.Version), ""
	if d.Live != nil {
		label = d.Live.Metadata.Labels[mirror.SinkLabel]
	}
	switch {
	case w.Resource == nil:
		return nil
	case d.Live != nil && label != e.spec.Name && (label != "" || !e.spec.Adopt):
		return errors.New("it has no label of this sink: delete it, or take it over with adopt: true if no other sink has written it")
	case w.err != nil:
		return w.err
	}
	r, err := e.request(f.Resource, key, w.body, e.spec.Conflicts == config.ConflictsTake || label == "")
	if err != nil {
		return err
	}
	r.Query.Set("dryRun", "All")
	if err := conn.Write(ctx, r, &then); err != nil {
		return err
	}
	if d.Then = then.object(); then != nil {
		d.Added = added(then.Metadata.ManagedFields, managerOf(e.spec.Name))
	}
	return nil
}
