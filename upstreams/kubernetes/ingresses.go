package kubernetes

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
)

// The kinds that Gateways and VirtualServices are made of, and what is made.
var (
	ingressKind      = mirror.Kind{Group: "networking.k8s.io", Kind: "Ingress"}
	ingressClassKind = mirror.Kind{Group: "networking.k8s.io", Kind: "IngressClass"}
	serviceKind      = mirror.Kind{Kind: "Service"}

	ingressInputs = map[mirror.Kind]ingress.Input{ingressKind: ingress.Ingresses, ingressClassKind: ingress.Classes, serviceKind: ingress.Services}

	gatewayKind        = mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}
	virtualServiceKind = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}

	// ingressOutputs come in this order, as their scopes do.
	ingressOutputs = []mirror.Kind{gatewayKind, virtualServiceKind}
)

// maxProblems bounds the problems of Ingresses, and those of namespaces, that a status names.
const maxProblems = 20

// ingresses makes Gateways and VirtualServices of the Ingresses of a cluster. The ledger guards it.
type ingresses struct {
	upstream  string
	panicked  func(what string, p *mirror.Panic) // tells of it
	state     *ingress.State
	undone    map[mirror.Kind]map[string]error // objects whose newest content can not be decoded
	has       map[mirror.Kind]bool             // inputs that have synced
	unsettled bool                             // the MeshConfig is to tell how, and was not read yet
	relisted  bool                             // an input was, since all outputs were returned

	// sizes are those of the inputs, in bytes, used their sum, and most what that may be, 0 for any.
	sizes      map[mirror.Kind]map[string]int
	used, most int

	named    []string // problems, as problems returned them
	count    int
	reviewed bool // they are those of the inputs as they are
}

// newIngresses returns the conversion of an upstream, whose inputs have at most so many bytes; 0 is no
// bound.
func newIngresses(upstream string, o ingress.Options, most int) *ingresses {
	g := &ingresses{
		upstream: upstream, state: ingress.New(o), most: most,
		undone: map[mirror.Kind]map[string]error{}, has: map[mirror.Kind]bool{}, sizes: map[mirror.Kind]map[string]int{},
	}
	for kind := range ingressInputs {
		g.undone[kind], g.sizes[kind] = map[string]error{}, map[string]int{}
	}
	return g
}

// synced notes that all objects of an input are known.
func (g *ingresses) synced(kind mirror.Kind) {
	g.has[kind] = true
	g.state.Synced(ingressInputs[kind])
}

// ready reports whether all inputs have synced.
func (g *ingresses) ready() bool { return !g.unsettled && len(g.has) == len(ingressInputs) }

// settle takes over the options that the MeshConfig has.
func (g *ingresses) settle(o ingress.Options) {
	g.unsettled, g.reviewed = false, false
	g.state.SetOptions(o)
}

func nameOf(o *object) ingress.Name { return ingress.Name{Namespace: o.namespace, Name: o.name} }

// set takes over an input, or keeps the last good content of it.
func (g *ingresses) set(kind mirror.Kind, o *object) error {
	g.reviewed = false
	name, size, err := o.fullName(), o.size()+overhead, o.err
	if err == nil && g.most > 0 && g.used-g.sizes[kind][name]+size > g.most {
		err = fmt.Errorf("%s %s: over the limit: what is converted has more than limits.maxBytes", kind.Kind, name)
	}
	if err == nil {
		err = g.decode(kind, o)
	}
	if err != nil {
		g.undone[kind][name] = err
		return err
	}
	delete(g.undone[kind], name)
	g.used += size - g.sizes[kind][name]
	g.sizes[kind][name] = size
	return nil
}

// forget forgets what is noted of an input that is gone.
func (g *ingresses) forget(kind mirror.Kind, name string) {
	g.reviewed = false
	delete(g.undone[kind], name)
	g.used -= g.sizes[kind][name]
	delete(g.sizes[kind], name)
}

func (g *ingresses) decode(kind mirror.Kind, o *object) (err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			g.panicked(kind.Kind+" "+o.fullName(), p)
			err = fmt.Errorf("%s %s: %w", kind.Kind, o.fullName(), p)
		}
	}()
	switch kind {
	case ingressKind:
		i, err := ingress.IngressOf(nameOf(o), o.created, o.annotations, o.spec)
		if err == nil {
			g.state.SetIngress(i)
		}
		return err
	case ingressClassKind:
		c, err := ingress.ClassOf(nameOf(o), o.spec)
		if err == nil {
			g.state.SetClass(c)
		}
		return err
	}
	v, err := ingress.ServiceOf(nameOf(o), o.spec)
	if err == nil {
		g.state.SetService(v)
	}
	return err
}

// list takes over all inputs of a kind that a target has, in its namespace or in all.
func (g *ingresses) list(t *target, all []*object) (refused []intake.Refusal) {
	g.relisted = true
	listed := make(map[ingress.Name]bool, len(all))
	for _, o := range all {
		listed[nameOf(o)] = true
		if err := g.set(t.kind, o); err != nil {
			refused = append(refused, intake.Refusal{Resource: t.kind.String() + " " + o.fullName(), Reason: err.Error()})
		}
	}
	g.retain(t.kind, func(n ingress.Name) bool {
		return listed[n] || t.namespace != "" && n.Namespace != t.namespace
	})
	return refused
}

