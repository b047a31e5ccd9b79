package promotion

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/sink/lease"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	margin = time.Second // for clocks of two machines that do not run at the same speed
	rounds = 5           // of removing labels, until no object has one
)

// Promote forbids all writers of a sink to write, waits until none can, and makes the objects of the sink those of
// the cluster: it lists them, and removes labels, annotations and managers of the relay. A run that ended in the
// middle is completed by another one. An error tells what was not done.
func Promote(ctx context.Context, o Options) (Report, error) { return newRun(o).promote(ctx) }

func (r *run) promote(ctx context.Context) (report Report, err error) {
	if err := r.try(ctx, func() error { return r.load(ctx) }); err != nil {
		return report, err
	}
	leased, err := r.leased(ctx)
	if err != nil {
		return report, err
	}
	found, err := r.find(ctx, r.selector(), nil) // before anything changes
	report.Objects = len(found)
	if err == nil && len(found) == 0 && !leased && r.promoted == nil {
		err = fmt.Errorf("no object has the label %s=%s, and the sink has no Lease in the namespace %s: look whether the name and the cluster are right", sinkLabel, r.Sink, r.Namespace)
	}
	if r.DryRun {
		report.Changed = report.Objects
	}
	if err != nil || r.DryRun {
		return report, err
	}
	s := State{Phase: Waiting, By: r.By, Reason: r.Reason, Since: now()}
	if r.promoted != nil {
		s = r.promoted.state()
	}
	switch s.Phase {
	case Adopting:
		return report, fmt.Errorf("sink %s is being adopted since %s by %s: complete that with: relay sink adopt %[1]s", r.Sink, s.Since.UTC().Format(time.RFC3339), s.By)
	case Removing, Done:
		r.Tell("the promotion of %s by %s goes on", s.Since.UTC().Format(time.RFC3339), s.By)
	default:
		s.Phase = Waiting
		if err := r.enter(ctx, s); err != nil {
			return report, err
		}
		r.Tell("ConfigMap %s/%s forbids sink %s to write", r.Namespace, ObjectName(r.Sink), r.Sink)
		if err := r.await(ctx); err != nil {
			return report, err
		}
	}
	for round := 0; ; round++ {
		if found, err = r.find(ctx, r.selector(), nil); err != nil {
			return report, err
		}
		if len(found) == 0 {
			break
		}
		if round == rounds {
			return report, fmt.Errorf("%d objects have the label %s=%s again: find out who sets it, and run the command again", len(found), sinkLabel, r.Sink)
		}
		n, err := r.enlist(ctx, found)
		if err != nil {
			return report, err
		}
		s.Phase, s.Objects = Removing, max(s.Objects, n)
		if err := r.enter(ctx, s); err != nil {
			return report, err
		}
		r.Tell("%d objects are listed", n)
		changed, err := r.changeAll(ctx, found, "cleaned", r.clean)
		report.Objects, report.Changed = n, report.Changed+changed
		if err != nil {
			return report, err
		}
	}
	if report.Objects = s.Objects; s.Phase != Done {
		s.Phase = Done
		err = r.enter(ctx, s)
	}
	return report, err
}

func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

func (r *run) selector() string { return sinkLabel + "=" + r.Sink }

// leased reports whether the sink has its Lease in the namespace. It returns an error if a sink of the name has one in
// another namespace, where its writers look for the ConfigMap.
func (r *run) leased(ctx context.Context) (leased bool, err error) {
	var leases metav1.PartialObjectMetadataList
	err = r.try(ctx, func() error {
		return r.Conn().Read(ctx, "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3D"+ObjectName(r.Sink), apiserver.AcceptMetadataList, &leases)
	})
	if err != nil {
		if here, errHere := lease.Read(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink)); errHere != nil || here == (lease.Record{}) {
			return false, fmt.Errorf("sink %s has no Lease in the namespace %s, and may write with one in another namespace: %w", r.Sink, r.Namespace,
				apiserver.Failed("list", "leases.coordination.k8s.io", "", "", err))
		}
		r.Tell("it is not known whether sink %s has a Lease in another namespace than %s: %v", r.Sink, r.Namespace, err)
		leased = true
	}
	for _, l := range leases.Items {
		switch {
		case l.Name != ObjectName(r.Sink):
		case l.Namespace != r.Namespace:
			return false, fmt.Errorf("the Lease %s is in the namespace %s, too: use --namespace %[2]s, or delete that Lease if no relay renews it", l.Name, l.Namespace)
		default:
			leased = true
		}
	}
	return leased, nil
}

// await returns when no process can write any more: each that was told that it may write before the ConfigMap was
// there has released the Lease, or its term is over.
func (r *run) await(ctx context.Context) error {
	var observer lease.Observer
	told := "none yet"
	for {
		var record lease.Record
		var asked time.Time
		err := r.try(ctx, func() (err error) {
			if err := r.guard(ctx); err != nil {
				return err
			}
			asked = time.Now()
			record, err = lease.Read(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink))
			return err
		})
		if err != nil {
			return err
		}
		unmoved := observer.Unmoved(record, asked, time.Now())
		need, why := lease.Duration+margin, "it may write until its Lease has not moved for that time"
		switch {
		case record == lease.Record{}:
			why = "there is no Lease, and a writer that is not known may have had one"
		case record.Holder == "":
			need, why = apiserver.WriteTimeout+margin, "the Lease was released, and its last requests may be under way"
		}
		if unmoved >= need {
			return nil
		}
		if now := record.Holder + why; now != told {
			told = now
			r.Tell("waiting for the writers to end, holder %q, %v at least: %s", record.Holder, need-unmoved, why)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// clean returns how an object of the sink loses all of the relay.
func (r *run) clean(_ object, m metav1.ObjectMeta) (ops []operation) {
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
	others := []metav1.ManagedFieldsEntry{}
	for _, entry := range m.ManagedFields {
		if entry.Manager != ObjectName(r.Sink) {
			others = append(others, entry)
		}
	}
	switch {
	case len(others) == len(m.ManagedFields):
		return ops
	case len(others) == 0:
		others = []metav1.ManagedFieldsEntry{{}} // an API server ignores an empty list
	}
	return append(ops, operation{"replace", "/metadata/managedFields", others})
}
