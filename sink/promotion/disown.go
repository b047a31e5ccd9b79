package promotion

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/sink/lease"
)

const rounds = 5 // of removing labels, until no object has one

// managedBy is the label of objects that the relay makes.
const managedBy, relayName = "app.kubernetes.io/managed-by", "meshrelay"

// Disown removes labels, annotations and managers of the relay from all objects of a promoted sink, for good. The sink stays
// promoted. A run that ended in the middle is completed by another one.
func Disown(ctx context.Context, o Options) (report Report, err error) {
	r := newRun(o)
	if err := r.known(ctx); err != nil {
		return report, err
	}
	var t lease.Terms
	err = r.try(ctx, func() (err error) {
		_, t, _, err = lease.ReadTerms(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink))
		return err
	})
	switch {
	case err != nil:
		return report, err
	case t.Promoted == (lease.Note{}):
		return report, fmt.Errorf("sink %s is not promoted, and its relay would label the objects again: run relay sink promote %[1]s first", o.Sink)
	}
	r.number = t.Number
	for round := 0; ; round++ {
		var found []object
		if err := r.find(ctx, func(o object) error { found = append(found, o); return nil }); err != nil {
			return report, err
		}
		report.Objects += len(found)
		if o.DryRun {
			report.Changed = len(found)
		}
		if len(found) == 0 || o.DryRun {
			return report, nil
		}
		if round == rounds {
			return report, fmt.Errorf("%d objects have the label %s=%s again: find out who sets it, and run the command again", len(found), sinkLabel, r.Sink)
		}
		changed, err := r.cleanAll(ctx, found)
		report.Changed += changed
		if err != nil {
			return report, err
		}
	}
}

// clean returns how an object of the sink loses all of the relay.
func (r *run) clean(m metav1.ObjectMeta) (ops []operation) {
	if m.Labels[sinkLabel] != r.Sink {
		return nil // somebody has made it his own
	}
	for key, value := range m.Labels {
		if strings.HasPrefix(key, ours) || key == managedBy && value == relayName {
			ops = append(ops, operation{Op: "remove", Path: at("labels", key)})
		}
	}
	for key := range m.Annotations {
		if strings.HasPrefix(key, ours) {
			ops = append(ops, operation{Op: "remove", Path: at("annotations", key)})
		}
	}
	others := slices.DeleteFunc(slices.Clone(m.ManagedFields), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == ObjectName(r.Sink)
	})
	switch {
	case len(others) == len(m.ManagedFields):
		return ops
	case len(others) == 0:
		others = []metav1.ManagedFieldsEntry{{}} // an API server ignores an empty list
	}
	return append(ops, operation{"replace", "/metadata/managedFields", others})
}
