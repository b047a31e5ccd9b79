package kubernetes

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/ingress"
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

// partBytes is about the memory of one part of an Ingress, in bytes. A host is in several maps.
const partBytes = 256

// ingresses converts the Ingresses of a cluster to Gateways and VirtualServices.
type ingresses struct {
	*derived
	upstream string
	state    *ingress.State
}

// newIngresses returns the conversion for an upstream. It reports panics to feed.
func newIngresses(upstream string, o ingress.Options, feed upstreams.Feed) *ingresses {
	g := &ingresses{upstream: upstream, state: ingress.New(o)}
	g.derived = newDerived(feed, g, map[mirror.Kind]bool{ingressKind: false, ingressClassKind: false, serviceKind: false}, ingressOutputs...)
	return g
}

// size implements maker. The number of commas bounds the number of parts of an input.
func (g *ingresses) size(kind mirror.Kind, o *object.Object) int {
	each := object.Entry
	if kind == ingressKind {
		each = partBytes
	}
	texts := 2*len(o.FullName()) + len(o.Spec) + len(o.Annotations[ingress.ClassAnnotation])
	return object.Overhead + texts + each*bytes.Count(o.Spec, []byte{','})
}

// decode implements maker.
func (g *ingresses) decode(kind mirror.Kind, o *object.Object) (set func(), err error) {
	name := ingress.Name(nameOf(o))
	switch kind {
	case ingressKind:
		i, err := ingress.IngressOf(name, o.CreationTimestamp.Time, o.Annotations, o.Spec)
		return func() { g.state.SetIngress(i) }, err
	case ingressClassKind:
		c, err := ingress.ClassOf(name, o.Spec)
		return func() { g.state.SetClass(c) }, err
	}
	v, err := ingress.ServiceOf(name, o.Spec)
	return func() { g.state.SetService(v) }, err
}

// remove implements maker.
func (g *ingresses) remove(kind mirror.Kind, n objectName) {
	g.state.Remove(ingressInputs[kind], ingress.Name(n))
}

// synced implements maker.
func (g *ingresses) synced(kind mirror.Kind) { g.state.Synced(ingressInputs[kind]) }

// flush implements maker.
func (g *ingresses) flush() []output { return g.outputs(g.state.Flush()) }

// all implements maker.
func (g *ingresses) all() []output { return g.outputs(g.state.All()) }

func (g *ingresses) outputs(all []*ingress.Output) []output {
	out := make([]output, len(all))
	for i, o := range all {
		if out[i] = (output{key: o.Key}); o.Body == nil {
			continue
		}
		out[i].digest, out[i].size = o.Digest(), proto.Size(o.Body)
		out[i].make = func() (*mirror.Resource, error) {
			return made(mirror.Spec{Key: o.Key, Source: g.upstream, Annotations: o.Annotations}, o.Body)
		}
	}
	return out
}

// lost implements maker.
func (g *ingresses) lost(f func(problem string)) {
	for p := range g.state.Problems() {
		f(p.String())
	}
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
