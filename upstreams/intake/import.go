package intake

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"unique"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Reasons why a resource is left out, in addition to those of the filter.
const (
	reasonLoop      = "loop"
	reasonHops      = "hops"
	reasonGenerated = "generated"
	reasonCollision = "collision"
	reasonEndpoints = "endpoints"
	reasonUnhealthy = "unhealthy"
)

// Reasons returns all reasons why a resource can be left out: those of the filter, and those of the intake.
func Reasons() []string {
	var all []string
	for _, reason := range filter.Reasons() {
		all = append(all, string(reason))
	}
	return append(all, reasonLoop, reasonHops, reasonGenerated, reasonCollision, reasonEndpoints, reasonUnhealthy)
}

// leftOut is why a resource is left out: a reason, and a sentence. Many resources share one.
type leftOut = unique.Handle[struct{ reason, detail string }]

// imported is the leftOut of a resource that is imported.
var imported leftOut

func leftOutBy(reason, detail string) leftOut {
	return unique.Make(struct{ reason, detail string }{reason, detail})
}

// Rules decide what becomes of the resources of one source on the way in: what of them is imported,
// and how it is rewritten. They are immutable.
type Rules struct {
	cfg      config.Upstream
	relayed  bool // resources come from istiods or relays, not from their authors
	gateways services.Gateways
	// displaced has, by namespace that is not mapped, the namespace that is mapped to it: of two
	// resources of one name, one would hide the other.
	displaced  map[string]string
	filter     *filter.Filter
	rewriter   *rewrite.Rewriter
	provenance config.Provenance
	// stamp is for what an istiod or an author has, relayStamp for what a relay has: only that
	// tells where it comes from.
	stamp, relayStamp *mirror.Stamp
	version           string
}

// NewRules returns the rules of an upstream. revision is the relay's own. relayed reports whether
// the upstream is a control plane, which may have resources from this relay, rather than where
// resources are written.
func NewRules(u config.Upstream, p config.Provenance, revision string, relayed bool) (*Rules, error) {
	imports, err := filter.New(u.Import)
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
		if _, mapped := u.Rewrite.Namespaces[own]; prefixed && !mapped && imports.PassesNamespace(mirror.Kind{}, from) {
			displaced[own] = from
		}
	}
	stamp := mirror.Stamp{Source: u.Name, Cluster: u.ClusterID}
	if p.Annotations.Given() {
		stamp.Relay = p.Relay
	}
	fromRelay := stamp
	fromRelay.Believe = true
	return &Rules{
		cfg: u, relayed: relayed,
		gateways:  services.Gateways{Addresses: u.Services.Gateways, Network: u.Services.Network, Locality: u.Services.Locality},
		displaced: displaced, filter: imports, rewriter: rewriter, provenance: p,
		stamp: &stamp, relayStamp: &fromRelay,
		version: versionOf(u, p, revision, relayed),
	}, nil
}

// rulesVersion is the version of the code that imports. It changes when the same rules give another
// result than before: the resources on disk are then imported anew.
const rulesVersion = 3

// versionOf returns a hash of all settings that the result of an import depends on. It leaves out
// settings whose JSON is zero or empty: so a release with a new setting has the same version while nobody
// uses the setting, and does not import the resources on disk anew. The JSON of a new setting must
// therefore be zero when it is not set (that of a time.Time is not).
func versionOf(u config.Upstream, p config.Provenance, revision string, relayed bool) string {
	text, err := json.Marshal(map[string]any{
		"name": u.Name, "clusterID": u.ClusterID, "generated": u.Generated, "domainSuffix": u.DomainSuffix,
		"revision": revision, "relayed": relayed, "provenance": map[string]any{"Annotations": p.Annotations.Given(), "Relay": p.Relay, "MaxHops": p.MaxHops},
		"import": u.Import, "services": u.Services, "rewrite": u.Rewrite,
	})
	var settings any
	if err == nil {
		err = json.Unmarshal(text, &settings)
	}
	if err == nil {
		text, err = json.Marshal(used(settings)) // with sorted keys
	}
	if err != nil {
		panic(fmt.Sprintf("intake: a config has what JSON does not: %v", err))
	}
	sum := xxh3.Hash128(text).Bytes()
	return fmt.Sprintf("v%d-%s", rulesVersion, base64.RawURLEncoding.EncodeToString(sum[:]))
}

