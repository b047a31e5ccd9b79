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
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
	"meshrelay/federation/services"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
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
	// ClusterLocal is the reason for a service that no other cluster may reach.
	ClusterLocal = "cluster-local"
)

// Reasons returns all reasons why a resource can be left out.
func Reasons() []string {
	var all []string
	for _, reason := range filter.Reasons() {
		all = append(all, string(reason))
	}
	return append(all, reasonLoop, reasonHops, reasonGenerated, reasonCollision, reasonEndpoints, reasonUnhealthy, ClusterLocal)
}

// leftOut is why a resource is left out: a reason and a sentence. Equal ones share memory.
type leftOut = unique.Handle[struct{ reason, detail string }]

// imported is the leftOut of a resource that is imported.
var imported leftOut

func leftOutBy(reason, detail string) leftOut {
	return unique.Make(struct{ reason, detail string }{reason, text.Shorten(detail, maxReason)})
}

// Rules decide which resources of one source are imported, and how they are rewritten. They are
// immutable.
type Rules struct {
	cfg      config.Upstream
	relayed  bool // resources come from istiods or relays, not from their authors
	gateways services.Gateways
	// displaced maps a source namespace to the one that rewrite.namespaces maps onto its name. Its
	// resources are left out: two resources could have the same key.
	displaced  map[string]string
	filter     *filter.Filter
	roots      []string           // the root namespaces of MeshConfigs
	via        []identity.Pattern // servers whose word on provenance is believed; empty: all relays
	rewriter   *rewrite.Rewriter
	provenance config.Provenance
	// stamp is for resources from an istiod or an author. relayStamp is for resources from a relay: it keeps
	// the provenance that only relays write.
	stamp, relayStamp *mirror.Stamp
	version           string
}

// NewRules returns the rules of an upstream. revision is the relay's own. relayed: the upstream is
// a control plane, which may have resources from this relay.
func NewRules(u config.Upstream, p config.Provenance, revision string, relayed bool) (*Rules, error) {
	imports, err := filter.New(u.ImportRules())
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
	var via []identity.Pattern
	for _, text := range u.Import.RequireVia {
		p, err := identity.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("upstream %s: import.requireVia: %w", u.Name, err)
		}
		via = append(via, p)
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
		displaced: displaced, filter: imports, roots: []string{filter.DefaultRoot}, via: via, rewriter: rewriter, provenance: p,
		stamp: &stamp, relayStamp: &fromRelay,
		version: versionOf(u, p, revision, relayed),
	}, nil
}

// rulesVersion is the version of the import code. It changes when the same rules give another
// result: the resources on disk are then imported again.
const rulesVersion = 4

// versionOf returns a hash of all settings on which an import depends. It leaves out settings whose
// JSON is zero or empty: a release with a new setting keeps the version while nobody uses the
// setting, and does not import the resources on disk again. The JSON of a new setting must
// therefore be zero when it is not set (that of a time.Time is not).
func versionOf(u config.Upstream, p config.Provenance, revision string, relayed bool) string {
	text, err := json.Marshal(map[string]any{
		"name": u.Name, "clusterID": u.ClusterID, "generated": u.Generated, "domainSuffix": u.DomainSuffix,
		"revision": revision, "relayed": relayed, "provenance": map[string]any{"Annotations": p.Annotations.Given(), "Relay": p.Relay, "MaxHops": p.MaxHops},
		"import": u.Import, "services": u.Services, "rewrite": u.Rewrite, "profile": u.Guard.Profile,
		"namesOfHosts": u.Services.Mode != config.ServicesOmit && (u.DomainSuffix != federation.DefaultDomain || len(u.Rewrite.Hosts) > 0), // since 0.3.0
	})
	var settings any
	if err == nil {
		err = json.Unmarshal(text, &settings)
	}
	if err == nil {
		text, err = json.Marshal(used(settings)) // with sorted keys
	}
	if err != nil {
		panic(fmt.Sprintf("intake: the config of upstream %s has no JSON form: %v", u.Name, err))
	}
	sum := xxh3.Hash128(text).Bytes()
	return fmt.Sprintf("v%d-%s", rulesVersion, base64.RawURLEncoding.EncodeToString(sum[:]))
}

