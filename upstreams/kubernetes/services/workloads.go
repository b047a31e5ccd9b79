package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"meshrelay/federation"
	endpoints "meshrelay/federation/services"
	"meshrelay/upstreams/kubernetes/object"
)

// slice is an EndpointSlice.
type slice struct {
	service string // its name, empty if the slice is of none
	ports   []port // with the names of those of the Service
	members []member
}

// member is an address of an endpoint.
type member struct {
	addr               netip.Addr
	pod                string // its name, empty for none
	node, zone         symbol
	ready, terminating bool
}

func decodeSlice(o *object.Object) (any, int, error) {
	var spec struct {
		AddressType string
		Endpoints   []struct {
			Addresses      []string
			NodeName, Zone string
			TargetRef      struct{ Kind, Namespace, Name string }
			Conditions     struct{ Ready, Terminating *bool }
		}
		Ports []struct {
			Name string
			Port uint32
		}
	}
	err := decodeField(o.Spec, "the slice", &spec)
	l := &slice{
		service: o.Labels["kubernetes.io/service-name"], ports: make([]port, 0, len(spec.Ports)), members: make([]member, 0, len(spec.Endpoints)),
	}
	if _, imported := o.Labels["multicluster.kubernetes.io/service-name"]; err != nil || imported || spec.AddressType == "FQDN" {
		return &slice{}, 0, err
	}
	for _, p := range spec.Ports {
		l.ports = append(l.ports, port{name: p.Name, number: p.Port})
	}
	for _, e := range spec.Endpoints {
		ready, terminating := e.Conditions.Ready, e.Conditions.Terminating
		m := member{node: symbolOf(e.NodeName), zone: symbolOf(e.Zone), ready: ready == nil || *ready, terminating: terminating != nil && *terminating}
		if e.TargetRef.Kind == "Pod" && e.TargetRef.Namespace == o.Namespace {
			m.pod = e.TargetRef.Name
		}
		for _, a := range e.Addresses {
			if m.addr, err = netip.ParseAddr(a); err == nil {
				l.members = append(l.members, m)
			}
		}
	}
	return l, sizeOf(string(o.Spec)), nil
}

// workload is a pod or a WorkloadEntry.
type workload struct {
	addr netip.Addr // not valid if host is set, or if a WorkloadEntry has only a network
	host symbol     // a DNS name
	// labels are as EncodeLabels returns them. Bit i of added is set if the label i of addedLabels is not its own.
	labels symbol
	added  uint8
	tunnel symbol // the labels of a pod in an ambient mesh that takes HBONE
	ports  symbol // "NAME=NUMBER\n" for each
	node   symbol // of a pod
	// locality and network are those that the workload itself tells.
	locality, network, account symbol
	weight                     uint32
	tls                        bool
	usable                     bool // ready or healthy, with an address
	leaving                    bool // a pod that is being deleted
}

// addedLabels are the labels that a pod may get in addition to its own.
var addedLabels = [...]string{federation.CanonicalNameLabel, federation.CanonicalRevisionLabel, federation.TLSModeLabel}

func decodePod(o *object.Object) (any, int, error) {
	var spec struct {
		NodeName, ServiceAccountName string
		Containers                   []struct {
			Ports []struct {
				Name, Protocol string
				ContainerPort  uint32
			}
		}
	}
	var status struct {
		Phase, PodIP string
		Conditions   []struct{ Type, Status string }
	}
	err := decodeField(o.Spec, "spec", &spec)
	if err = cmp.Or(err, decodeField(o.Status, "status", &status)); err != nil {
		return nil, 0, err
	}
	w := &workload{node: symbolOf(spec.NodeName), account: symbolOf(spec.ServiceAccountName), leaving: o.DeletionTimestamp != nil}
	w.addr, _ = netip.ParseAddr(status.PodIP) // a pod without one is not usable
	for _, c := range status.Conditions {
		w.usable = w.usable || c.Type == "Ready" && c.Status == "True" && status.Phase == "Running" && w.addr.IsValid() && !w.leaving
	}
	ports := ""
	for _, c := range spec.Containers {
		for _, p := range c.Ports {
			if p.Protocol == "" || p.Protocol == "TCP" {
				ports += portText(p.Name, p.ContainerPort)
			}
		}
	}
	of := map[string]string{}
	maps.Copy(of, o.Labels)
	fill := [...]string{cmp.Or(of["app.kubernetes.io/name"], of["app"], workloadName(o)), cmp.Or(of["app.kubernetes.io/version"], of["version"]), "disabled"}
	for i, key := range addedLabels {
		if _, has := of[key]; !has && fill[i] != "" {
			of[key], w.added = fill[i], w.added|1<<i
		}
	}
	size := w.setTexts(of, ports)
	if o.Annotations["ambient.istio.io/redirection"] == "enabled" {
		of["networking.istio.io/tunnel"], of[federation.TLSModeLabel] = "http", "disabled"
		w.tunnel = symbolOf(endpoints.EncodeLabels(of))
		size += perText + len(w.tunnel.String())
	}
	return w, size, nil
}

