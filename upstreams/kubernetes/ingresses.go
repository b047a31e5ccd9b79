package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

// The kinds of the inputs and outputs of the conversion.
var (
	ingressKind      = mirror.Kind{Group: "networking.k8s.io", Kind: "Ingress"}
	ingressClassKind = mirror.Kind{Group: "networking.k8s.io", Kind: "IngressClass"}
	serviceKind      = mirror.Kind{Kind: "Service"}

	ingressInputs = map[mirror.Kind]ingress.Input{ingressKind: ingress.Ingresses, ingressClassKind: ingress.Classes, serviceKind: ingress.Services}

	gatewayKind        = mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}
	virtualServiceKind = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}

	// ingressOutputs are the kinds of outputs, in the order of their scopes.
	ingressOutputs = []mirror.Kind{gatewayKind, virtualServiceKind}
)

// ingresses converts the Ingresses of a cluster to Gateways and VirtualServices. The ledger's lock guards it.
type ingresses struct {
	upstream  string
	feed      upstreams.Feed
	state     *ingress.State
	inputs    map[mirror.Kind]map[string]input // by full name
	has       map[mirror.Kind]bool             // kinds of inputs that have synced
	unsettled bool                             // the MeshConfig with the options was not read yet
	relisted  bool                             // an input was listed again since complete was called

	// unnoted is set while there may be refused inputs that are not in inputs, because there is no room. A list of
	// one namespace does not clear it: outputs that are gone then stay until the source starts again.
	unnoted map[mirror.Kind]bool

	named    []string // result of problems
	count    int
	reviewed bool // named and count are up to date
}

// input describes an object that is an input.
type input struct {
	size    int   // charged bytes
	decoded bool  // an earlier or the newest content was decoded
	err     error // why the newest content can not be used
}

const (
	// partBytes is about the memory of one part of an Ingress, in bytes. A host is in several maps.
	partBytes = 256
	// maxProblem bounds the kept error of an input, in bytes.
	maxProblem = 512
)

// newInput returns the input of an object. The number of commas bounds the number of its parts.
func newInput(kind mirror.Kind, o *object.Object) input {
	each := object.Entry
	if kind == ingressKind {
		each = partBytes
	}
	texts := 2*len(o.FullName()) + len(o.Spec) + len(o.Annotations[ingress.ClassAnnotation])
	return input{size: object.Overhead + texts + each*bytes.Count(o.Spec, []byte{','}), decoded: true}
}

// newIngresses returns the conversion for an upstream. It reports panics to feed.
func newIngresses(upstream string, o ingress.Options, feed upstreams.Feed) *ingresses {
	g := &ingresses{
		upstream: upstream, feed: feed, state: ingress.New(o),
		inputs: map[mirror.Kind]map[string]input{}, has: map[mirror.Kind]bool{}, unnoted: map[mirror.Kind]bool{},
	}
	for kind := range ingressInputs {
		g.inputs[kind] = map[string]input{}
	}
	return g
}

// Takes implements ledger.Deriver.
func (g *ingresses) Takes(kind mirror.Kind) bool {
	_, is := ingressInputs[kind]
	return is || kind == meshKind
}

// Outputs implements ledger.Deriver.
func (g *ingresses) Outputs() []mirror.Kind { return ingressOutputs }

// Synced implements ledger.Deriver.
func (g *ingresses) Synced(kind mirror.Kind) {
	g.has[kind] = true
	g.state.Synced(ingressInputs[kind])
}

// ready reports whether all inputs have synced.
func (g *ingresses) ready() bool { return !g.unsettled && len(g.has) == len(ingressInputs) }

// settle sets the options that were read from the MeshConfig.
func (g *ingresses) settle(o ingress.Options) {
	g.unsettled, g.reviewed = false, false
	g.state.SetOptions(o)
}

func nameOf(o *object.Object) ingress.Name { return ingress.Name{Namespace: o.Namespace, Name: o.Name} }

// Set implements ledger.Deriver. If the new content of an input is wrong, its last good content stays.
func (g *ingresses) Set(kind mirror.Kind, o *object.Object) error {
	g.reviewed = false
	name := o.FullName()
	before, known := g.inputs[kind][name]
	now, err := newInput(kind, o), o.Err
	grows := now.size - before.size
	if fits := g.feed.Keep(grows); err == nil && grows > 0 && !fits {
		err = fmt.Errorf("%s %s: %sthe upstream has more than limits.maxBytes", kind.Kind, name, object.OverLimit)
	}
	if err == nil {
		err = g.decode(kind, o)
	}
	if err != nil {
		g.feed.Keep(-grows)
		now = before
		now.err = errors.New(text.Shorten(err.Error(), maxProblem))
	}
	if !now.decoded {
		now.size = object.Entry + 2*len(name) + len(now.err.Error())
		if fits := g.feed.Keep(now.size - before.size); !known && !fits {
			g.feed.Keep(-now.size)
			g.unnoted[kind] = true
			return err
		}
	}
	g.inputs[kind][name] = now
	return err
}

// forget drops the input of a deleted object.
func (g *ingresses) forget(kind mirror.Kind, name string) {
	g.reviewed = false
	g.feed.Keep(-g.inputs[kind][name].size)
	delete(g.inputs[kind], name)
}

