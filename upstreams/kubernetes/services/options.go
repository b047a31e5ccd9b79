package services

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Options are the settings on which services depend. Nobody may change Local afterwards.
type Options struct {
	// Domain is the domain of the cluster, "cluster.local" by default.
	Domain string
	// SystemNetwork is the label topology.istio.io/network of the system namespace. It is the network of endpoints that
	// name none. If it is empty, Network is.
	SystemNetwork, Network string
	// Selector selects Services by their labels. Nil selects all.
	Selector labels.Selector
	// Discovery is the host of the istiod of the cluster, with Domain or without. It is "istiod.istio-system.svc" by default.
	Discovery string
	// Local are the hosts that the MeshConfig makes clusterLocal. They may begin with "*".
	Local []string
}

func (o Options) withDefaults() Options {
	o.Domain, o.Discovery = cmp.Or(o.Domain, "cluster.local"), cmp.Or(o.Discovery, "istiod.istio-system.svc")
	return o
}

// Equal reports whether two Options have the same effect.
func (o Options) Equal(p Options) bool {
	text := func(o Options) string {
		selector := labels.Everything()
		if o.Selector != nil {
			selector = o.Selector
		}
		return strings.Join([]string{o.Domain, o.Discovery, o.SystemNetwork, o.Network, selector.String()}, "\n")
	}
	return text(o.withDefaults()) == text(p.withDefaults()) && slices.Equal(o.Local, p.Local)
}

func (o *Options) host(n Name) string { return n.Name + "." + n.Namespace + ".svc." + o.Domain }

// leftOut returns why other clusters must not reach a Service, empty if they may (istio
// pilot/pkg/model/cluster_local.go).
func (o *Options) leftOut(n Name, v *service) string {
	host := o.host(n)
	isLocal := func(pattern string) bool {
		suffix, wild := strings.CutPrefix(pattern, "*")
		return wild && strings.HasSuffix(host, suffix) || pattern == host
	}
	switch {
	case n == Name{"default", "kubernetes"}:
		return "each cluster has its own API server"
	case n.Namespace == "kube-system":
		return "services of kube-system are for their own cluster"
	case host == o.Discovery || host == o.Discovery+"."+o.Domain:
		return "it is the istiod of its cluster"
	case v.local:
		return "its internalTrafficPolicy is Local"
	case slices.ContainsFunc(o.Local, isLocal):
		return "serviceSettings of the MeshConfig make its host clusterLocal"
	case o.Selector != nil && !o.Selector.Matches(labels.Set(v.labels)):
		return "services.selector does not select it"
	}
	return ""
}
