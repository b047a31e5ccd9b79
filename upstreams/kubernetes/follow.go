package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
)

// hurries is the number of early discoveries after a definition has changed. One is not enough, because the
// server's discovery is updated later than the definitions.
const hurries = 4

var definitionKind = mirror.Kind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// These kinds are followed in addition to the mirrored ones. Every server serves them in this version.
var (
	namespaceResource  = discovery.Resource{Kind: ledger.Namespaces, Version: "v1", Plural: "namespaces"}
	definitionResource = discovery.Resource{Kind: definitionKind, Version: "v1", Plural: "customresourcedefinitions"}
	// inputResources are what Ingresses and the endpoints of services are read from.
	inputResources = []discovery.Resource{
		{Kind: ingressClassKind, Version: "v1", Plural: "ingressclasses"},
		{Kind: serviceKind, Version: "v1", Plural: "services", Namespaced: true},
		{Kind: ingressKind, Version: "v1", Plural: "ingresses", Namespaced: true, Selected: true},
		{Kind: sliceKind, Version: "v1", Plural: "endpointslices", Namespaced: true},
		{Kind: podKind, Version: "v1", Plural: "pods", Namespaced: true},
		{Kind: nodeKind, Version: "v1", Plural: "nodes"},
		namespaceResource,
	}
)

// inputs returns what is followed in addition to the mirrored kinds, and to make resources of it.
func (s *Source) inputs() (all []discovery.Resource) {
	for _, r := range inputResources {
		if _, is := ingressInputs[r.Kind]; is && s.ingressOptions != nil || s.readsInput(r.Kind) {
			all = append(all, r)
		}
	}
	return all
}

// needed reports whether clients wait for a kind even if the relay is not allowed to read it.
func (s *Source) needed(k mirror.Kind) bool {
	input := slices.ContainsFunc(s.inputs(), func(r discovery.Resource) bool { return r.Kind == k })
	return s.named[k] || (input || s.readsInput(k)) && !isOptional(k) || k == ledger.Namespaces && s.selection != nil || k == meshKind
}

// definitionsChanged requests an early discovery, and a few more after it.
func (s *Source) definitionsChanged() {
	s.hurry.Store(hurries)
	s.discoverSoon()
}

func (s *Source) discoverSoon() { mirror.Signal(s.soon) }

// nextDiscovery returns the pause until the next discovery.
func (s *Source) nextDiscovery() time.Duration {
	if left := s.hurry.Load(); left > 0 && s.hurry.CompareAndSwap(left, left-1) {
		return min(s.pace.soon<<(hurries-left), s.pace.discover)
	}
	return s.pace.discover
}

// errNamespaces is the error of a discovery while the namespaces are not listed.
var errNamespaces = errors.New("the namespaces have not been listed yet")

// discover fetches the kinds that the server serves, and follows them.
func (s *Source) discover(ctx context.Context) error {
	connection, err := s.cluster.Verify(ctx)
	var a *discovery.Answer
	if err == nil {
		a, err = s.fetch(ctx, connection)
		if err = s.client.Explain(err); apierrors.IsForbidden(err) {
			err = fmt.Errorf("discovery of the API server: %w: give the identity the ClusterRole system:discovery", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, apiserver.ErrNoCredentials) {
		return err // readCredentials has reported the error
	}
	s.trouble(troubleDiscovery, err)
	if err != nil {
		return err
	}
	if len(s.following(definitionKind)) == 0 {
		c := s.newCollection(definitionResource, "")
		c.reflector = s.newReflector(c, definitions{c})
		s.show(definitionKind, []*collection{c})
		s.launch(ctx, []*collection{c})
	}
	if s.selection != nil && !s.selection.Complete() {
		if len(s.following(ledger.Namespaces)) == 0 {
			s.launch(ctx, s.begin(namespaceResource))
		}
		return errNamespaces
	}
	if err := s.readServiceOptions(ctx, connection); err != nil {
		s.trouble(troubleDiscovery, err)
		return err
	}
	s.discovered(a)
	s.follow(ctx, a)
	s.readMesh(ctx, connection)
	s.readVersion(ctx, connection)
	return nil
}

// fetch requests the served kinds from the server. It waits until the source has one of the places.
func (s *Source) fetch(ctx context.Context, c *apiserver.Conn) (*discovery.Answer, error) {
	if err := s.discoveries.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.discoveries.Release(1)
	return discovery.Fetch(ctx, c, s.sought)
}

// follow starts to follow new kinds of an answer, and drops kinds that are gone.
func (s *Source) follow(ctx context.Context, a *discovery.Answer) {
	var fresh []*collection
	for _, k := range s.sought {
		if !s.wants(k) {
			continue
		}
		now := s.following(k)
		best, is := a.Best(k)
		switch {
		case is:
			s.tracker.Serves(k)
			if len(now) == 0 || !a.Has(now[0].Resource) || s.tracker.Improves(best, now[0].Resource, time.Now()) {
				stop(now)
				fresh = append(fresh, s.begin(best)...)
			}
		case a.Lacks(k):
			s.missing(ctx, k, now)
		}
	}
	for _, input := range s.inputs() {
		if len(s.following(input.Kind)) == 0 {
			fresh = append(fresh, s.begin(input)...)
		}
	}
	if s.section.Ingress.Mode == modeMesh && len(s.following(meshKind)) == 0 {
		s.replace(meshKind, []*collection{s.newCollection(meshResource, s.meshNamespace)})
	}
	s.ledger.Begin()
	s.launch(ctx, fresh) // after the ledger knows all entries
}

// begin replaces the collections of a kind by new ones. launch starts these.
func (s *Source) begin(of discovery.Resource) []*collection {
	all := s.newCollections(of)
	s.replace(of.Kind, all)
	return all
}

// replace replaces the collections of a kind.
func (s *Source) replace(kind mirror.Kind, all []*collection) {
	entries := make([]*ledger.Entry, len(all))
	for i, c := range all {
		entries[i] = c.entry
	}
	s.ledger.Set(kind, entries)
	s.show(kind, all)
}

// missing handles an answer that lacks a kind. The objects of the kind are deleted when enough answers lack
// it, and its watches have ended: deleting a definition ends them.
func (s *Source) missing(ctx context.Context, k mirror.Kind, now []*collection) {
	follows := false
	for _, c := range now {
		if s.ledger.Follows(c.entry) {
			follows = true
		} else {
			s.ledger.Hush(c.entry)
		}
	}
	if enough := s.tracker.Misses(k, time.Now()); !enough || follows || !s.ready(ctx) {
		return
	}
	stop(now)
	s.replace(k, nil)
	s.tracker.Drop(k)
	if result := s.ledger.Drop(k); result.Gone > 0 {
		s.log.Warn("kind is not served any more", "kind", k, "resources", result.Gone)
	}
}

// ready reports whether the server is ready. It also returns true if the server forbids or lacks /readyz.
func (s *Source) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, apiserver.ReadTimeout)
	defer cancel()
	resp, err := s.client.Current().Get(ctx, "/readyz", nil, "*/*")
	if err == nil {
		resp.Body.Close()
	}
	return err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}