// used returns decoded JSON without zero and empty members.
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

// Version identifies the rules: rules of one version import a resource alike.
func (im *Rules) Version() string { return im.version }

// keyOf returns the served key of a resource of the source.
func (im *Rules) keyOf(k mirror.Key) mirror.Key { return im.rewriter.Key(k) }

// admits reports whether a record from disk has a namespace, or needs none.
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
		url = info.TypeURLs()[0] // it does not come from a server
	}
	return TypeScope(url)
}

// KindScope returns the scope of a kind of authored resources. There is one for each kind.
func KindScope(kind mirror.Kind) Scope { return Scope{Kind: kind, Name: kind.String()} }

// DerivedScope returns the scope of resources that a source makes from other objects. An authored
// resource of the same name is served instead.
func DerivedScope(kind mirror.Kind) Scope {
	return Scope{Kind: kind, Name: "derived/" + kind.String(), Rank: 1}
}

// TypeScope returns the scope of a type URL. The newest version of a kind has the lowest rank.
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

// believed reports whether a resource came from a relay whose path of it was trusted.
func (im *Rules) believed(r *mirror.Resource) bool {
	return r.Cluster() != im.cfg.ClusterID || r.Hops() > 1
}

// check returns why a resource of the source is left out. way has the relays that it has passed, and entries returns the
// hosts of a ServiceEntry that is a parent of a route. relay: it comes from one. Loops through istiods count: an istiod sends a relay its own resources.
func (im *Rules) check(r *mirror.Resource, way mirror.Way, relay bool, entries func(mirror.Key) []string) leftOut {
	if sink, is := r.Sunk(im.provenance.Relay); is {
		return leftOutBy(reasonLoop, fmt.Sprintf("the sink %s of this relay (%s) has written it, or of a relay that had it from this one", text.Abbreviate(sink), im.provenance.Relay))
	}
	if im.relayed {
		if why := im.passed(way, relay); why != imported {
			return why
		}
	}
	if im.relayed && services.IsSynthetic(r) && !isTold(r, relay) {
		if im.cfg.Services.Mode == config.ServicesOmit {
			return leftOutBy(reasonGenerated, "an istiod made it from a Kubernetes service, without endpoints: see services.mode")
		}
	} else if im.relayed && !relay && im.cfg.Generated != config.GeneratedKeep && strings.Contains(r.Key().Name, "istio-autogenerated-k8s-") {
		return leftOutBy(reasonGenerated, "an istiod generated it: the setting generated: keep mirrors such objects")
	}
	if why := im.checkRoot(r.Key()); why != imported && im.filter.PassesKind(r.Kind()) {
		return why
	}
	if verdict := im.filter.CheckUnder(r, entries); !verdict.Passes() {
		return leftOutBy(string(verdict.Reason), verdict.Sentence())
	}
	if from, taken := im.displaced[r.Namespace()]; taken && r.Namespace() != "" {
		return leftOutBy(reasonCollision, fmt.Sprintf("rewrite.namespaces maps %q to the served name of %q: map that one to another name", from, r.Namespace()))
	}
	return imported
}

// passed returns why a resource that came this way is left out.
func (im *Rules) passed(way mirror.Way, relay bool) leftOut {
	switch {
	case way.Passes(im.provenance.Relay):
		return leftOutBy(reasonLoop, fmt.Sprintf("it has passed this relay (%s) before", im.provenance.Relay))
	case relay && len(way.Path) > 0 && len(way.Path) >= im.provenance.MaxHops:
		return leftOutBy(reasonHops, fmt.Sprintf("it has passed %d relays or more: provenance.maxHops allows no more", im.provenance.MaxHops))
	}
	return imported
}

// isTold reports whether a relay serves r without endpoints because the service has none. It is then served as it is.
func isTold(r *mirror.Resource, relay bool) bool { return relay && services.Told(r) }

// discovering reports whether endpoints of services are asked for.
func (im *Rules) discovering() bool { return im.cfg.Services.Mode == config.ServicesDiscover }

// discovers reports whether the endpoints of a resource must be asked for. relay: it comes from one.
func (im *Rules) discovers(r *mirror.Resource, relay bool) bool {
	return im.discovering() && (im.isSynthetic(r, relay) || im.selects(r))
}

