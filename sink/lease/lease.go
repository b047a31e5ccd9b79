// Package lease has the right of one process to write, kept in a Lease of an API server.
//
// The package must not know what is written.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/text"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	deadline = 10 * time.Second // for all requests of an attempt
	retry    = 2 * time.Second  // between two attempts
)

// Options are the parameters of a Lease.
type Options struct {
	Conn            func() *apiserver.Conn // newest connection
	Namespace, Name string
	Identity        string // of the process; New makes it unique
	Relay           string // whose replicas may all hold it
	// Check returns an error while this process must not write. It reads the API server, and not a cache.
	Check func(context.Context) error
	// Terms returns those that this process knows, also from before a restart. Keep has it know others instead, before they
	// count. It returns ErrChanged if it does not know the former ones any more: an order has changed the Lease meanwhile.
	Terms func() Terms
	Keep  func(former, t Terms) error
	// Begin is asked if there is no Lease: whether one may be made now. An error is why not before a person has done something.
	Begin  func() (bool, error)
	Logger *slog.Logger
}

// Lease is the right of one process to write, kept in a coordination.k8s.io/v1 Lease. It compares no clocks of two
// machines: another holder counts as gone when its record has not moved for Duration, by the own clock. Any
// goroutine may call its methods.
type Lease struct {
	opts Options

	mu      sync.Mutex // guards all below
	core    core
	other   string // relay that has another Relay and wants it, too
	otherAt time.Time
	problem string
	lost    bool

	// Only Run uses these.
	written bool // the Lease may name this process
	unkept  bool // the last Keep has failed
}

// Status is what is known of a Lease.
type Status struct {
	Holder  string // empty: nobody, or not known
	Held    bool   // by this process
	Renewed bool   // by Holder, not long ago
	Other   string // another relay that wants it, empty for none
	Problem string // of the last attempt and what to do, empty if there is none
	Lost    bool   // there is no Lease, and Begin tells why none may be made
}

// New returns a Lease that is not held.
func New(o Options) *Lease {
	l := &Lease{opts: o}
	l.core.me = o.Identity + "_" + rand.Text()[:10] // two processes may have one identity by mistake
	return l
}

// Run acquires the Lease and renews it until ctx ends, then releases it. Before each renewal and after each
// acquisition it calls Check, whose error releases the Lease.
func (l *Lease) Run(ctx context.Context) error {
	for {
		l.note(l.attempt(ctx))
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiserver.WriteTimeout)
			defer cancel()
			return l.release(ctx)
		case <-time.After(retry):
		}
	}
}

// Writable reports whether the Lease is held for at least apiserver.WriteTimeout after now. A request may be sent if
// it is true, with a deadline of now plus that time.
func (l *Lease) Writable(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.holds(now.Add(apiserver.WriteTimeout))
}

// Status returns what is known of the Lease.
func (l *Lease) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, of := time.Now(), &l.core.observer
	st := Status{Holder: text.Abbreviate(of.seen.Holder), Held: l.core.holds(now), Problem: l.problem, Lost: l.lost}
	st.Renewed = st.Holder != "" && now.Sub(of.at) < Duration
	if now.Sub(l.otherAt) < time.Minute {
		st.Other = l.other
	}
	return st
}

// attempt renews the Lease, or tries to acquire it.
func (l *Lease) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	began := time.Now()
	if err := l.opts.Check(ctx); err != nil {
		return errors.Join(err, l.release(ctx))
	}
	asked, known := time.Now(), l.opts.Terms()
	o, err := read(ctx, l.opts.Conn(), l.opts.Namespace, l.opts.Name)
	if err != nil {
		return err
	}
	next, held := l.observe(o.Spec, asked)
	switch err := l.heed(ctx, o, known); {
	case errors.Is(err, ErrChanged):
		return nil // the next attempt reads it
	case errors.Is(err, errPromoted), errors.Is(err, errNotYet), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return l.release(ctx) // the next attempt reads who was faster
	case err != nil:
		return errors.Join(err, l.release(ctx))
	case next == wait:
		return l.meet(ctx, o)
	}
	l.meets(o.Metadata.Annotations[otherAnnotation])
	o.annotate(relayAnnotation, l.opts.Relay)
	o.annotate(otherAnnotation, "") // one that is there writes it again
	l.written = true
	if err := o.write(ctx, l.opts.Conn(), l.core.me, next == take); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return nil // the next attempt reads who was faster
		}
		return err
	}
	if !held {
		if err := l.opts.Check(ctx); err != nil {
			return errors.Join(err, l.release(ctx))
		}
	}
	l.mu.Lock()
	l.core.renewed(o.Spec, began)
	l.mu.Unlock()
	if !held {
		l.opts.Logger.Info("lease acquired", "lease", l.opts.Name, "namespace", l.opts.Namespace, "holder", l.core.me)
	}
	return nil
}

// meet tells a holder of another relay of this one, and notes that relay.
func (l *Lease) meet(ctx context.Context, o *object) error {
	holder := o.Metadata.Annotations[relayAnnotation]
	if holder == "" || holder == l.opts.Relay {
		return nil
	}
	if l.meets(holder); o.Metadata.Annotations[otherAnnotation] != "" {
		return nil
	}
	o.annotate(otherAnnotation, l.opts.Relay)
	if err := o.save(ctx, l.opts.Conn(), false); !apierrors.IsConflict(err) { // else the holder was faster
		return err
	}
	return nil
}

// meets notes that another relay wants the Lease.
func (l *Lease) meets(relay string) {
	if relay == "" || relay == l.opts.Relay {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.other, l.otherAt = text.Abbreviate(relay), time.Now()
}

// observe takes a record that was asked for at a time. It returns what to do, and whether this process holds the
// Lease.
func (l *Lease) observe(r Record, asked time.Time) (next step, held bool) {
	l.mu.Lock()
	before := l.core.held
	next = l.core.observe(r, asked, time.Now())
	held = l.core.held
	l.mu.Unlock()
	if before && !held {
		l.opts.Logger.Warn("lease lost", "lease", l.opts.Name, "namespace", l.opts.Namespace, "holder", text.Abbreviate(r.Holder))
	}
	l.written = l.written && r.Holder == l.core.me
	return next, held
}

// release ends holding, and tells others so unless another process holds the Lease.
func (l *Lease) release(ctx context.Context) error {
	l.mu.Lock()
	l.core.held = false // before the request: who reads it may rely on no further write
	l.mu.Unlock()
	if !l.written {
		return nil
	}
	o, err := read(ctx, l.opts.Conn(), l.opts.Namespace, l.opts.Name)
	if err != nil {
		return err
	}
	if o.Spec.Holder == l.core.me {
		if err := o.write(ctx, l.opts.Conn(), "", false); err != nil {
			return fmt.Errorf("the release: %w", err)
		}
		l.opts.Logger.Info("lease released", "lease", l.opts.Name, "namespace", l.opts.Namespace)
	}
	l.observe(o.Spec, time.Now())
	l.written = false
	return nil
}

// note keeps the error of an attempt, and logs it if it is another one than before.
func (l *Lease) note(err error) {
	problem := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		problem = text.Shorten(strings.ReplaceAll(err.Error(), "\n", "; "), 1000)
	}
	l.mu.Lock()
	before := l.problem
	l.problem, l.lost = problem, errors.As(err, &lostError{})
	l.mu.Unlock()
	if problem != "" && problem != before {
		l.opts.Logger.Warn("lease not renewed", "lease", l.opts.Name, "namespace", l.opts.Namespace, "err", problem)
	}
}
