package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

// CollectionState is the state of a followed kind.
type CollectionState string

// The states of a kind.
const (
	Listing   CollectionState = "listing"
	Following CollectionState = "following"
	Failing   CollectionState = "failing"
	Denied    CollectionState = "denied"
	Unserved  CollectionState = "unserved"
	// Polled: the kind can not be watched, so it is read regularly.
	Polled CollectionState = "polled"
)

// The parts of a source that can fail. The status shows the first failure.
const (
	troubleCredentials = iota
	troubleCluster
	troubleDiscovery
	troubles
)

// status is the state of a source for Describe.
type status struct {
	collections map[mirror.Kind][]*collection
	trouble     [troubles]error
	found       bool // discovery has succeeded
	contact     bool
	ever        bool // whether it was ever in contact
	entered     upstreams.State
	since       time.Time
	cluster     string // UID, empty while unknown
	version     string // of the server
	// unknown are the kinds of objects with fields that this build does not know.
	unknown map[mirror.Kind]bool
	// unusable are the kinds that are served only in versions that this build does not know.
	unusable []upstreams.FollowedKind
}

const noExports = "the cluster has no kind ServiceExport of multicluster.x-k8s.io, and shares no Service without it"

func newStatus() status {
	return status{
		collections: map[mirror.Kind][]*collection{}, unknown: map[mirror.Kind]bool{},
		entered: upstreams.StateConnecting, since: time.Now(),
	}
}

// trouble sets the error of a part, nil for none.
func (s *Source) trouble(with int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.st.trouble[with]
	s.st.trouble[with] = err
	what := "API server can not be used, last content served"
	if errors.As(err, new(apiserver.Kept)) {
		what = "new credentials are not used"
	}
	switch {
	case err == nil && before != nil:
		s.complaints.Log(s.log, slog.LevelInfo, "API server can be used again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.complaints.Warn(s.log, what, "err", err)
	}
}

// enter sets the state of a collection.
func (s *Source) enter(c *collection, now CollectionState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A denied kind is listed and watched in turns, and the two errors differ.
	before, same := c.shown, fmt.Sprint(c.err) == fmt.Sprint(err) || apierrors.IsForbidden(err) && apierrors.IsForbidden(c.err)
	if before == now && same {
		return
	}
	c.shown, c.err = now, err
	args := []any{"kind", c.Kind}
	if c.namespace != "" {
		args = append(args, "namespace", c.namespace)
	}
	switch {
	case c.Kind == definitionKind && now != Following:
		s.complaints.Log(s.log, slog.LevelInfo, "kind is not followed", append(args, "state", now, "err", err)...)
	case now == Following && before != Following && before != Listing:
		s.complaints.Log(s.log, slog.LevelInfo, "kind is followed again", args...)
	case err != nil:
		s.complaints.Warn(s.log, "kind is not followed, last content served", append(args, "state", now, "err", err)...)
	}
}

// following returns the collections of a kind.
func (s *Source) following(kind mirror.Kind) []*collection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.collections[kind]
}

// show sets the collections of a kind.
func (s *Source) show(kind mirror.Kind, all []*collection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 {
		delete(s.st.unknown, kind)
	}
	s.st.collections[kind] = all
}

// readVersion reads the version of the server, for the status.
func (s *Source) readVersion(ctx context.Context, c *apiserver.Conn) {
	var info version.Info
	if err := c.Read(ctx, "/version", apiserver.AcceptJSON, &info); err != nil {
		return // the status shows no version then
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.version = text.Shorten(info.GitVersion, maxVersion)
}

// maxVersion bounds the version of a server, in bytes.
const maxVersion = 64

// contact sets whether all watches work, and whether they ever did.
func (s *Source) contact(is, ever bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.contact, s.st.ever = is, ever
	if state, _ := s.present(); state != s.st.entered {
		s.st.entered, s.st.since = state, time.Now()
	}
}

// outage notes that the server is out of contact, and returns the reason.
func (s *Source) outage() intake.Closed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.contact = false
	state, reason := s.present()
	return intake.Closed{Reason: reason, Denied: state == upstreams.StateDenied, Failed: state == upstreams.StateFailed}
}

// unknown notes that an object has fields that this build does not know.
func (s *Source) unknown(kind mirror.Kind, o *object.Object, fields []string) {
	s.mu.Lock()
	s.st.unknown[kind] = true
	s.mu.Unlock()
	s.complaints.Warn(s.log, "fields left out, this build does not know them", "resource", kind.String()+" "+o.FullName(), "fields", strings.Join(fields[:min(len(fields), 5)], " "))
}