// used returns decoded JSON without the members that are zero or empty.
func used(settings any) any {
	m, ok := settings.(map[string]any)
	if !ok {
		return settings
	}
	for key, value := range m {
		value = used(value)
		if v := reflect.ValueOf(value); !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0 {
			delete(m, key)
		} else {
			m[key] = value
		}
	}
	return m
}

// Version names the rules: under rules of the same version, the same is held of a resource.
func (im *Rules) Version() string { return im.version }

// keyOf returns the key under which a resource of the source is held here.
func (im *Rules) keyOf(k mirror.Key) mirror.Key { return im.rewriter.Key(k) }

// admits reports whether a record of a disk has a namespace, or needs none.
func (im *Rules) admits(r state.Record) bool {
	original := r.Original
	if original == nil {
		original = r.Resource
	}
	return original.Namespace() != "" || original.Kind() == mirror.MeshConfig || im.filter.PassesNamespace(original.Kind(), original.Namespace())
}

func (im *Rules) scopeOf(r *state.Record) (Scope, error) {
	kind := r.Resource.Kind()
	if derived := DerivedScope(kind); !im.relayed && r.TypeURL == derived.Name {
		return derived, nil
	}
	if !im.relayed {
		return KindScope(kind), nil
	}
	url := r.TypeURL
	if info, ok := mirror.LookupKind(kind); ok && url == "" {
		url = info.TypeURLs()[0] // it was not had from a server
	}
	return TypeScope(url)
}

// KindScope returns the scope of a kind whose resources are authored: there is one for each kind.
func KindScope(kind mirror.Kind) Scope { return Scope{Kind: kind, Name: kind.String()} }

// DerivedScope returns the scope of the resources of a kind that a source makes of other objects. What
// is authored under the same name is served in their place.
func DerivedScope(kind mirror.Kind) Scope {
	return Scope{Kind: kind, Name: "derived/" + kind.String(), Rank: 1}
}

// TypeScope returns the scope of a type URL. Of a kind, the newest version has the lowest rank.
func TypeScope(typeURL string) (Scope, error) {
	kind, version, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return Scope{}, err
	}
	s := Scope{Kind: kind, Name: typeURL, Rank: math.MaxInt}
	if info, ok := mirror.LookupKind(kind); ok {
		if i := slices.Index(info.Versions, version); i >= 0 {
			s.Rank = i
		}
	}
	return s, nil
}

// believed reports whether a resource has come from a relay whose word was believed.
func (im *Rules) believed(r *mirror.Resource) bool {
	return r.Cluster() != im.cfg.ClusterID || r.Hops() > 1
}

// check returns why a resource, as the source has it, is left out. way has the relays that it has
// passed, and relay reports whether it comes from one. This relay's own name also counts from
// istiods, which tell a relay again what they have from it.
func (im *Rules) check(r *mirror.Resource, way mirror.Way, relay bool) leftOut {
	if im.relayed {
		if why := im.passed(way, relay); why != imported {
			return why
		}
	}
	if im.relayed && services.IsSynthetic(r) {
		if im.cfg.Services.Mode == config.ServicesOmit {
			return leftOutBy(reasonGenerated, "an istiod made it of a Kubernetes service, without endpoints: services.mode decides about those")
		}
	} else if im.relayed && !relay && im.cfg.Generated != config.GeneratedKeep && strings.Contains(r.Key().Name, "istio-autogenerated-k8s-") {
		return leftOutBy(reasonGenerated, "an istiod made it by itself: generated: keep mirrors such objects")
	}
	if verdict := im.filter.Check(r); !verdict.Passes() {
		return leftOutBy(string(verdict.Reason), verdict.Sentence())
	}
	if from, taken := im.displaced[r.Namespace()]; taken && r.Namespace() != "" {
		return leftOutBy(reasonCollision, fmt.Sprintf("the namespace %q of the source is what %q becomes: map it elsewhere", r.Namespace(), from))
	}
	return imported
}

