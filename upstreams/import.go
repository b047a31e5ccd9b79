package upstreams

import (
	"fmt"
	"slices"
	"strings"
	"unique"

	"meshrelay/config"
	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Reason is why a resource of a source is left out.
type Reason uint8

// The reasons. Their order is the one in which they are looked at.
const (
	imported Reason = iota
	reasonLoop
	reasonHops
	reasonGenerated
	reasonRevision
	reasonKind
	reasonNamespace
	reasonCollision
	reasonSelector
	reasonExpression
	reasonExpressionError
	reasonEndpoints
	reasons // how many there are
)

var reasonNames = [reasons]string{
	"", "loop", "hops", "generated", "revision", "kind", "namespace", "collision", "selector", "expression", "expression-error", "endpoints",
}

// String returns the reason as metrics and documents have it; empty when a resource is not
// left out.
func (r Reason) String() string { return reasonNames[r] }

var filterReasons = map[filter.Reason]Reason{
	"":                           imported,
	filter.ReasonKind:            reasonKind,
	filter.ReasonNamespace:       reasonNamespace,
	filter.ReasonSelector:        reasonSelector,
	filter.ReasonRevision:        reasonRevision,
	filter.ReasonExpression:      reasonExpression,
	filter.ReasonExpressionError: reasonExpressionError,
}

// importer settles what becomes of the resources of one source on the way in: what of them
// is taken, and how it is reshaped. It is immutable.
type importer struct {
	source, cluster string
	generated       bool // what an istiod makes by itself is left out
	relayed         bool // resources come from istiods or relays, not from files
	services        string
	gateways        services.Gateways
	network         string // of the consumers, for discovered endpoints
	// displaced are namespaces that are not mapped, and where another one that is mapped
	// lands: of two resources of one name, one would hide the other.
	displaced  map[string]string
	filter     *filter.Filter
	rewriter   *rewrite.Rewriter
	provenance config.Provenance
	// stamp is for what an istiod or a file has, relayStamp for what a relay has: only that
	// tells where it comes from.
	stamp, relayStamp *mirror.Stamp
}

func newImporter(u config.Upstream, p config.Provenance) (*importer, error) {
	filter, err := filter.New(u.Import.Rules())
	if err != nil {
		return nil, fmt.Errorf("upstream %s: import: %w", u.Name, err)
	}
	rewriter, err := rewrite.New(u.RewriteRules())
	if err != nil {
		return nil, fmt.Errorf("upstream %s: rewrite: %w", u.Name, err)
	}
	displaced := map[string]string{}
	for from, to := range u.Rewrite.Namespaces {
		own, prefixed := strings.CutPrefix(to, u.Rewrite.NamespacePrefix)
		if _, mapped := u.Rewrite.Namespaces[own]; prefixed && !mapped && filter.PassesNamespace(mirror.Kind{}, from) {
			displaced[own] = from
		}
	}
	stamp := mirror.StampOf{Source: u.Name, Cluster: u.ClusterID}
	if p.Annotations {
		stamp.Relay = p.Relay
	}
	fromRelay := stamp
	fromRelay.Believe = true
	return &importer{
		stamp: mirror.NewStamp(stamp), relayStamp: mirror.NewStamp(fromRelay),
		displaced: displaced,
		source:    u.Name, cluster: u.ClusterID, generated: u.XDS != nil && u.Generated != config.GeneratedKeep, relayed: u.XDS != nil,
		services: u.Services.Mode, network: u.Services.Network,
		gateways: services.Gateways{Addresses: u.Services.Gateways, Network: u.Services.Network, Locality: u.Services.Locality},
		filter:   filter, rewriter: rewriter, provenance: p,
	}, nil
}

// keyOf returns the key under which a resource of the source is held here.
func (im *importer) keyOf(k mirror.Key) mirror.Key { return im.rewriter.Key(k) }

// admits reports whether the rules about namespaces let in what a disk has, as far as that
// depends on the scope of its kind. The other rules are looked at when it is adopted.
func (im *importer) admits(r state.Record) bool {
	original := r.Original
	if original == nil {
		original = r.Resource
	}
	return original.Namespace() != "" || original.Kind() == mirror.MeshConfig || im.filter.PassesNamespace(original.Kind(), original.Namespace())
}

// stampFor returns the stamp for what a server has.
func (im *importer) stampFor(relay bool) *mirror.Stamp {
	if relay {
		return im.relayStamp
	}
	return im.stamp
}

// believed reports whether a resource, as it is held here, has come from a relay whose word
// was believed.
func (im *importer) believed(r *mirror.Resource) bool {
	return r.Cluster() != im.cluster || len(r.Provenance().Path) > 1
}

// check returns why a resource, as the source has it, is left out, and says it in a
// sentence. path are the relays that it has passed, as it tells, and relay reports whether a
// relay told it. This relay's own name counts from istiods too, which tell a relay again what
// they have from it.
func (im *importer) check(r *mirror.Resource, path []string, relay bool) (Reason, string) {
	if len(path) > 0 && im.relayed {
		switch {
		case slices.Contains(path, im.provenance.Relay):
			return reasonLoop, fmt.Sprintf("it has passed this relay (%s) before", im.provenance.Relay)
		case relay && len(path) >= im.provenance.MaxHops:
			return reasonHops, fmt.Sprintf("it has passed %d relays or more, which is all that provenance.maxHops allows", im.provenance.MaxHops)
		}
	}
	if im.relayed && services.IsSynthetic(r) {
		if im.services == config.ServicesOmit {
			return reasonGenerated, "an istiod made it of a Kubernetes service, without endpoints: services.mode says what becomes of those"
		}
	} else if im.generated && strings.Contains(r.Key().Name, "istio-autogenerated-k8s-") {
		return reasonGenerated, "an istiod made it by itself: generated: keep mirrors such objects"
	}
	if im.filter.Check(r) == "" {
		if from, taken := im.displaced[r.Namespace()]; taken && r.Namespace() != "" {
			return reasonCollision, fmt.Sprintf("the namespace %q of the source is what %q becomes: map it elsewhere", r.Namespace(), from)
		}
		return imported, ""
	}
	reason, text := im.filter.Explain(r)
	return filterReasons[reason], unique.Make(text).Value() // the same is said of many
}

// discovers reports whether the endpoints of a resource have to be asked for.
func (im *importer) discovers(r *mirror.Resource) bool {
	return im.services == config.ServicesDiscover && services.IsSynthetic(r)
}

// reshape returns a resource that is imported as it is to be held here, and whether it
// differs. endpoints are those of a service that are known.
func (im *importer) reshape(r *mirror.Resource, endpoints services.Assignments) (out *mirror.Resource, differs bool, err error) {
	out = r
	if im.relayed && services.IsSynthetic(r) {
		switch im.services {
		case config.ServicesGateway:
			out, err = im.gateways.Reach(r)
		case config.ServicesDiscover:
			out, err = services.WithEndpoints(r, endpoints, im.network)
		}
		if err != nil {
			return nil, false, fmt.Errorf("services: %w", err)
		}
	}
	if out, err = im.rewriter.Rewrite(out); err != nil {
		return nil, false, fmt.Errorf("rewrite: %w", err)
	}
	return out, out != r, nil
}