func (g *ingresses) decode(kind mirror.Kind, o *object.Object) (err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			g.feed.Tell(intake.Panicked{What: kind.Kind + " " + o.FullName(), Panic: p})
			err = fmt.Errorf("%s %s: %w", kind.Kind, o.FullName(), p)
		}
	}()
	switch kind {
	case ingressKind:
		i, err := ingress.IngressOf(nameOf(o), o.CreationTimestamp.Time, o.Annotations, o.Spec)
		if err == nil {
			g.state.SetIngress(i)
		}
		return err
	case ingressClassKind:
		c, err := ingress.ClassOf(nameOf(o), o.Spec)
		if err == nil {
			g.state.SetClass(c)
		}
		return err
	}
	v, err := ingress.ServiceOf(nameOf(o), o.Spec)
	if err == nil {
		g.state.SetService(v)
	}
	return err
}

// Replace implements ledger.Deriver.
func (g *ingresses) Replace(kind mirror.Kind, namespace string, all []*object.Object) (refused intake.Result) {
	g.relisted = true
	if namespace == "" {
		g.unnoted[kind] = false
	}
	listed := make(map[ingress.Name]bool, len(all))
	for _, o := range all {
		listed[nameOf(o)] = true
		if err := g.Set(kind, o); err != nil {
			refused.Refuse(kind.String()+" "+o.FullName(), err)
		}
	}
	g.retain(kind, func(n ingress.Name) bool {
		return listed[n] || namespace != "" && n.Namespace != namespace
	})
	return refused
}

func (g *ingresses) retain(kind mirror.Kind, keep func(ingress.Name) bool) {
	g.state.Retain(ingressInputs[kind], keep)
	for full := range g.inputs[kind] {
		if namespace, name, _ := strings.Cut(full, "/"); !keep(ingress.Name{Namespace: namespace, Name: name}) {
			g.forget(kind, full)
		}
	}
}

// Delete implements ledger.Deriver.
func (g *ingresses) Delete(kind mirror.Kind, o *object.Object) {
	g.state.Remove(ingressInputs[kind], nameOf(o))
	g.forget(kind, o.FullName())
}

// Leave implements ledger.Deriver.
func (g *ingresses) Leave(namespaces []string) {
	for kind := range ingressInputs {
		if kind != ingressClassKind {
			g.retain(kind, func(n ingress.Name) bool { return !slices.Contains(namespaces, n.Namespace) })
		}
	}
}

// owes reports whether the intake must get all outputs again.
func (g *ingresses) owes() bool { return g.relisted && g.ready() }

// lacks reports whether some input was never decoded. Outputs of that input may exist from before the start,
// made by another build or with other limits. These outputs are not gone.
func (g *ingresses) lacks() bool {
	for kind, inputs := range g.inputs {
		if g.unnoted[kind] {
			return true
		}
		for _, in := range inputs {
			if !in.decoded {
				return true
			}
		}
	}
	return false
}

// complete returns all outputs. Its updates are complete unless lacks returns true.
func (g *ingresses) complete() []intake.Update {
	gone := map[mirror.Kind][]string{}
	lacks := g.lacks()
	g.relisted = true // in case of a panic
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
			updates[i].Removed = ledger.Names(gone[kind])
		}
	}
	g.relisted = lacks
	return updates
}

// Answer implements ledger.Deriver.
func (g *ingresses) Answer() []intake.Update {
	if g.owes() {
		return g.complete()
	}
	if changes := g.Changes(false); len(changes) > 0 {
		return changes
	}
	updates := make([]intake.Update, len(ingressOutputs))
	for i, kind := range ingressOutputs {
		updates[i] = intake.Update{Scope: intake.DerivedScope(kind), Elements: intake.Resources()}
	}
	return updates
}

// Changes implements ledger.Deriver.
func (g *ingresses) Changes(part bool) []intake.Update {
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
		updates[i] = intake.Update{Scope: intake.DerivedScope(kind), Part: part, Elements: g.elements(by[kind]), Room: len(by[kind]), Removed: ledger.Names(gone[kind])}
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

// problems returns the first problems of the conversion, and the number of all. Nobody may change the list.
func (g *ingresses) problems() (named []string, all int) {
	if g.reviewed {
		return g.named, g.count
	}
	defer func() { g.named, g.count, g.reviewed = named, all, true }()
	add := func(problem string) {
		if all++; len(named) < ledger.MaxProblems {
			named = append(named, problem)
		}
	}
	for _, kind := range []mirror.Kind{ingressKind, ingressClassKind, serviceKind} {
		if g.unnoted[kind] {
			add(fmt.Sprintf("%s: there is no room for the names of all that are refused: raise limits.maxBytes", kind.Kind))
		}
		for _, in := range g.inputs[kind] {
			if in.err != nil {
				add(in.err.Error())
			}
		}
	}
	slices.Sort(named)
	for p := range g.state.Problems() {
		add(p.String())
	}
	return named, all
}

// detail returns the status of the conversion.
func (g *ingresses) detail() *IngressDetail {
	d := &IngressDetail{}
	for _, in := range g.inputs[ingressKind] {
		if in.err != nil {
			d.Refused++
		}
	}
	d.Problems, d.ProblemsTotal = g.problems()
	d.Ingresses, d.Converted = g.state.Counts()
	return d
}
