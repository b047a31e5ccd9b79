package downstream

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/downstream/views"
	"meshrelay/federation/filter"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// A canary is a text that occurs in one place of a world only: a letter, five digits, and "q". Canaries are in
// names, namespaces, labels, annotations, hosts, bodies, versions, clusters, upstreams, relays and revisions.
//
//	c of a copy   k of a key   t of a tenant   s of an upstream   x of a cluster   h of a group of hosts
func canary(letter byte, n int) string { return fmt.Sprintf("%c%05dq", letter, n) }

// canaries adds the canaries in a text to a set.
func canaries(text []byte, to map[string]bool) {
	for at := 0; ; {
		n := bytes.IndexByte(text[at:], 'q')
		if n < 0 {
			return
		}
		if at += n + 1; at >= 7 && isCanary(text[at-7:at]) {
			to[string(text[at-7:at])] = true
		}
	}
}

func isCanary(b []byte) bool {
	for _, c := range b[1:6] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return strings.IndexByte("cktsxhn", b[0]) >= 0
}

const (
	leakTenants = 50
	leakSources = 8
	leakForms   = 6 // of the view of a tenant
)

// drawKinds returns the kinds of a world, the most frequent ones several times, and the type URLs that sessions
// ask for.
func drawKinds(rng *rand.Rand) (kinds []mirror.Kind, urls []string) {
	kinds = []mirror.Kind{kindSE, kindSE, kindSE, kindSE, kindVS, kindDR, mirror.MeshConfig, {Group: "acme.example", Kind: "Widget"}}
	urls = []string{seV1, vsV1, drV1, meshURL, "acme.example/v1/Widget", "acme.example/v1/Nothing"}
	all := mirror.Kinds()
	for range 4 {
		if info := all[rng.IntN(len(all))]; !slices.Contains(urls, info.TypeURLs()[0]) {
			kinds, urls = append(kinds, info.Kind), append(urls, info.TypeURLs()[0])
		}
	}
	return kinds, urls
}

// leakViews has the views that a tenant may have, one for each form.
var leakViews = func() (out [leakTenants][leakForms]*views.Rule) {
	for t := range leakTenants {
		team, own := canary('t', t), canary('s', t%leakSources)
		for form, r := range []struct {
			sources []string
			rules   filter.Rules
		}{
			{sources: []string{own}, rules: filter.Rules{Namespaces: filter.Globs{Include: []string{"team-" + team, "shared*"}}}},
			{rules: filter.Rules{Namespaces: filter.Globs{Include: []string{"team-" + team + "*"}}}},
			{sources: []string{own, canary('s', (t+3)%leakSources)}, rules: filter.Rules{Kinds: []string{"se", "vs", "meshconfigs", "acme.example/Widget"}}},
			{rules: filter.Rules{Selector: "team=" + team}},
			{sources: []string{own}, rules: filter.Rules{Namespaces: filter.Globs{Exclude: []string{"team-*"}}}},
			{rules: filter.Rules{Kinds: []string{"se", "dr", "widgets.acme.example", "meshconfigs"}, Selector: "team in (" + team + "," + canary('t', (t+1)%leakTenants) + ")"}},
		} {
			if form == 5 {
				r.rules.Kinds = r.rules.Kinds[:2]
			}
			f, err := filter.New(r.rules)
			if err != nil {
				panic(err)
			}
			out[t][form] = &views.Rule{View: views.View{Name: "view-" + team, ClusterID: []string{"", canary('x', t%leakSources)}[t%2], Accepts: func(res *mirror.Resource) bool {
				return (len(r.sources) == 0 || slices.Contains(r.sources, res.Source())) && f.Check(res).Passes()
			}}}
		}
	}
	return out
}()