func (g *ingresses) retain(kind mirror.Kind, keep func(ingress.Name) bool) {
	g.state.Retain(ingressInputs[kind], keep)
	drop := func(full string) {
		if namespace, name, _ := strings.Cut(full, "/"); !keep(ingress.Name{Namespace: namespace, Name: name}) {
			g.forget(kind, full)
		}
	}
	for name := range g.undone[kind] {
		drop(name)
	}
	for name := range g.sizes[kind] {
		drop(name)
	}
}

// remove takes over that an input is gone.
func (g *ingresses) remove(kind mirror.Kind, o *object) {
	g.state.Remove(ingressInputs[kind], nameOf(o))
	g.forget(kind, o.fullName())
}

// leave takes over that namespaces are not mirrored any more.
func (g *ingresses) leave(namespaces []string) {
	for kind := range ingressInputs {
		if kind != ingressClassKind {
			g.retain(kind, func(n ingress.Name) bool { return !slices.Contains(namespaces, n.Namespace) })
		}
	}
}

// owes reports whether all outputs are to be returned once more.
func (g *ingresses) owes() bool { return g.relisted && g.ready() }

// lacks reports whether some input was never decoded. What was
// made of it before the start, by another build or under other limits, is not gone.
func (g *ingresses) lacks() bool {
	for kind, undone := range g.undone {
		for name := range undone {
			if _, decoded := g.sizes[kind][name]; !decoded {
				return true
			}
		}
	}
	return false
}

// complete returns all outputs as updates of their scopes, and complete ones unless it lacks an input.
func (g *ingresses) complete() []intake.Update {
	gone := map[mirror.Kind][]string{}
	lacks := g.lacks()
	g.relisted = true // unless it comes to its end
	if lacks {
		for _, c := range g.state.Flush() {
			if c.Output == nil {
				gone[c.Key.Kind] = append(gone[c.Key.Kind], c.Key.FullName())
			}
		}
	}
	by := map[mirror.Kind][]*ingress.Output{}
	for _, out := range g.state.All() {
		by[out.Key.Kind] = append(by[out.Key.Kind], out)
	}
	updates := make([]intake.Update, len(ingressOutputs))
	for i, kind := range ingressOutputs {
		updates[i] = intake.Update{Scope: intake.DerivedScope(kind), Complete: !lacks, Elements: g.elements(by[kind]), Room: len(by[kind])}
		if lacks {
			updates[i].Removed = names(gone[kind])
		}
	}
	g.relisted = lacks
	return updates
}

// changes returns the outputs that have changed as updates of both scopes. part: the scopes wait for
// more.
func (g *ingresses) changes(part bool) []intake.Update {
	if !part && g.owes() && !g.lacks() {
		return g.complete()
	}
	by, gone := map[mirror.Kind][]*ingress.Output{}, map[mirror.Kind][]string{}
	changes := g.state.Flush()
	if len(changes) == 0 {
		return nil
	}
	for _, c := range changes {
		if c.Output == nil {
			gone[c.Key.Kind] = append(gone[c.Key.Kind], c.Key.FullName())
		} else {
			by[c.Key.Kind] = append(by[c.Key.Kind], c.Output)
		}
	}
	updates := make([]intake.Update, len(ingressOutputs))
	for i, kind := range ingressOutputs {
		updates[i] = intake.Update{Scope: intake.DerivedScope(kind), Part: part, Elements: g.elements(by[kind]), Room: len(by[kind]), Removed: names(gone[kind])}
	}
	return updates
}

func (g *ingresses) elements(all []*ingress.Output) func(int, intake.Known) iter.Seq[intake.Element] {
	return func(int, intake.Known) iter.Seq[intake.Element] {
		return func(yield func(intake.Element) bool) {
			for _, out := range all {
				if !yield(intake.Element{
					Name: []byte(out.Key.FullName()), Size: proto.Size(out.Body), Digest: out.Digest(),
					Decode: func() (*mirror.Resource, bool, error) { return resourceOf(g.upstream, out) },
				}) {
					return
				}
			}
		}
	}
}

// resourceOf returns the resource of an output.
func resourceOf(upstream string, out *ingress.Output) (r *mirror.Resource, lacks bool, err error) {
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, out.Body, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, false, err
	}
	r, err = mirror.New(mirror.Spec{Key: out.Key, Source: upstream, Annotations: out.Annotations, Body: body})
	return r, false, err
}

// problems returns what is not converted, some by name, and how many problems there are. Nobody may
// change them.
func (g *ingresses) problems() (named []string, all int) {
	if g.reviewed {
		return g.named, g.count
	}
	defer func() { g.named, g.count, g.reviewed = named, all, true }()
	add := func(text string) {
		if all++; len(named) < maxProblems {
			named = append(named, text)
		}
	}
	for _, kind := range []mirror.Kind{ingressKind, ingressClassKind, serviceKind} {
		for _, err := range g.undone[kind] {
			add(err.Error())
		}
	}
	slices.Sort(named)
	for p := range g.state.Problems() {
		add(p.String())
	}
	return named, all
}
