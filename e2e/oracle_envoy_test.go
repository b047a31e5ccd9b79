package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	// The messages of all extensions that an istiod may name, so that what is in an Any
	// can be looked into.
	_ "istio.io/istio/pkg/config/xds"
)

const (
	ldsType  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	ecdsType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
)

// envoyConfig is everything that a proxy is sent: by type URL and name.
type envoyConfig map[string]map[string]proto.Message

// fetch connects as the proxy and follows CDS to EDS, and LDS to RDS and ECDS, until it has
// all. The stream ends with it: what it returns is what the istiod has to say now.
func (c *xdsClient) fetch(p proxy) (envoyConfig, error) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	s, err := c.stub.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	f := fetcher{
		stream: s, node: p.node(), have: envoyConfig{},
		last: map[string]*discoveryv3.DiscoveryResponse{}, asked: map[string][]string{},
	}
	if err := f.ask(cdsType, nil); err != nil {
		return nil, err
	}
	for {
		more, err := f.next()
		if err == nil && !more {
			return f.have, nil
		}
		var resp *discoveryv3.DiscoveryResponse
		if err == nil {
			resp, err = s.Recv()
		}
		if err == nil {
			err = f.take(resp)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w; it has %s", p, err, f.have)
		}
	}
}

// String returns how many resources of each type there are.
func (c envoyConfig) String() string {
	var all []string
	for _, typeURL := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("%d %s", len(c[typeURL]), typeURL[strings.LastIndex(typeURL, ".")+1:]))
	}
	return strings.Join(all, ", ")
}

// fetcher is one run of fetch.
type fetcher struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node
	have   envoyConfig
	last   map[string]*discoveryv3.DiscoveryResponse
	asked  map[string][]string // names by type
}

// ask asks for a type, which acknowledges its last response.
func (f *fetcher) ask(typeURL string, names []string) error {
	req := &discoveryv3.DiscoveryRequest{Node: f.node, TypeUrl: typeURL, ResourceNames: names}
	f.node = nil // with the first request only
	if last := f.last[typeURL]; last != nil {
		req.VersionInfo, req.ResponseNonce = last.VersionInfo, last.Nonce
	}
	f.asked[typeURL] = names
	return f.stream.Send(req)
}

// take keeps a response and acknowledges it.
func (f *fetcher) take(resp *discoveryv3.DiscoveryResponse) error {
	held := f.have[resp.TypeUrl]
	if held == nil || resp.TypeUrl == cdsType || resp.TypeUrl == ldsType {
		held = map[string]proto.Message{} // these two are complete, the others what has changed
		f.have[resp.TypeUrl] = held
	}
	for _, r := range resp.Resources {
		m, err := r.UnmarshalNew()
		if err != nil {
			return err
		}
		name := nameOf(m)
		if _, twice := held[name]; twice && resp.TypeUrl == cdsType {
			return fmt.Errorf("the cluster %s comes twice", name)
		}
		held[name] = m
	}
	f.last[resp.TypeUrl] = resp
	return f.ask(resp.TypeUrl, f.asked[resp.TypeUrl])
}

// next asks for what follows from what is held, and returns whether anything is missing.
func (f *fetcher) next() (more bool, err error) {
	if f.have[cdsType] == nil {
		return true, nil
	}
	if f.have[ldsType] == nil {
		if _, asked := f.asked[ldsType]; !asked {
			err = f.ask(ldsType, nil)
		}
		return true, err
	}
	want := map[string][]string{edsType: nil, rdsType: nil, ecdsType: nil}
	for _, m := range f.have[cdsType] {
		if c := m.(*clusterv3.Cluster); c.GetType() == clusterv3.Cluster_EDS {
			want[edsType] = append(want[edsType], assignmentName(c))
		}
	}
	for _, m := range f.have[ldsType] {
		eachMessage(m, func(m proto.Message) {
			switch m := m.(type) {
			case *hcmv3.HttpConnectionManager:
				if name := m.GetRds().GetRouteConfigName(); name != "" {
					want[rdsType] = append(want[rdsType], name)
				}
			case *hcmv3.HttpFilter:
				if m.GetConfigDiscovery() != nil {
					want[ecdsType] = append(want[ecdsType], m.Name)
				}
			}
		})
	}
	for _, typeURL := range []string{edsType, rdsType, ecdsType} {
		names := want[typeURL]
		slices.Sort(names)
		names = slices.Compact(names)
		if !slices.Equal(names, f.asked[typeURL]) {
			if err := f.ask(typeURL, names); err != nil {
				return false, err
			}
		}
		maps.DeleteFunc(f.have[typeURL], func(name string, _ proto.Message) bool {
			_, wanted := slices.BinarySearch(names, name)
			return !wanted
		})
		more = more || len(f.have[typeURL]) < len(names)
	}
	return more, nil
}

func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return m.Name
	case *endpointv3.ClusterLoadAssignment:
		return m.ClusterName
	case *listenerv3.Listener:
		return m.Name
	case *routev3.RouteConfiguration:
		return m.Name
	case *corev3.TypedExtensionConfig:
		return m.Name
	}
	return fmt.Sprintf("a %T", m)
}

// fetchAll fetches what each of the proxies is sent, by the proxy's name.
func (c *xdsClient) fetchAll(proxies []proxy) (map[string]envoyConfig, error) {
	var mu sync.Mutex
	var errs []error
	all := map[string]envoyConfig{}
	var wg sync.WaitGroup
	for _, p := range proxies {
		wg.Go(func() {
			config, err := c.fetch(p)
			mu.Lock()
			defer mu.Unlock()
			all[p.String()] = config
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// eachMessage calls f with m and all messages in it, also those in an Any of a type that is
// linked in.
func eachMessage(m proto.Message, f func(proto.Message)) {
	f(m)
	if a, ok := m.(*anypb.Any); ok {
		if inner, err := a.UnmarshalNew(); err == nil {
			eachMessage(inner, f)
		}
		return
	}
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					eachMessage(v.Message().Interface(), f)
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				eachMessage(v.List().Get(i).Message().Interface(), f)
			}
		default:
			eachMessage(v.Message().Interface(), f)
		}
		return true
	})
}

// namedClusters returns the clusters that routes, mirrors and TCP proxies name.
func namedClusters(config envoyConfig) map[string]bool {
	all := map[string]bool{}
	for _, typeURL := range []string{ldsType, rdsType} {
		for _, m := range config[typeURL] {
			eachMessage(m, func(m proto.Message) {
				switch m := m.(type) {
				case *routev3.RouteAction:
					all[m.GetCluster()] = true
					for _, c := range m.GetWeightedClusters().GetClusters() {
						all[c.Name] = true
					}
				case *routev3.RouteAction_RequestMirrorPolicy:
					all[m.Cluster] = true
				case *tcpproxyv3.TcpProxy:
					all[m.GetCluster()] = true
					for _, c := range m.GetWeightedClusters().GetClusters() {
						all[c.Name] = true
					}
				}
			})
		}
	}
	delete(all, "") // of those that name several
	return all
}