// leakCopy draws a copy of a resource. tenant is whose it is; number is that of its canary.
func leakCopy(rng *rand.Rand, kinds []mirror.Kind, number int) *mirror.Resource {
	tenant := rng.IntN(leakTenants)
	kind := kinds[rng.IntN(len(kinds))]
	source := tenant % leakSources
	if rng.IntN(5) == 0 {
		source = rng.IntN(leakSources)
	}
	own, team := canary('c', number), canary('t', tenant)
	key := mirror.Key{Kind: kind, Namespace: "team-" + team, Name: "n-" + canary('k', tenant*10+rng.IntN(2))}
	if rng.IntN(3) == 0 { // a key that several tenants claim
		key.Namespace, key.Name = "shared", "n-"+canary('k', 9000+rng.IntN(6))
	}
	if info, known := mirror.LookupKind(kind); known && info.ClusterScoped {
		key.Namespace = ""
	}
	if kind == mirror.MeshConfig {
		key.Namespace, key.Name = "", mirror.MeshConfigName
	}
	spec := mirror.Spec{
		Key: key, Source: canary('s', source), Cluster: canary('x', source), SourceVersion: "v-" + own, Body: leakBody(rng, kind, own),
		Labels: map[string]string{"team": team, "own": own, "key-" + own: ""}, Annotations: map[string]string{"note": own, "note/" + own: "a"},
		CreateTime: time.Unix(int64(1e9+rng.IntN(5)), 0),
	}
	switch rng.IntN(8) {
	case 0:
		spec.Labels["istio.io/rev"] = "rev-" + canary('n', rng.IntN(3))
	case 1:
		spec.Cluster = canary('x', rng.IntN(2*leakSources)) // from a relay that passes clusters on
	}
	r := must(mirror.New(spec))
	return r.Stamped(&mirror.Stamp{Source: spec.Source, Cluster: spec.Cluster, Relay: "relay-" + own})
}

// leakBody returns a body with canaries. Bodies of ServiceEntries can often be united.
func leakBody(rng *rand.Rand, kind mirror.Kind, own string) *anypb.Any {
	host := canary('h', rng.IntN(5)) + ".example"
	var m proto.Message
	switch kind {
	case mirror.MeshConfig:
		m = &mesh.MeshConfig{TrustDomain: own}
	case kindSE:
		m = &networking.ServiceEntry{
			Hosts: []string{host}, Ports: []*networking.ServicePort{{Number: uint32(80 + rng.IntN(20)/19), Name: "http", Protocol: "HTTP"}},
			Resolution: networking.ServiceEntry_STATIC, Endpoints: []*networking.WorkloadEntry{{Address: "192.0.2.1", Labels: map[string]string{"e": own}}, {Address: own}},
			Addresses: []string{own},
		}
	case kindVS:
		m = &networking.VirtualService{Hosts: []string{host, own + ".example"}}
	case kindDR:
		m = &networking.DestinationRule{Host: own + ".example"}
	default:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStringValue(own)}}
		m = s
		if info, known := mirror.LookupKind(kind); known {
			if m = info.NewBody(); m.ProtoReflect().Descriptor() == s.ProtoReflect().Descriptor() {
				m = s
			}
		}
	}
	return must(anypb.New(m))
}

// leakStep is one change of a world: the copies that are put and the keys that are removed, together.
type leakStep struct {
	put    []*mirror.Resource
	remove []place
	forms  *[leakTenants]int // a reload: the form of the view of each tenant; nil: no reload
	full   bool              // everything is read again
}

// place is a place for a copy.
type place struct {
	source string
	key    mirror.Key
}

func placeOf(r *mirror.Resource) place { return place{r.Source(), r.Key()} }

// leakScript is the life of a world.
type leakScript struct {
	kinds    []mirror.Kind
	urls     []string
	forms    [leakTenants]int
	claims   [leakTenants]views.Client
	policies map[mirror.Kind]mirror.Policy
	others   mirror.Policy
	steps    []leakStep // the first one comes before the views open
}

