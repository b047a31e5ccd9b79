package kubernetes

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshrelay/config"
	"meshrelay/federation"
	endpoints "meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
	"meshrelay/upstreams/kubernetes/services"
)

// The kinds of the inputs that Ingresses do not have.
var (
	sliceKind = mirror.Kind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}
	podKind   = mirror.Kind{Kind: "Pod"}
	nodeKind  = mirror.Kind{Kind: "Node"}
	// exportKind is served only where the MCS API is installed, in the version that the server prefers: the names count.
	exportKind = mirror.Kind{Group: "multicluster.x-k8s.io", Kind: "ServiceExport"}

	serviceInputs = map[mirror.Kind]services.Input{
		serviceKind: services.Services, sliceKind: services.Slices, podKind: services.Pods, nodeKind: services.Nodes, ledger.Namespaces: services.Namespaces, federation.WorkloadEntry: services.Workloads,
		exportKind: services.Exports,
	}
)

// inputsOf returns the kinds of the inputs of services; true: they are mirrored as well.
func inputsOf(u config.Upstream) (all map[mirror.Kind]bool) {
	switch u.Services.Mode {
	case config.ServicesGateway:
		all = map[mirror.Kind]bool{serviceKind: false}
	case config.ServicesDiscover:
		all = map[mirror.Kind]bool{serviceKind: false, sliceKind: false, nodeKind: false, ledger.Namespaces: false, federation.WorkloadEntry: true}
		if u.Services.ReadsPods() {
			all[podKind] = false
		}
	}
	if u.Services.Only == config.ServicesExported {
		all[exportKind] = slices.Contains(sectionOf(u).Kinds, exportKind.String())
	}
	return all
}

// isOptional reports whether services have endpoints without the objects of a kind. Where they can not be read when the
// source starts, there are none.
func isOptional(kind mirror.Kind) bool {
	return kind == podKind || kind == nodeKind || kind == ledger.Namespaces || kind == federation.WorkloadEntry
}

// serviceMaker makes ServiceEntries of the Services of a cluster, and brings their endpoints. The ledger's lock guards it.
type serviceMaker struct {
	*derived
	upstream string
	refused  func(records.Result) // logs
	state    *services.State
	known    bool                // all inputs are known
	wanted   map[string]struct{} // the clusters that the intake follows
}

// decodeInput decodes an input of services. Any goroutine may call it.
func decodeInput(kind mirror.Kind, o *object.Object) (object.Input, error) {
	return panics.Value(func() (object.Input, error) { return services.Decode(serviceInputs[kind], o) })
}

// newServiceMaker returns what makes services for an upstream. It is nil if services.mode needs none.
func newServiceMaker(u config.Upstream, o services.Options, feed upstreams.Feed, refused func(records.Result)) *serviceMaker {
	takes := inputsOf(u)
	if takes == nil {
		return nil
	}
	m := &serviceMaker{upstream: u.Name, refused: refused, state: services.New(o)}
	m.derived = newDerived(&endpointFeed{feed, m}, m, takes, federation.ServiceEntry)
	for kind, in := range serviceInputs {
		if _, needed := takes[kind]; !needed {
			m.state.Absent(in)
		}
	}
	return m
}

// Answer implements ledger.Deriver. It is first called when all inputs have answered.
func (m *serviceMaker) Answer() []records.Update {
	for kind := range m.takes {
		if isOptional(kind) && !m.has[kind] {
			m.has[kind] = true
			m.state.Absent(serviceInputs[kind]) // they can not be read
		}
	}
	// One answer of discovery that lacks the kind takes nothing away: what was made before stays until enough do.
	if _, needs := m.takes[exportKind]; needs && !m.has[exportKind] && len(m.feed.Versions(records.DerivedScope(federation.ServiceEntry))) == 0 {
		m.Synced(exportKind)
	}
	return m.derived.Answer()
}

