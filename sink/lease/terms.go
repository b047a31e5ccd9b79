package lease

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/internal/text"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// Promoted is the holder of the Lease of a sink that was promoted. No process takes such a Lease.
const Promoted = "promoted"

// annotations of a Lease. promotionAnnotation has Terms.Number, and deletionsAnnotation is "held" with Terms.Hold.
const (
	promotionAnnotation = "meshrelay.io/promotion"
	deletionsAnnotation = "meshrelay.io/deletions"
	promotedPrefix      = "meshrelay.io/promoted-"
	frozenPrefix        = "meshrelay.io/frozen-"
	// relayAnnotation has the relay that holds the Lease, otherAnnotation another one that wants it.
	relayAnnotation = "meshrelay.io/relay"
	otherAnnotation = "meshrelay.io/other-relay"
)

// Note is who has ordered something, why, and when: to the second, by his clock. The zero Note is that of nobody.
type Note struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// Terms are what a Lease orders those who hold it or may want to. They are its annotations, but that Promoted counts only with
// the holder Promoted.
type Terms struct {
	Number   int  `json:"number"`            // of promotions, which adoptions do not change
	Promoted Note `json:"promoted,omitzero"` // zero if the sink is not promoted
	Frozen   Note `json:"frozen,omitzero"`   // zero if it is not frozen
	Hold     bool `json:"hold,omitempty"`    // every deletion waits for a person, until the first release
}

func (o *object) note(prefix string) (n Note) {
	of := o.Metadata.Annotations
	n.By, n.Reason = text.Shorten(of[prefix+"by"], 256), text.Shorten(of[prefix+"reason"], 1024)
	n.Since, _ = time.Parse(time.RFC3339, of[prefix+"since"]) // somebody may have written it by hand
	if n == (Note{}) && of[prefix+"since"] != "" {
		n.By = "unknown"
	}
	return n
}

// annotate sets an annotation, or removes it if value is empty.
func (o *object) annotate(key, value string) {
	if value == "" {
		delete(o.Metadata.Annotations, key)
	} else {
		metav1.SetMetaDataAnnotation(&o.Metadata, key, value)
	}
}

func (o *object) setNote(prefix string, n Note) {
	for key, value := range map[string]string{"by": n.By, "reason": n.Reason, "since": n.Since.UTC().Format(time.RFC3339)} {
		if n == (Note{}) {
			value = ""
		}
		o.annotate(prefix+key, value)
	}
}

// terms returns the terms of a Lease.
func (o *object) terms() (t Terms) {
	t.Number, _ = strconv.Atoi(o.Metadata.Annotations[promotionAnnotation]) // 0 without
	t.Number = max(t.Number, 0)
	if o.Spec.Holder == Promoted {
		if t.Promoted = o.note(promotedPrefix); t.Promoted == (Note{}) {
			t.Promoted.By = "unknown"
		}
	}
	t.Frozen, t.Hold = o.note(frozenPrefix), o.Metadata.Annotations[deletionsAnnotation] == "held"
	return t
}

// setTerms sets the annotations of a Lease.
func (o *object) setTerms(t Terms) {
	o.setNote(promotedPrefix, t.Promoted)
	o.setNote(frozenPrefix, t.Frozen)
	number, deletions := "", ""
	if t.Number > 0 {
		number = strconv.Itoa(t.Number)
	}
	if t.Hold {
		deletions = "held"
	}
	o.annotate(promotionAnnotation, number)
	o.annotate(deletionsAnnotation, deletions)
}

// after returns the terms of a Lease that has lost those of m, but for a promotion.
func (t Terms) after(m Terms) Terms {
	t.Number, t.Frozen, t.Hold = m.Number, cmp.Or(t.Frozen, m.Frozen), t.Hold || m.Hold
	return t
}

