package promotion

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// Adopt gives the objects of a promotion back to the sink: it labels exactly those that the promotion has listed,
// deletes the lists, and then the ConfigMap that forbids the sink to write. A run that ended in the middle is
// completed by another one.
func Adopt(ctx context.Context, o Options) (Report, error) { return newRun(o).adopt(ctx) }

func (r *run) adopt(ctx context.Context) (report Report, err error) {
	if err := r.try(ctx, func() error { return r.load(ctx) }); err != nil {
		return report, err
	}
	if r.promoted == nil {
		return report, r.unpromoted(ctx)
	}
	s := r.promoted.state()
	before := s.Phase
	if !r.DryRun && before != Adopting {
		s.Phase, s.By, s.Reason, s.Since = Adopting, r.By, r.Reason, now()
		if err := r.enter(ctx, s); err != nil {
			return report, err
		}
	}
	if !r.DryRun && before != Done {
		// It may have asked whether it may go on just before, and read an object after that; then it keeps its pace.
		const lasts = guardEvery + 2*apiserver.ReadTimeout + time.Second + apiserver.WriteTimeout
		r.Tell("waiting %v for a promotion that may go on", lasts)
		if err := sleep(ctx, lasts); err != nil {
			return report, err
		}
	}
	var lists []*configMap
	err = r.try(ctx, func() (err error) {
		if err = r.guard(ctx); err == nil {
			lists, err = r.lists(ctx)
		}
		return err
	})
	if err != nil {
		return report, err
	}
	set := listed(lists)
	if s = r.promoted.state(); len(set) < s.Objects {
		return report, fmt.Errorf("the lists of sink %s name %d of %d promoted objects: restore the ConfigMap %s/%s, or those with higher numbers; or delete the ConfigMap %[4]s/%[6]s, and let the sink take over all objects with adopt: true",
			r.Sink, len(set), s.Objects, r.Namespace, r.listName(0), ObjectName(r.Sink))
	}
	found, err := r.find(ctx, "", set)
	report = Report{Objects: len(set), Missing: len(set) - len(found)}
	if r.DryRun {
		report.Changed = len(found)
	}
	if err != nil || r.DryRun {
		return report, err
	}
	r.Tell("%d of %d listed objects are in the cluster; the others were deleted or created anew, and are left alone", len(found), len(set))
	if report.Changed, err = r.changeAll(ctx, found, "adopted", r.label); err != nil {
		return report, err
	}
	if s.Objects = 0; r.promoted.state().Objects > 0 { // a later run may find fewer lists
		if err := r.enter(ctx, s); err != nil {
			return report, err
		}
	}
	for i := len(lists) - 1; i >= 0; i-- { // the first ones last: a later run reads them in order
		if err := r.try(ctx, func() error { return lists[i].remove(ctx, r.Conn()) }); err != nil {
			return report, err
		}
	}
	if err := r.try(ctx, func() error { return r.promoted.remove(ctx, r.Conn()) }); err != nil {
		return report, err
	}
	r.Tell("sink %s may write again", r.Sink)
	return report, nil
}

// unpromoted tells that there is nothing to adopt, as after a run that was killed at its end. It returns an error if the name,
// the namespace or the cluster may be wrong: if there is no Lease of the sink, or a promotion has left its lists.
func (r *run) unpromoted(ctx context.Context) error {
	leased, err := r.leased(ctx)
	var lists []*configMap
	if err == nil {
		lists, err = r.lists(ctx)
	}
	switch name := ObjectName(r.Sink); {
	case err != nil:
		return err
	case len(lists) > 0:
		return fmt.Errorf("somebody has deleted the ConfigMap %s/%s, and the lists of sink %s are there: run relay sink promote %[3]s, and then adopt again", r.Namespace, name, r.Sink)
	case !leased:
		return fmt.Errorf("sink %s is not promoted: there is neither a ConfigMap nor a Lease %s/%s in the cluster: look whether the name, the namespace and the cluster are right", r.Sink, r.Namespace, name)
	}
	r.Tell("sink %s is not promoted: there is nothing to adopt", r.Sink)
	return nil
}

// label returns how an object becomes one of the sink. The sink writes its annotations, because it knows their
// values.
func (r *run) label(o object, m metav1.ObjectMeta) (ops []operation) {
	if m.Labels[sinkLabel] != "" {
		return nil // done before, or another sink has taken it
	}
	if len(m.Labels) == 0 {
		ops = append(ops, operation{"add", "/metadata/labels", map[string]string{}})
	}
	ops = append(ops, operation{"add", at("labels", sinkLabel), r.Sink})
	if m.Labels[managedBy] == "" {
		ops = append(ops, operation{"add", at("labels", managedBy), relayName})
	}
	if len(m.ManagedFields) > 0 {
		return ops // the server notes the manager of the labels
	}
	// Without a manager the server would take all fields for somebody's at the first apply, and the sink would
	// have conflicts with nobody.
	owned := fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:%s":{}}}}`, sinkLabel)
	return append(ops, operation{"add", "/metadata/managedFields", []metav1.ManagedFieldsEntry{{
		Manager: ObjectName(r.Sink), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: o.Kind.Group + "/" + o.Version,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(owned),
	}}})
}
