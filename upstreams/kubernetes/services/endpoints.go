package services

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	endpoints "meshrelay/federation/services"
)

// selection is a cluster of a selector.
type selection struct {
	namespace, labels, port string // labels are as EncodeLabels returns them
	target                  uint32
}

func selectionOf(cluster string) (sel selection, ok bool) {
	text, ok := strings.CutPrefix(cluster, endpoints.SelectedPrefix)
	parts := strings.Split(text, "|")
	if !ok || len(parts) != 4 {
		return sel, false
	}
	target, err := strconv.ParseUint(parts[3], 10, 16)
	sel = selection{namespace: parts[0], port: parts[2], target: uint32(target)}
	if parts[1] != "" {
		sel.labels = strings.ReplaceAll(parts[1], ",", "\n") + "\n"
	}
	return sel, err == nil
}

// Want notes the clusters that somebody reads, and returns those that nobody did before, sorted. Flush names clusters of
// selectors only while they are wanted. Nobody may change the map afterwards.
func (s *State) Want(clusters map[string]struct{}) (fresh []string) {
	clear(s.selections)
	for cluster := range clusters {
		if _, had := s.wanted[cluster]; !had {
			fresh = append(fresh, cluster)
		}
		if sel, ok := selectionOf(cluster); ok {
			if s.selections[sel.namespace] == nil {
				s.selections[sel.namespace] = map[string]selection{}
			}
			s.selections[sel.namespace][cluster] = sel
		}
	}
	s.wanted = clusters
	slices.Sort(fresh)
	return fresh
}

// Endpoints returns the endpoints of a cluster, sorted. known is false if there is no such cluster: no Service that other
// clusters may reach has it, and it is none of a selector. The names are those of federation/services.Clusters.
//
// The endpoints of a Service are those of its EndpointSlices that are ready, or all if the Service publishes them,
// without those that terminate. A pod is one endpoint, whatever its slices and addresses: the address is one of the first
// family of the Service. The pod is found by its name, never by its address, and only in the namespace of the slice,
// since its account means that namespace. It adds labels, account, mTLS mode and network. Without a known pod, an
// endpoint has an address, a locality and a network. WorkloadEntries with an IP address that a Service with a cluster
// IP selects in its namespace are endpoints as well.
//
// The endpoints of a selector are the pods that are ready and the WorkloadEntries of the namespace that it selects, on the
// port that they call by its name, or else on the target of the cluster.
func (s *State) Endpoints(cluster string) (all []endpoints.Endpoint, known bool) {
	if sel, ok := selectionOf(cluster); ok {
		all, known = s.selected(sel), true
	} else if n, v, port := s.portOf(cluster); v != nil {
		all, known = s.served(n, v, port), true
	}
	slices.SortFunc(all, compare)
	return all, known
}

// portOf returns the Service that has a cluster, nil if there is none, and the index of its port.
func (s *State) portOf(cluster string) (n Name, v *service, port int) {
	parts := strings.Split(cluster, "|")
	if len(parts) != 4 || parts[0] != "outbound" || parts[2] != "" {
		return n, nil, 0
	}
	if host, ok := strings.CutSuffix(parts[3], ".svc."+s.options.Domain); ok {
		n.Name, n.Namespace, _ = strings.Cut(host, ".")
		v = get[service](s, Services, n)
	}
	if v == nil || s.options.leftOut(n, v) != "" {
		return n, nil, 0
	}
	for i, p := range v.entry.Ports {
		if p.Protocol != udp && strconv.FormatUint(uint64(p.Number), 10) == parts[1] {
			return n, v, i
		}
	}
	return n, nil, 0
}

// served returns the endpoints of a port of a Service.
func (s *State) served(n Name, v *service, port int) (all []endpoints.Endpoint) {
	name, sp := v.entry.Ports[port].Name, s.spaces[n.Namespace]
	at := map[string]int{} // by pod
	for _, l := range sp.slices[n.Name] {
		for _, m := range l.members {
			e, ok := s.member(n.Namespace, v, m)
			if e.Port = l.ports[name]; !ok || e.Port == 0 {
				continue
			}
			if i, had := at[m.pod]; had && v.prefers(e, all[i]) {
				all[i] = e
			} else if !had {
				if all = append(all, e); m.pod != "" {
					at[m.pod] = len(all) - 1
				}
			}
		}
	}
	for _, w := range sp.objects[Workloads] {
		if w := w.(*workload); w.usable && v.selects(w) {
			if e := s.endpoint(w); v.serves(port, w, &e.Port) {
				all = append(all, e)
			}
		}
	}
	return all
}

