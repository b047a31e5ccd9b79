package services

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	endpoints "meshrelay/federation/services"
)

// Endpoints returns the endpoints of a cluster, sorted. known is false if there is no such cluster: no Service that other
// clusters may reach has it, and it is none of a selector. The names are those of federation/services.Clusters.
//
// The endpoints of a Service are those of its EndpointSlices that are ready, or all if the Service publishes them,
// without those that terminate. A pod is one endpoint, whatever its slices and addresses: the address is one of the first
// family of the Service. The pod is found by its name, never by its address, and only in the namespace of the slice,
// since its account means that namespace. It adds labels, account, mTLS mode and network. While a pod is not known, it
// is no endpoint; where Pods can not be read, an endpoint has an address, a locality and a network. WorkloadEntries with an
// IP address, or with a network and no address, that a Service with a cluster IP selects in its namespace are endpoints as well.
//
// The endpoints of a selector are the pods that are ready and the WorkloadEntries of the namespace that it selects, on the
// port that they call by its name, or else on the target of the cluster.
func (s *State) Endpoints(cluster string) (all []endpoints.Endpoint, known bool) {
	if sel, ok := s.reads.byCluster[cluster]; ok {
		all, known = s.selected(sel), true
	} else if n, v, p := s.portOf(cluster); p != nil {
		all, known = s.served(cluster, n, v, p), true
	}
	slices.SortFunc(all, compare)
	return all, known
}

// portOf returns the port of a Service that has a cluster, nil if there is none.
func (s *State) portOf(cluster string) (n Name, v *service, p *port) {
	head, host, _ := strings.Cut(cluster, "||")
	number, _ := strconv.ParseUint(strings.TrimPrefix(head, "outbound|"), 10, 32) // no port is 0
	n.Name, host, _ = strings.Cut(host, ".")
	n.Namespace, _, _ = strings.Cut(host, ".")
	if v = get[service](s, Services, n); v == nil || s.options.local(n, v) != "" {
		return n, nil, nil
	}
	i := slices.IndexFunc(v.ports, func(p port) bool { return uint64(p.number) == number })
	if i < 0 || s.cluster(n, v.ports[i]) != cluster {
		return n, nil, nil
	}
	return n, v, &v.ports[i]
}

// cluster returns the cluster of a port of a Service.
func (s *State) cluster(n Name, p port) string {
	return "outbound|" + strconv.FormatUint(uint64(p.number), 10) + "||" + s.options.host(n)
}

// served returns the endpoints of a port of a Service.
func (s *State) served(cluster string, n Name, v *service, p *port) (all []endpoints.Endpoint) {
	sp, at := s.spaces[n.Namespace], map[string]int{} // by pod
	if sp.crowded(n, v) {
		s.quota.take(cluster, share{namespace: n.Namespace})
		return nil
	}
	for _, l := range sp.slices[n.Name] {
		i := slices.IndexFunc(l.ports, func(of port) bool { return of.name == p.name })
		for _, m := range l.members {
			e, ok := s.member(n.Namespace, v, m)
			if i < 0 || l.ports[i].number == 0 || !ok {
				continue
			}
			e.Port = l.ports[i].number
			if i, had := at[m.pod]; !had {
				if all = append(all, e); m.pod != "" {
					at[m.pod] = len(all) - 1
				}
			} else if v.prefers(e, all[i]) {
				all[i] = e
			}
		}
	}
	if v.selector == "" {
		return all
	}
	return append(all, s.bounded(n.Namespace, cluster, func(yield func(endpoints.Endpoint) bool) {
		for _, w := range sp.index.entries[firstOf(v.selector)] {
			if !w.usable || !sp.index.selects(v, w) {
				continue
			}
			if e := s.endpoint(w, symbol{}, p.of(w)); e.Port > 0 && !yield(e) {
				return
			}
		}
	})...)
}

const (
	// maxPorts and maxServed bound the ports of a Service, and their product with the addresses and ports of its slices.
	// Others may write the ports and the slices.
	maxPorts, maxServed = 1000, 1_000_000
)

// crowded reports whether a Service has no endpoints, because its ports would have too many.
func (sp *space) crowded(n Name, v *service) bool {
	in := 0
	for _, l := range sp.slices[n.Name] {
		in += len(l.ports) + len(l.members)
	}
	return len(v.ports) > maxPorts || len(v.ports)*in > maxServed
}

// prefers reports whether a rather than b is the endpoint of a pod.
func (v *service) prefers(a, b endpoints.Endpoint) bool {
	if first := a.Addr.Is6() == v.ipv6; first != (b.Addr.Is6() == v.ipv6) {
		return first
	}
	return compare(a, b) < 0
}

