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
	unknown  map[mirror.Key][]string // fields, at most maxUnknown
	more     int                     // objects with unknown fields above that
}

func newStatus() status {
	return status{
		targets: map[mirror.Kind][]*target{}, unknown: map[mirror.Key][]string{},
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
		s.complaints.Log(s.log, slog.LevelInfo, "API server can be used again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.complaints.Warn(s.log, "API server can not be used, last content served", "err", err)
	}
}

// enter notes the state of a target.
func (s *Source) enter(t *target, now TargetState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, same := t.shown, fmt.Sprint(t.err) == fmt.Sprint(err)
	if t.shown, t.err = now, err; before == now && same {
		return
	}
	args := []any{"kind", t.kind}
	if t.namespace != "" {
		args = append(args, "namespace", t.namespace)
	}
	switch {
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

// unknown notes fields of an object that this build does not know.
func (s *Source) unknown(key mirror.Key, fields []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.st.unknown[key]; !known {
		if len(s.st.unknown) >= maxUnknown {
			s.st.more++
			return
		}
		s.complaints.Warn(s.log, "fields left out, this build does not know them", "resource", key, "fields", strings.Join(fields[:min(len(fields), 5)], " "))
	}
	s.st.unknown[key] = fields[:min(len(fields), 5)]
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
		if of := rank[t.shown]; of > 0 && (worst == nil || of > rank[worst.shown]) {
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

// Describe implements upstreams.Describer.
func (s *Source) Describe(st *upstreams.Status) {
	address := s.client.current().server()
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Address = cmp.Or(address, s.section.place())
	s.st.ever = s.st.ever || st.Complete
	st.State, st.LastError = s.present()
	if st.Since = s.st.since; st.State != s.st.entered {
		st.Since = time.Now()
	}
	k := &upstreams.KubernetesStatus{Cluster: s.st.identity, Rotations: s.client.rotated(), UnknownFields: len(s.st.unknown) + s.st.more}
	for _, t := range s.sorted() {
		one := upstreams.FollowedKind{Kind: t.kind.String(), Version: t.version, Namespace: t.namespace, State: string(t.shown)}
		if t.err != nil {
			one.Reason = t.err.Error()
		}
		k.Kinds = append(k.Kinds, one)
	}
	st.Kubernetes = k
}