// discovered notes a successful discovery, and the kinds in its answer that are served only in versions that this build
// does not know.
func (s *Source) discovered(a *discovery.Answer) {
	var all []upstreams.FollowedKind
	for _, k := range s.kinds {
		if _, is := a.Best(k); is || len(a.Kinds[k]) == 0 || !s.wants(k) {
			continue
		}
		one := upstreams.FollowedKind{Kind: k.String(), State: string(Unserved), Version: a.Kinds[k][0].Version}
		one.Reason = "this build of the relay does not know the version that the server has: update the relay"
		all = append(all, one)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.found, s.st.unusable = true, all
}

// present returns the state of the source, and the reason. The caller holds mu.
func (s *Source) present() (upstreams.State, string) {
	for i, err := range s.st.trouble {
		switch {
		case err == nil:
		case s.st.contact && errors.As(err, new(apiserver.Kept)):
			return upstreams.StateSynced, err.Error()
		case i == troubleCluster, i == troubleCredentials:
			return upstreams.StateFailed, err.Error()
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return upstreams.StateDenied, err.Error()
		case s.st.contact:
			return upstreams.StateSynced, err.Error()
		case s.st.ever:
			return upstreams.StateDisconnected, err.Error()
		default:
			return upstreams.StateConnecting, err.Error()
		}
	}
	var worst *collection
	rank := map[CollectionState]int{Failing: 1, Denied: 2}
	for _, t := range s.sorted() {
		if of := rank[t.shown]; of > 0 && t.Kind != definitionKind && (worst == nil || of > rank[worst.shown]) {
			worst = t
		}
	}
	reason := ""
	if worst != nil {
		reason = fmt.Sprintf("%s: %v", worst.Kind, worst.err)
		if worst.shown == Denied {
			reason += ": " + cureOf(worst.Kind)
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

// cureOf returns the cure for a kind that the relay is not allowed to read.
func cureOf(kind mirror.Kind) string {
	_, input := ingressInputs[kind]
	switch {
	case kind == podKind:
		return "endpoints have no labels and accounts: let it list and watch pods, or set services.pods: false"
	case kind == nodeKind:
		return "endpoints have no region: let it list and watch nodes"
	case kind == sliceKind, kind == serviceKind:
		return "let it list and watch that kind, or set services.mode and ingress.mode to what needs none"
	case kind == meshKind:
		return "let it get that ConfigMap, or set ingress.mode to what the mesh has"
	case kind == ledger.Namespaces:
		return "discoverySelectors and the trafficDistribution of namespaces need it: let it list and watch namespaces"
	case input:
		return "let it list and watch that kind, or set ingress.mode: off"
	}
	return "let it list and watch that kind, or leave the kind out by import.Kinds"
}

// sorted returns the collections by kind and namespace. The caller holds mu.
func (s *Source) sorted() (all []*collection) {
	for _, some := range s.st.collections {
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b *collection) int {
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), strings.Compare(a.namespace, b.namespace))
	})
	return all
}

// describeDerived sets the fields about namespaces, services and Ingresses.
func (s *Source) describeDerived(d *Detail) {
	if s.selection != nil {
		d.Namespaces, d.Selected = s.selection.Counts()
		d.NamespaceProblems, d.NamespaceProblemsTotal = s.selection.Problems()
	}
	if !s.runs.Load() {
		return
	}
	if s.ingresses != nil {
		s.ledger.Do(func() { d.Ingress = s.ingresses.detail() })
	}
	if s.makes != nil {
		s.ledger.Do(func() { d.ServiceProblems, d.ServiceProblemsTotal = s.makes.detail() })
	}
}

// Describe implements upstreams.Source.
func (s *Source) Describe(st *upstreams.Status) {
	address := s.client.Current().Server()
	d := &Detail{Rotations: s.client.Rotations()}
	s.describeDerived(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Address = cmp.Or(address, s.section.credentials().Place())
	s.st.ever = s.st.ever || st.Complete
	st.State, st.LastError = s.present()
	if kept, is := errors.AsType[apiserver.Kept](s.st.trouble[troubleCredentials]); is {
		st.Kept = kept.Error()
	}
	if st.Since = s.st.since; st.State != s.st.entered {
		st.Since = time.Now()
	}
	d.Cluster, d.Server = s.st.cluster, s.st.version
	for k := range s.st.unknown {
		d.UnknownFields = append(d.UnknownFields, k.String())
	}
	slices.Sort(d.UnknownFields)
	for _, t := range s.sorted() {
		one := upstreams.FollowedKind{Kind: t.Kind.String(), Version: t.Version, Namespace: t.namespace, State: string(t.shown)}
		if t.err != nil {
			one.Reason = t.err.Error()
		}
		st.Following = append(st.Following, one)
	}
	st.Following = append(st.Following, s.st.unusable...)
	if st.Detail, st.Notes = d, d.notes(); s.readsInput(exportKind) && s.st.found && len(s.st.collections[exportKind]) == 0 {
		st.Notes = append(st.Notes, noExports+": install the CRD of the MCS API, or leave services.only out")
	}
}