// passed returns why a resource that has come a way is left out.
func (im *Rules) passed(way mirror.Way, relay bool) leftOut {
	switch {
	case way.Passes(im.provenance.Relay):
		return leftOutBy(reasonLoop, fmt.Sprintf("it has passed this relay (%s) before", im.provenance.Relay))
	case relay && len(way.Path) > 0 && len(way.Path) >= im.provenance.MaxHops:
		return leftOutBy(reasonHops, fmt.Sprintf("it has passed %d relays or more, which is all that provenance.maxHops allows", im.provenance.MaxHops))
	}
	return imported
}

// discovers reports whether the endpoints of a resource have to be asked for.
func (im *Rules) discovers(r *mirror.Resource) bool {
	return im.relayed && im.cfg.Services.Mode == config.ServicesDiscover && services.IsSynthetic(r)
}

// reshape returns a resource as it is held here, with the known endpoints, and whether it differs.
func (im *Rules) reshape(r *mirror.Resource, endpoints services.Assignments) (out *mirror.Resource, differs bool, err error) {
	out = r
	if im.relayed && services.IsSynthetic(r) {
		switch im.cfg.Services.Mode {
		case config.ServicesGateway:
			out, err = services.WithGateways(r, im.gateways)
		case config.ServicesDiscover:
			out, err = services.WithEndpoints(r, endpoints, im.cfg.Services.Network)
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

// importRecord makes r, which the source has and which has come by way, the content
// of a record: left out or reshaped. It reports whether what is held is another now. An error
// leaves the record as it is.
func (in *Intake) importRecord(sc *scope, rec *record, r *mirror.Resource, way mirror.Way) (differs bool, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			differs, err = false, in.panicked(r.FullName(), p)
		}
	}()
	if in.fault != nil {
		in.fault(r)
	}
	had := rec.resource != nil
	if why := in.rules.check(r, way, rec.relayed); why != imported {
		in.discovery.unfollow(rec)
		sc.setLeftOut(rec, why)
		rec.resource, rec.original = nil, nil
		return had, nil
	}
	held, reshaped, err := in.reshape(sc, rec, r)
	waits := errors.Is(err, errWaiting) || errors.Is(err, errUnanswered)
	switch {
	case waits && (had || in.revive(rec, sc.Kind, r.FullName())):
		rec.original = r // what was known before is served until then
		return !had, nil
	case waits, errors.Is(err, errNoEndpoints), errors.Is(err, services.ErrUnreachable):
		sc.setLeftOut(rec, leftOutBy(reasonEndpoints, err.Error()))
		rec.resource, rec.original = nil, r
		return had, nil
	case err != nil:
		// The record holds the last good content, and so do the endpoints to follow.
		if rec.original != nil && in.rules.discovers(rec.original) {
			in.discovery.follow(sc, rec, rec.original) //nolint:errcheck // it was followed before
		}
		return false, err
	}
	sc.setLeftOut(rec, imported)
	rec.resource, rec.original = held, nil
	if reshaped {
		rec.original = r
	}
	return true, nil
}

// reshape returns what a record is to hold of r.
func (in *Intake) reshape(sc *scope, rec *record, r *mirror.Resource) (held *mirror.Resource, reshaped bool, err error) {
	if !in.rules.discovers(r) {
		in.discovery.unfollow(rec)
		return in.rules.reshape(r, nil)
	}
	known, err := in.discovery.follow(sc, rec, r)
	if err != nil {
		return nil, false, err
	}
	held, reshaped, err = in.rules.reshape(r, known)
	if err == nil && services.IsSynthetic(held) {
		err = errNoEndpoints
	}
	return held, reshaped, err
}