// endpointFeed is the feed of a serviceMaker, and of its ledger, whose lock is held when the intake asks for clusters. It
// answers at once what the intake asks for.
type endpointFeed struct {
	upstreams.Feed
	maker *serviceMaker
}

// Tell implements upstreams.Feed.
func (f *endpointFeed) Tell(e intake.Event) records.Result {
	out := f.Feed.Tell(e)
	for asked := out.Clusters; asked != nil; {
		fresh := f.maker.want(asked)
		if len(fresh) == 0 {
			break
		}
		result := f.Feed.Tell(f.maker.endpoints(fresh))
		f.maker.refused(result)
		asked = result.Clusters
	}
	return out
}

// want notes the clusters that the intake follows. It returns the new ones once their endpoints are known.
func (m *serviceMaker) want(clusters map[string]struct{}) (fresh []string) {
	for c := range clusters {
		if _, is := m.wanted[c]; !is && m.known {
			fresh = append(fresh, c)
		}
	}
	m.wanted = clusters
	m.state.Want(clusters)
	slices.Sort(fresh)
	return fresh
}

// endpoints returns the endpoints of those of some clusters that the intake follows. A cluster of no Service has none.
func (m *serviceMaker) endpoints(clusters []string) intake.Endpoints {
	out := intake.Endpoints{}
	for _, c := range clusters {
		if _, is := m.wanted[c]; is {
			all, _ := m.state.Endpoints(c)
			out[c] = records.Assignment{Endpoints: endpoints.Pack(all), Known: true}
		}
	}
	return out
}

// size implements maker.
func (m *serviceMaker) size(_ mirror.Kind, o *object.Object) int {
	n := object.Entry + 2*len(o.FullName())
	if o.Made.Input != nil {
		n += o.Made.Input.Size()
	}
	return n
}

// decode implements maker. The input was decoded when it was read.
func (m *serviceMaker) decode(_ mirror.Kind, o *object.Object) (set func(), err error) {
	return func() { m.state.Set(o.Made.Input) }, o.Made.InputErr
}

// remove implements maker.
func (m *serviceMaker) remove(kind mirror.Kind, n objectName) {
	m.state.Remove(serviceInputs[kind], services.Name(n))
}

// synced implements maker.
func (m *serviceMaker) synced(kind mirror.Kind) { m.state.Synced(serviceInputs[kind]) }

// flush implements maker. It feeds the endpoints that have changed, before it returns the ServiceEntries that have.
func (m *serviceMaker) flush() []output {
	changes, clusters := m.state.Flush()
	if !m.known && m.ready() { // all that are followed, for the first time
		m.known, clusters = true, slices.Sorted(maps.Keys(m.wanted))
	}
	if told := m.endpoints(clusters); m.known && len(told) > 0 {
		m.refused(m.feed.Tell(told))
	}
	return m.outputs(changes)
}

// detail returns the problems of inputs and endpoints, and the number of all.
func (m *serviceMaker) detail() (named []string, all int) {
	named, all = m.problems()
	of := m.state.Problems()
	return append(of, named...), all + len(of)
}

// all implements maker.
func (m *serviceMaker) all() []output {
	m.flush() // for the endpoints
	return m.outputs(m.state.All())
}

// lost implements maker. A Service that is left out is a resource that is left out, and detail tells of endpoints, which
// change without inputs.
func (m *serviceMaker) lost(func(string)) {}

func (m *serviceMaker) outputs(all []*services.Output) []output {
	out := make([]output, len(all))
	for i, o := range all {
		if out[i] = (output{key: o.Key}); o.Gone() {
			continue
		}
		out[i].digest, out[i].size = o.Digest(), proto.Size(o.Body)
		out[i].make = func() (*mirror.Resource, error) {
			if o.LeftOut != "" {
				return nil, &records.LeftOutError{Reason: records.ClusterLocal, Detail: o.LeftOut}
			}
			return made(mirror.Spec{Key: o.Key, Source: m.upstream, CreateTime: o.Created, Labels: o.Labels, Annotations: o.Annotations}, o.Body)
		}
	}
	return out
}