// selects reports whether a Service selects a WorkloadEntry.
func (v *service) selects(w *workload) bool {
	return v.selector != "" && w.addr.IsValid() && w.has(v.selector)
}

// prefers reports whether a rather than b is the endpoint of a pod.
func (v *service) prefers(a, b endpoints.Endpoint) bool {
	if first := a.Addr.Is6() == v.ipv6; first != (b.Addr.Is6() == v.ipv6) {
		return first
	}
	return compare(a, b) < 0
}

// serves sets the port on which a WorkloadEntry serves a port of a Service. It returns false if there is none (istio
// pilot/pkg/serviceregistry/kube/controller/controller.go serviceInstanceFromWorkloadInstance).
func (v *service) serves(port int, w *workload, number *uint32) bool {
	p, target := v.entry.Ports[port], v.targets[port]
	switch {
	case target.Type == intstr.Int && target.IntVal > 0:
		*number = cmp.Or(w.port(p.Name), uint32(target.IntVal))
	case target.StrVal == "":
		*number = p.Number
	default:
		*number = w.port(target.StrVal)
	}
	return *number > 0
}

// selected returns the endpoints of a selection.
func (s *State) selected(sel selection) (all []endpoints.Endpoint) {
	sp := s.spaces[sel.namespace]
	if sp == nil {
		return nil
	}
	matches := map[symbol]map[uint8]bool{} // most pods share their labels
	for _, in := range [...]Input{Pods, Workloads} {
		for _, w := range sp.objects[in] {
			w := w.(*workload)
			match, seen := matches[w.labels][w.added]
			if !seen {
				if match = w.has(sel.labels); matches[w.labels] == nil {
					matches[w.labels] = map[uint8]bool{}
				}
				matches[w.labels][w.added] = match
			}
			if match && w.usable {
				e := s.endpoint(w)
				e.Port = cmp.Or(w.port(sel.port), sel.target)
				all = append(all, e)
			}
		}
	}
	return all
}

// member returns the endpoint at an address of a slice, without its port.
func (s *State) member(namespace string, v *service, m member) (e endpoints.Endpoint, ok bool) {
	var w workload
	if p := get[workload](s, Pods, Name{namespace, m.pod}); p != nil {
		w = *p
	}
	if m.terminating || w.leaving || !m.ready && !v.publish {
		return e, false
	}
	w.addr, w.node = m.addr, s.nodeOf(namespace, m)
	if w.locality == (symbol{}) {
		w.locality = symbolOf(s.locality(w.node, m.zone))
	}
	return s.endpoint(&w), true
}

// nodeOf returns the Node of an address of a slice.
func (s *State) nodeOf(namespace string, m member) symbol {
	if p := get[workload](s, Pods, Name{namespace, m.pod}); p != nil && m.node == (symbol{}) {
		return p.node
	}
	return m.node
}

// endpoint returns a workload as an endpoint, without its port.
func (s *State) endpoint(w *workload) endpoints.Endpoint {
	return endpoints.Endpoint{
		Addr: w.addr, Host: w.host.String(), Weight: w.weight, Account: w.account.String(), TLS: w.tls, Labels: w.labels.String(),
		Locality: cmp.Or(w.locality.String(), s.locality(w.node, symbol{})), Network: cmp.Or(w.network.String(), s.options.SystemNetwork, s.options.Network),
	}
}

// locality returns the locality of a Node, in a zone unless that is empty. It is empty if the Node is not known.
func (s *State) locality(name, zone symbol) string {
	n := get[node](s, Nodes, Name{Name: name.String()})
	if n == nil {
		return ""
	}
	return localityOf(n.region.String(), cmp.Or(zone, n.zone).String(), n.subzone.String())
}

func compare(a, b endpoints.Endpoint) int {
	return cmp.Or(
		a.Addr.Compare(b.Addr), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Labels, b.Labels), cmp.Compare(a.Locality, b.Locality),
		cmp.Compare(a.Account, b.Account), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Weight, b.Weight),
		cmp.Compare(strconv.FormatBool(a.TLS), strconv.FormatBool(b.TLS)),
	)
}
