// Package promotion gives the objects of a sink to the people of their cluster, and back to the sink: by the sink's Lease.
// It also takes what the sink has left on them off, for good.
//
// The package must not know how a sink writes.
package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// margin is for clocks of two machines that do not run at the same speed.
const margin = time.Second

// ObjectName returns the name of a sink's Lease and of its field manager.
func ObjectName(sink string) string { return "meshrelay-sink-" + sink }

// Options are the parameters of a command.
type Options struct {
	Conn            func() *apiserver.Conn // newest connection
	Namespace, Sink string
	By, Reason      string
	WritesPerSecond float64                          // of Disown
	DryRun          bool                             // the API server only tells whether it would do it
	Tell            func(format string, args ...any) // is told the progress, line by line
}

// Promote takes the Lease of a sink for good, and returns when no relay can write any more. It touches no object. A run that ended
// in the middle is completed by another one.
func Promote(ctx context.Context, o Options) error {
	r := newRun(o)
	if err := r.known(ctx); err != nil {
		return err
	}
	note, before, number := r.note(), lease.Note{}, 0
	err := r.edit(ctx, func(t *lease.Terms, exists bool) error {
		if before = t.Promoted; before == (lease.Note{}) {
			t.Number, t.Promoted = numberOf(t, exists)+1, note
		}
		number = t.Number
		return nil
	})
	if err != nil || o.DryRun {
		return err
	}
	if before != (lease.Note{}) && before != note {
		o.Tell("sink %s was promoted before, %s", o.Sink, before)
	}
	// Who held the Lease has asked the server before that it may write, and a term lasts from then.
	wait := lease.Duration + margin
	o.Tell("the Lease %s/%s is taken for good; waiting %v for requests that may be under way", o.Namespace, ObjectName(o.Sink), wait)
	if !mirror.Sleep(ctx, wait) {
		return ctx.Err()
	}
	return r.try(ctx, func() error { return r.stillPromoted(ctx, number) })
}

// Adopt gives the objects of a promoted sink back to it: frozen, and with every deletion held. A sink whose Lease is lost gets one.
func Adopt(ctx context.Context, o Options) error {
	r := newRun(o)
	if err := r.known(ctx); err != nil {
		return err
	}
	note := r.note()
	note.Reason = cmp.Or(note.Reason, "adopted")
	return r.edit(ctx, func(t *lease.Terms, exists bool) error {
		if exists && t.Promoted == (lease.Note{}) && t.Frozen != note { // else the answer was lost
			return fmt.Errorf("sink %s is not promoted: there is nothing to adopt", o.Sink)
		}
		t.Number, t.Promoted, t.Hold = numberOf(t, exists), lease.Note{}, true
		if t.Frozen == (lease.Note{}) {
			t.Frozen = note
		}
		return nil
	})
}

// numberOf returns the number of the last promotion. Where the Lease is lost, it is the time: a relay that remembers a promotion
// must not take the new Lease for one that has forgotten it.
func numberOf(t *lease.Terms, exists bool) int {
	if !exists {
		return int(time.Now().Unix())
	}
	return t.Number
}

func (r *run) note() lease.Note {
	return lease.Note{By: r.By, Reason: r.Reason, Since: time.Now().UTC().Truncate(time.Second)}
}

func (r *run) edit(ctx context.Context, f func(t *lease.Terms, exists bool) error) error {
	return r.try(ctx, func() error { return lease.Edit(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink), r.DryRun, f) })
}

// stillPromoted returns an error if the sink has not this promotion.
func (r *run) stillPromoted(ctx context.Context, number int) error {
	_, t, _, err := lease.ReadTerms(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink))
	if err == nil && (t.Promoted == (lease.Note{}) || t.Number != number) {
		err = fmt.Errorf("sink %s is not promoted any more, or was promoted anew: another command was given meanwhile; look with: relay sink %[1]s", r.Sink)
	}
	return err
}

// known returns an error if the sink has neither a Lease nor an object: the name, the namespace or the cluster may be wrong. It
// also does if a sink of the name has a Lease in another namespace, where its relays look.
func (r *run) known(ctx context.Context) error {
	var leases metav1.PartialObjectMetadataList
	err := r.try(ctx, func() error {
		return r.Conn().Read(ctx, "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3D"+ObjectName(r.Sink), apiserver.AcceptMetadataList, &leases)
	})
	leased := false
	if err != nil {
		err = apiserver.Failed("list", "leases.coordination.k8s.io", "", "", err)
		_, _, exists, errHere := lease.ReadTerms(ctx, r.Conn(), r.Namespace, ObjectName(r.Sink))
		if errHere != nil || !exists {
			return fmt.Errorf("sink %s has no Lease in the namespace %s, and may write with one in another namespace: %w", r.Sink, r.Namespace, err)
		}
		r.Tell("it is not known whether sink %s has a Lease in another namespace than %s: %v", r.Sink, r.Namespace, err)
		return nil
	}
	for _, l := range leases.Items {
		switch {
		case l.Name != ObjectName(r.Sink):
		case l.Namespace != r.Namespace:
			return fmt.Errorf("the Lease %s is in the namespace %s, too: use --namespace %[2]s, or delete that Lease if no relay renews it", l.Name, l.Namespace)
		default:
			leased = true
		}
	}
	if leased {
		return nil
	}
	if err := r.find(ctx, func(object) error { return errFound }); !errors.Is(err, errFound) {
		return cmp.Or(err, fmt.Errorf("no object has the label %s=%s, and the sink has no Lease in the namespace %s: look whether the name and the cluster are right", sinkLabel, r.Sink, r.Namespace))
	}
	return nil
}

var errFound = errors.New("there is one")