// workloadName returns the name of the workload of a pod: that of the pod up to a hash or a number.
func workloadName(o *object.Object) string {
	name, _, _ := strings.Cut(o.Name, "-"+cmp.Or(o.Labels["pod-template-hash"], "/")+"-") // no name has a slash
	if _, owned := o.Labels["controller-revision-hash"]; owned {
		name = name[:max(strings.LastIndexByte(name, '-'), 0)]
	}
	return name
}

func decodeEntry(o *object.Object) (any, int, error) {
	var spec struct {
		Address, Network, Locality, ServiceAccount string
		Ports                                      map[string]uint32
		Labels                                     map[string]string
		Weight                                     uint32
	}
	o.SetHealthy() // also for the mirrored one, which may decode although this does not
	err := decodeField(o.Spec, "spec", &spec)
	if err != nil {
		return nil, 0, err
	}
	of := map[string]string{}
	maps.Copy(of, spec.Labels)
	maps.Copy(of, o.Labels)
	w := &workload{network: symbolOf(spec.Network), locality: symbolOf(endpoints.Locality(strings.Split(spec.Locality, "/")...)), account: symbolOf(spec.ServiceAccount), weight: spec.Weight}
	if _, told := of[federation.TLSModeLabel]; !told {
		w.tls = spec.ServiceAccount != ""
	}
	if w.addr, err = netip.ParseAddr(spec.Address); err != nil && !strings.HasPrefix(spec.Address, "unix:") {
		w.host = symbolOf(spec.Address)
	}
	w.usable = (w.addr.IsValid() || w.host != symbol{} || spec.Address == "" && spec.Network != "") && len(spec.Address) <= maxText && !o.IsUnhealthy()
	ports := ""
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		ports += portText(name, spec.Ports[name])
	}
	return w, w.setTexts(of, ports), nil
}

// setTexts sets ports, labels, and what labels tell. It returns about the size of all texts.
func (w *workload) setTexts(labels map[string]string, ports string) (size int) {
	w.labels, w.ports, w.tls = symbolOf(endpoints.EncodeLabels(labels)), symbolOf(ports), w.tls || labels[federation.TLSModeLabel] == "istio"
	w.network = cmp.Or(w.network, symbolOf(labels[federation.NetworkLabel]))
	w.locality = cmp.Or(w.locality, symbolOf(endpoints.Locality(strings.Split(labels[federation.LocalityLabel], ".")...)))
	for _, s := range [...]symbol{w.host, w.labels, w.ports, w.node, w.locality, w.network, w.account} {
		size += perText + len(s.String())
	}
	return size
}

func portText(name string, number uint32) string {
	if name == "" || number == 0 || strings.ContainsAny(name, "=\n") {
		return ""
	}
	return name + "=" + strconv.FormatUint(uint64(number), 10) + "\n"
}

// port returns the first port with a name, and zero if there is none.
func (w *workload) port(name string) uint32 {
	for line := range strings.Lines(w.ports.String()) {
		if key, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); key == name {
			n, _ := strconv.ParseUint(number, 10, 32) // portText has written it
			return uint32(n)
		}
	}
	return 0
}

// has reports whether the own labels of a workload have those of a selector, which is as EncodeLabels returns it.
func (w *workload) has(selector string) bool {
	all := "\n" + w.labels.String()
	for line := range strings.Lines(selector) {
		key, _, _ := strings.Cut(line, "=")
		i := slices.Index(addedLabels[:], key)
		if !strings.Contains(all, "\n"+line) || i >= 0 && w.added&(1<<i) != 0 {
			return false
		}
	}
	return true
}

// node is a Node.
type node struct{ region, zone, subzone symbol }

func decodeNode(o *object.Object) (any, int, error) {
	n := &node{symbolOf(o.Labels[federation.RegionLabel]), symbolOf(o.Labels[federation.ZoneLabel]), symbolOf(o.Labels[federation.SubzoneLabel])}
	return n, 3*perText + len(n.region.String()+n.zone.String()+n.subzone.String()), nil
}

// namespace is a Namespace.
type namespace struct{ distribution string }

func decodeNamespace(o *object.Object) (any, int, error) {
	n := &namespace{o.Annotations[federation.DistributionAnnotation]}
	return n, perText + len(n.distribution), nil
}