// Edit changes the terms of a Lease. f gets them, and whether there is a Lease; its error ends Edit. With Promoted, the Lease
// has the holder Promoted afterwards, and none if it had that before. A Lease that does not exist is made.
func Edit(ctx context.Context, c *apiserver.Conn, namespace, name string, dryRun bool, f func(t *Terms, exists bool) error) error {
	for n := 0; ; n++ {
		o, err := read(ctx, c, namespace, name)
		if err != nil {
			return err
		}
		t := o.terms()
		if err := f(&t, o.exists()); err != nil {
			return err
		}
		if err = o.put(ctx, c, t, dryRun); n < 10 && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) {
			continue // its holder renews it every other second
		}
		return err
	}
}

func (o *object) exists() bool { return o.Metadata.ResourceVersion != "" }

// put writes terms into the Lease, unless it has changed since it was read.
func (o *object) put(ctx context.Context, c *apiserver.Conn, t Terms, dryRun bool) error {
	switch o.setTerms(t); {
	case t.Promoted != (Note{}):
		o.Spec.Holder = Promoted
	case o.Spec.Holder == Promoted:
		o.Spec.Holder = ""
	}
	o.Spec.Seconds = cmp.Or(o.Spec.Seconds, int(Duration/time.Second)) // a server wants one
	return o.save(ctx, c, dryRun)
}

// ReadTerms returns the record and the terms of a Lease, and whether it exists.
func ReadTerms(ctx context.Context, c *apiserver.Conn, namespace, name string) (r Record, t Terms, exists bool, err error) {
	o, err := read(ctx, c, namespace, name)
	if err != nil {
		return r, t, false, err
	}
	return o.Spec, o.terms(), o.exists(), nil
}

// ErrChanged is the error of Options.Keep if other terms are known than before.
var ErrChanged = errors.New("the terms of the Lease have changed meanwhile")

// Reasons not to hold the Lease that are no problem.
var errPromoted, errNotYet = errors.New("the sink is promoted"), errors.New("it is not known yet whether there may be a Lease")

// lostError is why there is no Lease, and none may be made.
type lostError struct{ error }

// heed has this process follow what a Lease tells of promotions. It knew m before the Lease was read. Its error is why the
// process must not write.
func (l *Lease) heed(ctx context.Context, o *object, m Terms) error {
	t := o.terms()
	lost := t.Promoted == (Note{}) && (!o.exists() || t.Number < m.Number)
	switch {
	case m.Promoted != (Note{}) && t.Promoted == (Note{}) && t.Number < m.Number:
		// Its cluster was restored, or somebody has deleted it. Only an adoption ends a promotion.
		t = t.after(m)
		t.Promoted = m.Promoted
		if err := o.put(ctx, l.opts.Conn(), t, false); err != nil {
			return err
		}
		l.opts.Logger.Warn("the Lease had lost its promotion, and is written as promoted again", "lease", l.opts.Name, "namespace", l.opts.Namespace, "promotion", t.Number)
	case !o.exists():
		switch may, err := l.opts.Begin(); {
		case err != nil:
			return lostError{err}
		case !may:
			return errNotYet
		}
	}
	if has := t; lost && t.Promoted == (Note{}) {
		if t = t.after(m); t != has {
			o.setTerms(t)
			l.opts.Logger.Warn("the Lease had lost what was ordered, which holds on", "lease", l.opts.Name, "namespace", l.opts.Namespace, "frozen", t.Frozen != (Note{}), "deletionsHeld", t.Hold)
		}
	}
	if t != m || l.unkept {
		err := l.opts.Keep(m, t)
		if l.unkept = err != nil; err != nil {
			return err
		}
	}
	if t.Promoted != (Note{}) {
		return errPromoted
	}
	return nil
}

// String tells who has ordered something.
func (n Note) String() string {
	s := "by " + n.By + " since " + n.Since.UTC().Format(time.RFC3339)
	if n.Reason != "" {
		s += " (" + strings.TrimSpace(n.Reason) + ")"
	}
	return s
}
