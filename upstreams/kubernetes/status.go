package kubernetes

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// TargetState is how a kind is followed.
type TargetState string

// The states of a kind.
const (
	Listing   TargetState = "listing"
	Following TargetState = "following"
	Failing   TargetState = "failing"
	Denied    TargetState = "denied"
	Unserved  TargetState = "unserved"
	// Polled: it can not be followed, and is asked for from time to time instead.
	Polled TargetState = "polled"
)

// state is how a target is followed, as operators see it.
type state struct {
	shown TargetState
	err   error
}

// The things of a source that can be in trouble. The first that is, is shown.
const (
	troubleCredentials = iota
	troubleCluster
	troubleDiscovery
	troubles
)

// status is what a source shows.
type status struct {
	targets  map[mirror.Kind][]*target
	trouble  [troubles]error
	found    bool // the server has told what it serves
	contact  bool
	ever     bool // in contact
	entered  upstreams.State
	since    time.Time
	identity string
	// unknown are the objects with fields that this build does not know, by target.
	unknown map[*target]map[string]struct{}
	// unusable are kinds that are served in versions only that this build does not know.
	unusable []upstreams.FollowedKind
}

func newStatus() status {
	return status{
		targets: map[mirror.Kind][]*target{}, unknown: map[*target]map[string]struct{}{},
		entered: upstreams.StateConnecting, since: time.Now(),
	}
}

// trouble notes what is wrong with a thing, nil for nothing.
func (s *Source) trouble(with int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.st.trouble[with]
	s.st.trouble[with] = err
	switch {
	case err == nil && before != nil:
		s.rescues.works.Store(true)
		s.complaints.Log(s.log, slog.LevelInfo, "API server can be used again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.complaints.Warn(s.log, "API server can not be used, last content served", "err", err)
	}
}

// enter notes the state of a target.
func (s *Source) enter(t *target, now TargetState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.aside && (now == Denied || now == Unserved) {
		now, err = Polled, fmt.Errorf("changes are noticed every %s: %w", s.pace.discover, err)
	}
	before, same := t.shown, fmt.Sprint(t.err) == fmt.Sprint(err)
	if t.shown, t.err = now, err; before == now && same {
		return
	}
	args := []any{"kind", t.kind}
	if t.namespace != "" {
		args = append(args, "namespace", t.namespace)
	}
	switch {
	case t.aside && now != Following:
		s.complaints.Log(s.log, slog.LevelInfo, "kind is not followed", append(args, "state", now, "err", err)...)
	case now == Following && before != Following && before != Listing:
		s.complaints.Log(s.log, slog.LevelInfo, "kind is followed again", args...)
	case err != nil:
		s.complaints.Warn(s.log, "kind is not followed, last content served", append(args, "state", now, "err", err)...)
	}
}

// show makes targets those of a kind.
func (s *Source) show(kind mirror.Kind, targets []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.st.targets[kind] {
		delete(s.st.unknown, t)
	}
	for _, t := range targets {
		t.shown = Listing
	}
	s.st.targets[kind] = targets
}

// discovered notes that the server has told what it serves, and reports whether it was the first time.
func (s *Source) discovered() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, s.st.found = !s.st.found, true
	return first
}

func (s *Source) identified(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.identity = id
}

// contact notes whether everything follows, and whether it ever did.
func (s *Source) contact(is, ever bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.contact, s.st.ever = is, ever
	if state, _ := s.present(); state != s.st.entered {
		s.st.entered, s.st.since = state, time.Now()
	}
}

// unknown notes fields of an object that this build does not know, nil for none.
func (s *Source) unknown(t *target, o *object, fields []string) {
	if len(fields) == 0 {
		s.knows(t, o)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all, name := s.st.unknown[t], o.fullName()
	if all == nil {
		all = map[string]struct{}{}
		s.st.unknown[t] = all
	}
	if _, noted := all[name]; !noted {
		all[name] = struct{}{}
		s.complaints.Warn(s.log, "fields left out, this build does not know them", "resource", t.kind.String()+" "+name, "fields", strings.Join(fields[:min(len(fields), 5)], " "))
	}
}

// knows notes that an object has no fields, any more, that this build does not know.
func (s *Source) knows(t *target, o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.st.unknown[t], o.fullName())
}