// drawScript draws the life of a world.
func drawScript(rng *rand.Rand) *leakScript {
	s := &leakScript{policies: map[mirror.Kind]mirror.Policy{}}
	s.kinds, s.urls = drawKinds(rng)
	for t := range leakTenants {
		s.forms[t] = rng.IntN(leakForms)
		c := views.Client{NodeID: "node-" + canary('t', t)}
		if rng.IntN(2) == 0 {
			c.ClusterID = canary('x', rng.IntN(2*leakSources))
		}
		if rng.IntN(4) == 0 {
			c.Revision = "rev-" + canary('n', rng.IntN(3))
		}
		s.claims[t] = c
	}
	policies := []mirror.Policy{mirror.First{}, merge.Newest{}, merge.Reject{}, merge.Union{}, merge.Union{SameHost: true}}
	s.policies[kindSE] = merge.ForEntries(policies[rng.IntN(len(policies))])
	s.others = policies[rng.IntN(3)]
	var there []*mirror.Resource
	number := 0
	draw := func() *mirror.Resource {
		number++
		r := leakCopy(rng, s.kinds, number)
		there = append(there, r)
		return r
	}
	first := leakStep{}
	for range 20 + rng.IntN(40) {
		first.put = append(first.put, draw())
	}
	s.steps = append(s.steps, first.once())
	for range 2 + rng.IntN(5) {
		var step leakStep
		for range 1 + rng.IntN(3) {
			old := there[rng.IntN(len(there))]
			switch rng.IntN(6) {
			case 0, 1:
				step.remove = append(step.remove, placeOf(old))
			case 2: // equal content under another version: the store keeps its bytes
				spec := old.Spec()
				number++
				spec.SourceVersion = "v-" + canary('c', number)
				delete(spec.Annotations, mirror.ProvenanceAnnotation)
				r := must(mirror.New(spec)).Stamped(&mirror.Stamp{Source: spec.Source, Cluster: spec.Cluster, Relay: "relay-" + canary('c', number)})
				step.put = append(step.put, r)
			default:
				step.put = append(step.put, draw())
			}
		}
		switch rng.IntN(16) {
		case 0:
			step.full = true
		case 1:
			forms := s.forms
			for t := range leakTenants {
				if rng.IntN(2) == 0 {
					forms[t] = rng.IntN(leakForms)
				}
			}
			step.forms = &forms
		}
		s.steps = append(s.steps, step.once())
	}
	return s
}

// once keeps the last change of each place.
func (s leakStep) once() leakStep {
	last := map[place]*mirror.Resource{}
	for _, r := range s.put {
		last[placeOf(r)] = r
	}
	s.put = slices.DeleteFunc(s.put, func(r *mirror.Resource) bool { return last[placeOf(r)] != r })
	s.remove = slices.DeleteFunc(s.remove, func(at place) bool { return last[at] != nil })
	return s
}

// variantFor returns what a tenant sees, at a form of its view.
func (s *leakScript) variantFor(tenant, form int) views.Selection {
	return leakViews[tenant][form].Selection(s.claims[tenant])
}

// twin returns a script that differs from s only in what a tenant does not see. The tenant keeps its view.
func (s *leakScript) twin(rng *rand.Rand, tenant int) *leakScript {
	shows := s.variantFor(tenant, s.forms[tenant]).Accepts
	out := *s
	out.steps = nil
	visible := map[place]bool{} // of s
	has := map[place]bool{}     // of the twin
	number := 50_000
	for _, step := range s.steps {
		next := leakStep{full: step.full, forms: step.forms}
		if rng.IntN(12) == 0 {
			next.full = !step.full
		}
		hide := func(at place) { // the slot has nothing that the tenant sees
			if has[at] && (visible[at] || rng.IntN(2) == 0) {
				next.remove = append(next.remove, at)
				has[at] = false
			}
			visible[at] = false
		}
		for _, at := range step.remove {
			if visible[at] { // what takes its place now is hidden, or nothing
				next.remove = append(next.remove, at)
				visible[at], has[at] = false, false
			} else {
				hide(at)
			}
		}
		for _, r := range step.put {
			at := placeOf(r)
			if shows(r) {
				next.put = append(next.put, r)
				visible[at], has[at] = true, true
			} else {
				hide(at)
			}
		}
		for range rng.IntN(3) {
			number++
			if r := leakCopy(rng, s.kinds, number); !shows(r) && !visible[placeOf(r)] && !slices.ContainsFunc(next.put, func(o *mirror.Resource) bool { return placeOf(o) == placeOf(r) }) {
				next.remove = slices.DeleteFunc(next.remove, func(at place) bool { return at == placeOf(r) })
				next.put = append(next.put, r)
				has[placeOf(r)] = true
			}
		}
		if rng.IntN(8) == 0 {
			forms := s.forms
			for t := range leakTenants {
				forms[t] = rng.IntN(leakForms)
			}
			next.forms = &forms
		}
		out.steps = append(out.steps, next)
	}
	return &out
}