// isMade reports whether r was made of a Kubernetes service. People write the other ServiceEntries of an API server, with any
// name: one with the host of another service must not get the endpoints of that.
func (im *Rules) isMade(r *mirror.Resource) bool {
	return services.IsMade(r) && (im.relayed || services.HasOwnHost(r))
}

// isSynthetic reports whether r was made of a Kubernetes service, and lacks endpoints. relay: it comes from one.
func (im *Rules) isSynthetic(r *mirror.Resource, relay bool) bool {
	return services.IsSynthetic(r) && im.isMade(r) && !isTold(r, relay)
}

// selects reports whether r gets the workloads that it selects as its endpoints. An istiod does not tell of them.
func (im *Rules) selects(r *mirror.Resource) bool {
	return im.discovering() && !im.relayed && services.Selects(r)
}

// reshape returns a resource as it is served, with the known endpoints, r itself if nothing differs, and its siblings.
func (im *Rules) reshape(r *mirror.Resource, endpoints services.Assignments, relay bool) (out *mirror.Resource, siblings []*mirror.Resource, err error) {
	out = r
	if im.filter.JudgesHosts() {
		out, err = services.WithoutAddresses(r)
	}
	switch {
	case err != nil:
	case im.discovers(r, relay):
		out, siblings, err = services.WithEndpoints(out, endpoints, im.cfg.Services.Network)
	case im.cfg.Services.Mode == config.ServicesGateway && im.isSynthetic(r, relay):
		out, err = services.WithGateways(out, im.gateways)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("services: %w", err)
	}
	if out, err = im.rewriter.Rewrite(out); err != nil {
		return nil, nil, fmt.Errorf("rewrite: %w", err)
	}
	for i, p := range siblings {
		if p, err = im.rewriter.Rewrite(p); err == nil {
			siblings[i], err = services.AsSibling(p, out.Key())
		}
		if err != nil {
			return nil, nil, fmt.Errorf("rewrite: %w", err)
		}
	}
	return out, siblings, nil
}

// importRecord sets the content of a record to r, which came by way: left out or reshaped. It
// reports whether the content changed. An error leaves the record as it is.
func (in *Intake) importRecord(sc *scope, rec *record, r *mirror.Resource, way mirror.Way) (differs bool, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			differs, err = false, in.panicked(r.FullName(), p)
		}
	}()
	if in.fault != nil {
		in.fault(r)
	}
	if r.Kind() == mirror.MeshConfig {
		in.ownRoot = RootOf(r)
		in.addRoot(in.ownRoot)
	}
	had := rec.resource != nil
	defer func() { in.parents = in.parents || r.Kind() == federation.ServiceEntry && had != (rec.resource != nil) }()
	if !rec.relayed && r.Kind() == federation.ServiceEntry {
		if r, err = services.Believed(r); err != nil {
			return false, err
		}
	}
	if why := in.check(rec, r, way); why != imported {
		in.detach(sc, rec)
		if why != rec.leftOut && why.Value().reason == string(filter.ReasonHosts) {
			in.claim(r, why.Value().detail)
		}
		sc.setLeftOut(rec, why)
		rec.resource, rec.original = nil, nil
		reason := filter.Reason(why.Value().reason)
		if reason == filter.ReasonRoot || reason == filter.ReasonHosts && rec.child {
			rec.original = r // it may pass with another root namespace, or with its parents
		}
		return had, nil
	}
	held, siblings, err := in.reshape(sc, rec, r)
	waits := errors.Is(err, errWaiting) || errors.Is(err, errUnanswered)
	switch {
	case waits && (had || in.revive(rec, sc.Kind, r.FullName())):
		rec.original = r // the former content is served until then
		return !had, nil
	case waits, errors.Is(err, services.ErrUnreachable):
		if !waits {
			in.detach(sc, rec)
		}
		sc.setLeftOut(rec, leftOutBy(reasonEndpoints, err.Error()))
		rec.resource, rec.original = nil, r
		return had, nil
	case err != nil:
		// The record keeps the last good content: follow the endpoints of that.
		if rec.original != nil && in.rules.discovers(rec.original, rec.relayed) {
			in.discovery.follow(sc, rec, rec.original) //nolint:errcheck // it was followed before
		}
		return false, err
	}
	sc.setLeftOut(rec, imported)
	rec.resource, rec.original = held, nil
	rec.setSiblings(siblings, in.former[held.Key()])
	if held != r {
		rec.original = r
	}
	return true, nil
}