// of returns the port on which a WorkloadEntry serves p, zero if it does not (istio
// pilot/pkg/serviceregistry/kube/controller/controller.go serviceInstanceFromWorkloadInstance).
func (p *port) of(w *workload) uint32 {
	switch target := p.target; {
	case target.Type == intstr.Int && target.IntVal > 0:
		return cmp.Or(w.port(p.name), uint32(target.IntVal))
	case target.StrVal == "":
		return p.number
	}
	return w.port(p.target.StrVal)
}

// member returns the endpoint at an address of a slice, without its port.
func (s *State) member(namespace string, v *service, m member) (e endpoints.Endpoint, ok bool) {
	var w workload
	p := get[workload](s, Pods, Name{namespace, m.pod})
	switch {
	case p != nil:
		w = *p
	case m.pod != "" && !s.absent[Pods]:
		return e, false // clients would speak plaintext to it
	}
	w.addr, w.node = m.addr, s.nodeOf(namespace, m)
	return s.endpoint(&w, m.zone, 0), !m.terminating && !w.leaving && (m.ready || v.publish)
}

// nodeOf returns the name of the Node of an address of a slice.
func (s *State) nodeOf(namespace string, m member) symbol {
	if p := get[workload](s, Pods, Name{namespace, m.pod}); p != nil && m.node == (symbol{}) {
		return p.node
	}
	return m.node
}

// maxText bounds each text of an endpoint, in bytes; longer ones are left out. A pod, a Node and the system namespace have
// theirs once, and each endpoint has its own.
const maxText = 8 << 10

// endpoint returns a workload as an endpoint, in the zone of its Node unless zone is set. Its region is not known
// without its Node.
func (s *State) endpoint(w *workload, zone symbol, port uint32) endpoints.Endpoint {
	e := endpoints.Endpoint{
		Addr: w.addr, Host: w.host.String(), Port: port, Weight: w.weight, Account: w.account.String(), TLS: w.tls, Labels: w.labels.String(),
		Locality: w.locality.String(), Network: cmp.Or(w.network.String(), s.options.SystemNetwork, s.options.Network),
	}
	if s.options.HBONE && w.tunnel != (symbol{}) {
		e.Labels, e.TLS = w.tunnel.String(), false
	}
	if n := get[node](s, Nodes, Name{Name: w.node.String()}); n != nil && e.Locality == "" {
		e.Locality = endpoints.Locality(n.region.String(), cmp.Or(zone, n.zone).String(), n.subzone.String())
	}
	for _, t := range [...]*string{&e.Host, &e.Account, &e.Network, &e.Locality, &e.Labels} {
		if len(*t) > maxText {
			*t = ""
		}
	}
	return e
}

func compare(a, b endpoints.Endpoint) int {
	if c := cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Labels, b.Labels)); c != 0 {
		return c
	}
	return cmp.Compare(fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b))
}

// flushInputs notes what has endpoints that are changed pods, or are on changed Nodes. It forgets empty namespaces.
func (s *State) flushInputs() {
	for namespace, sp := range s.spaces {
		if len(sp.changedPods)+len(s.nodes) > 0 {
			s.flushSpace(namespace, sp)
		}
		if !slices.ContainsFunc(sp.objects[:], func(m map[string]any) bool { return len(m) > 0 }) {
			delete(s.spaces, namespace)
		}
	}
	clear(s.nodes)
}

// flushSpace is flushInputs for one namespace. It looks at all slices, and at all pods if Nodes have changed.
func (s *State) flushSpace(namespace string, sp *space) {
	changed := func(m member) bool {
		_, is := sp.changedPods[m.pod]
		return is || len(s.nodes) > 0 && s.isOnChangedNode(s.nodeOf(namespace, m))
	}
	for name, list := range sp.slices {
		if of := (Name{namespace, name}); slices.ContainsFunc(list, func(l *slice) bool { return slices.ContainsFunc(l.members, changed) }) {
			s.touch(of, get[service](s, Services, of))
		}
	}
	if len(s.nodes) > 0 {
		for name, p := range sp.objects[Pods] {
			if s.isOnChangedNode(p.(*workload).node) {
				s.touchFor(Pods, Name{namespace, name}, p)
			}
		}
	}
	sp.changedPods = map[string]struct{}{} // a cleared one would keep room for all pods of the first list
}

func (s *State) isOnChangedNode(node symbol) bool {
	_, is := s.nodes[node]
	return is
}