// knowsOnly notes that these are all objects of a target.
func (s *Source) knowsOnly(t *target, all []*object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	noted := s.st.unknown[t]
	if len(noted) == 0 {
		return
	}
	still := map[string]struct{}{}
	for _, o := range all {
		if _, is := noted[o.fullName()]; is {
			still[o.fullName()] = struct{}{}
		}
	}
	s.st.unknown[t] = still
}

// unusable notes the kinds of an answer that are served in versions only that this build does not know.
func (s *Source) unusable(a *answer) {
	var all []upstreams.FollowedKind
	for _, k := range s.kinds {
		if _, is := a.best(k); is || len(a.kinds[k]) == 0 || !s.wants(k) {
			continue
		}
		one := upstreams.FollowedKind{Kind: k.String(), State: string(Unserved), Version: a.kinds[k][0].version}
		one.Reason = "this build of the relay does not know the version that the server has: update the relay"
		all = append(all, one)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.unusable = all
}

// present returns the state of the source, and why. The caller holds mu.
func (s *Source) present() (upstreams.State, string) {
	for i, err := range s.st.trouble {
		switch {
		case err == nil:
		case i == troubleCluster, i == troubleCredentials:
			return upstreams.StateFailed, err.Error()
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return upstreams.StateDenied, fmt.Sprintf("the API server does not accept who we are: %v", err)
		case s.st.contact:
			return upstreams.StateSynced, err.Error()
		case s.st.ever:
			return upstreams.StateDisconnected, err.Error()
		default:
			return upstreams.StateConnecting, err.Error()
		}
	}
	var worst *target
	rank := map[TargetState]int{Failing: 1, Denied: 2}
	for _, t := range s.sorted() {
		if of := rank[t.shown]; of > 0 && !t.aside && (worst == nil || of > rank[worst.shown]) {
			worst = t
		}
	}
	reason := ""
	if worst != nil {
		reason = fmt.Sprintf("%s: %v", worst.kind, worst.err)
		if worst.shown == Denied {
			reason += ": let it list and watch that kind, or leave the kind out by import.kinds"
		}
	}
	switch {
	case s.st.contact:
		return upstreams.StateSynced, reason
	case worst != nil && worst.shown == Denied, worst != nil && apierrors.IsUnauthorized(worst.err):
		return upstreams.StateDenied, reason
	case s.st.ever:
		return upstreams.StateDisconnected, reason
	case s.st.found:
		return upstreams.StateSyncing, reason
	}
	return upstreams.StateConnecting, reason
}

// sorted returns the targets by kind and namespace. The caller holds mu.
func (s *Source) sorted() (all []*target) {
	for _, targets := range s.st.targets {
		all = append(all, targets...)
	}
	slices.SortFunc(all, func(a, b *target) int {
		return cmp.Or(mirror.CompareKinds(a.kind, b.kind), strings.Compare(a.namespace, b.namespace))
	})
	return all
}

// describeDerived fills in what is made of other objects.
func (s *Source) describeDerived(d *Detail) {
	if s.choice != nil {
		d.Namespaces, d.Selected = s.choice.counts()
	}
	if l := s.told.Load(); l != nil && l.ingresses != nil {
		d.Ingress = l.converting()
	}
}

// Describe implements upstreams.Describer.
func (s *Source) Describe(st *upstreams.Status) {
	address := s.client.current().server()
	d := &Detail{Rotations: s.client.rotated()}
	s.describeDerived(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Address = cmp.Or(address, s.section.place())
	s.st.ever = s.st.ever || st.Complete
	st.State, st.LastError = s.present()
	if st.Since = s.st.since; st.State != s.st.entered {
		st.Since = time.Now()
	}
	d.Cluster = s.st.identity
	for _, all := range s.st.unknown {
		d.UnknownFields += len(all)
	}
	for _, t := range s.sorted() {
		one := upstreams.FollowedKind{Kind: t.kind.String(), Version: t.version, Namespace: t.namespace, State: string(t.shown)}
		if t.err != nil {
			one.Reason = t.err.Error()
		}
		st.Following = append(st.Following, one)
	}
	st.Following = append(st.Following, s.st.unusable...)
	st.Detail, st.Notes = d, d.notes()
}