// claim notes a resource that is left out because of a host that it claims.
func (in *Intake) claim(r *mirror.Resource, detail string) {
	if len(in.out.Claims) == maxClaims {
		in.out.MoreClaims++
		return
	}
	in.out.Claims = append(in.out.Claims, Claim{r.Key().String(), detail})
}

// reshape returns the content of a record for r, and its siblings.
func (in *Intake) reshape(sc *scope, rec *record, r *mirror.Resource) (held *mirror.Resource, siblings []*mirror.Resource, err error) {
	var known services.Assignments
	discovers := in.rules.discovers(r, rec.relayed)
	if !discovers {
		in.discovery.unfollow(rec)
	} else if known, err = in.discovery.follow(sc, rec, r); err != nil {
		return nil, nil, err
	}
	held, siblings, err = in.rules.reshape(r, known, rec.relayed)
	switch {
	case err != nil:
	case discovers && !federation.HasEndpoints(held.BodyValue()):
		held, err = services.Without(held)
	case !discovers:
		held, err = in.bare(held, rec.resource)
	}
	return held, siblings, err
}

// overLimit is the beginning of the reason if a limit refuses a resource.
const overLimit = "over the limit: "

func isOverLimit(reason string) bool { return strings.HasPrefix(reason, overLimit) }

var (
	// errFull is the error of a new resource without room.
	errFull = errors.New("the upstream has more than")
	// errHeldFull is the error of a new resource for which the held deletions leave no room.
	errHeldFull = fmt.Errorf("%w twice limits.maxResources or limits.maxBytes, with the deletions that its guard holds", errFull)
)

// room returns an error if an element exceeds the limits. The held content of the name stays. rec is nil for
// a new name.
func (in *Intake) room(sc *scope, rec *record, name []byte, el Element) error {
	l, size := in.limits, el.size()
	if len(name) > maxKeptName {
		return fmt.Errorf("the name has %d characters: want %d at most", len(name), maxKeptName)
	}
	if in.tooLarge(size) {
		return fmt.Errorf(overLimit+"%d bytes, and limits.maxResourceBytes of the upstream is %d", size, l.MaxResourceBytes)
	}
	held, needed := load{}, recordBytes+len(name)+len(el.version())+size
	if rec != nil {
		held = rec.load(len(name))
	}
	if !held.content && l.MaxResources > 0 && in.resources >= l.MaxResources {
		return fmt.Errorf(overLimit+"%w limits.maxResources, which is %d", errFull, l.MaxResources)
	}
	if l.MaxBytes > 0 && needed > held.bytes && in.Kept()+needed-held.bytes > l.MaxBytes {
		return fmt.Errorf(overLimit+"%w limits.maxBytes, which is %d", errFull, l.MaxBytes)
	}
	if !held.content && len(in.leaving) > 0 {
		return in.roomBesideHeld(sc.Kind, string(name), size)
	}
	return nil
}

// tooLarge reports whether an element of this size exceeds limits.maxResourceBytes.
func (in *Intake) tooLarge(size int) bool {
	return in.limits.MaxResourceBytes > 0 && size > in.limits.MaxResourceBytes
}

// roomBesideHeld returns an error when the records and the waiting deletions together are more than
// twice the limits: names that come and go must not fill the memory.
func (in *Intake) roomBesideHeld(kind mirror.Kind, name string, size int) error {
	original, ok := keyOf(kind, name)
	if !ok {
		return nil
	}
	if _, returns := in.leaving[in.rules.keyOf(original)]; returns {
		return nil
	}
	l := in.limits
	if l.MaxResources > 0 && in.resources+len(in.leaving) >= 2*l.MaxResources || l.MaxBytes > 0 && in.bytes+size+in.leavingBytes > 2*l.MaxBytes {
		return fmt.Errorf(overLimit+"%w: see \"relay held %s\"", errHeldFull, in.name)
	}
	return nil
}
