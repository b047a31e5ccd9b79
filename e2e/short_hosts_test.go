package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/istio/pilot/pkg/model"
	istioconfig "istio.io/istio/pkg/config"
)

const rdsType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

// routes returns a route configuration of a proxy.
func (c *xdsClient) routes(p proxy, name string) (*routev3.RouteConfiguration, error) {
	s, err := c.stub.StreamAggregatedResources(c.ctx)
	if err != nil {
		return nil, err
	}
	defer s.CloseSend() //nolint:errcheck // the stream has been read
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: p.node(), TypeUrl: rdsType, ResourceNames: []string{name}}); err != nil {
		return nil, err
	}
	resp, err := s.Recv()
	if err != nil {
		return nil, err
	}
	if len(resp.Resources) != 1 {
		return nil, fmt.Errorf("%d route configurations, want one of the name %s", len(resp.Resources), name)
	}
	r := &routev3.RouteConfiguration{}
	return r, resp.Resources[0].UnmarshalTo(r)
}

// routedTo returns the clusters that a route configuration leads to, those of mirrored
// requests included, in order.
func routedTo(r *routev3.RouteConfiguration) []string {
	var names []string
	for _, vh := range r.VirtualHosts {
		for _, route := range vh.Routes {
			action := route.GetRoute()
			if name := action.GetCluster(); name != "" {
				names = append(names, name)
			}
			for _, w := range action.GetWeightedClusters().GetClusters() {
				names = append(names, w.Name)
			}
			for _, m := range action.GetRequestMirrorPolicies() {
				names = append(names, m.Cluster)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// faulty returns how many routes delay or abort requests.
func faulty(r *routev3.RouteConfiguration) (n int) {
	for _, vh := range r.VirtualHosts {
		for _, route := range vh.Routes {
			if route.TypedPerFilterConfig["envoy.filters.http.fault"] != nil {
				n++
			}
		}
	}
	return n
}

// TestShortHostsReachAnIstiodWithItsDomain_C23 gives bookinfo's configs to an istiod that
// reads the files itself, and to others through relays. An istiod gives what it receives
// over MCP no domain: what leaves a relay with a short host leads to a cluster that nobody
// has.
func TestShortHostsReachAnIstiodWithItsDomain_C23(t *testing.T) {
	t.Parallel()
	files, err := filepath.Abs("testdata/short-hosts")
	if err != nil {
		t.Fatal(err)
	}
	bookinfo, err := os.ReadFile(filepath.Join(files, "bookinfo.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	direct := newIstiod(t, "direct")
	writeFile(t, filepath.Join(direct.configDir, "bookinfo.yaml"), string(bookinfo))
	direct.start()

	hub := newRelay(t, "hub", []string{"files=" + files}).start().ready()
	edge := newRelay(t, "edge", []string{"hub=" + hub.xds}).start().ready()
	keep := newRelayOf(t, "keep", fmt.Sprintf("upstreams:\n- name: files\n  file: {path: %s}\n  rewrite: {shortHosts: keep}\n", files)).start().ready()
	one, two := newIstiod(t, "one", hub.xds).start(), newIstiod(t, "two", edge.xds).start()
	without := newIstiod(t, "without", keep.xds).start()

	sidecar := proxy{namespace: "shop"}
	gateway := proxy{kind: "router", namespace: "shop", labels: map[string]string{"istio": "ingressgateway"}}
	const sidecarRoutes, gatewayRoutes = "9080", "http.8080"
	// ask returns the routes of a proxy, and which of the clusters in them there are not.
	ask := func(i *istiod, p proxy, name string) (r *routev3.RouteConfiguration, missing []string) {
		t.Helper()
		i.ready()
		c := dial(t, i.grpc)
		r, err := c.routes(p, name)
		if err != nil {
			t.Fatalf("the routes of the istiod %s: %v", i.name, err)
		}
		e := c.envoy(p)
		e.wait("clusters from the istiod "+i.name, func() error {
			if e.responses(cdsType) == 0 {
				return fmt.Errorf("none came")
			}
			return nil
		})
		for _, name := range routedTo(r) {
			if _, there := slices.BinarySearch(e.clusters(), name); !there {
				missing = append(missing, name)
			}
		}
		return r, missing
	}

	for _, tc := range []struct {
		name, routes string
		proxy        proxy
		to           []string
		faults       int
	}{
		{"gateway", gatewayRoutes, gateway, []string{"outbound|9080||productpage.shop.svc.cluster.local"}, 0},
		{"sidecar", sidecarRoutes, sidecar, []string{
			"outbound|9080|v1|ratings.shop.svc.cluster.local", "outbound|9080|v1|reviews.shop.svc.cluster.local",
			"outbound|9080|v3|reviews.shop.svc.cluster.local", "outbound|9080||productpage.shop.svc.cluster.local",
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, _ := ask(direct, tc.proxy, tc.routes)
			for _, i := range []*istiod{direct, one, two} {
				got, missing := ask(i, tc.proxy, tc.routes)
				var to []string
				for _, name := range routedTo(got) {
					if strings.HasPrefix(name, "outbound|") {
						to = append(to, name)
					}
				}
				if !slices.Equal(to, tc.to) || faulty(got) != tc.faults {
					t.Errorf("istiod %s: routes to %q with %d faults, want %q with %d", i.name, to, faulty(got), tc.to, tc.faults)
				}
				if len(missing) > 0 {
					t.Errorf("istiod %s: routes lead to clusters that there are not: %q", i.name, missing)
				}
				if !proto.Equal(got, want) {
					t.Errorf("istiod %s has other routes than one that reads the files:\n%v\nwant\n%v", i.name, got, want)
				}
			}
		})
	}

	// Kept short hosts: the gateway answers 503, subsets and faults have no effect.
	t.Run("keep", func(t *testing.T) {
		if _, missing := ask(without, gateway, gatewayRoutes); !slices.Equal(missing, []string{"outbound|9080||productpage.shop"}) {
			t.Errorf("clusters that there are not: %q", missing)
		}
		got, _ := ask(without, sidecar, sidecarRoutes)
		for _, vh := range got.VirtualHosts {
			if strings.HasPrefix(vh.Name, "ratings.shop.svc.cluster.local:") && len(vh.Routes) != 1 {
				t.Errorf("ratings has the routes %v: want the one that it has without a VirtualService", vh.Routes)
			}
		}
		for _, name := range routedTo(got) {
			if strings.HasSuffix(name, ".svc.cluster.local") && !strings.Contains(name, "||") {
				t.Errorf("there is a route to the subset %s", name)
			}
		}
	})
}

// TestShortHostsAreThoseThatIstiodCompletes_C23 asks istiod's own code what it completes.
func TestShortHostsAreThoseThatIstiodCompletes_C23(t *testing.T) {
	t.Parallel()
	hosts := []string{
		"reviews", "reviews-v1", "REVIEWS", "localhost", "1", "10", "*-canary", "*", "reviews.", "reviews.shop", "reviews.shop.svc",
		"reviews.shop.svc.cluster.local", "*.shop.svc.cluster.local", "*.corp", "10.0.0.1", "::1", "2001:db8::1", "::ffff:10.0.0.1", "fe80::1%eth0", "a:80", "[::1]", "a/b", "a b", "",
	}
	const namespace, domain = "shop", "east.corp"
	var rules strings.Builder
	for i, h := range hosts {
		fmt.Fprintf(&rules, "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: rule-%d, namespace: %s}\nspec: {host: %q}\n", i, namespace, h)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, rules.String())
	r := newRelayOf(t, "hub", fmt.Sprintf("upstreams:\n- name: files\n  domainSuffix: %s\n  file: {path: %s}\n", domain, file)).start().ready()
	served, err := dial(t, r.xds).list("networking.istio.io/v1/DestinationRule")
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range hosts {
		rule := &networking.DestinationRule{}
		resource := served[fmt.Sprintf("%s/rule-%d", namespace, i)]
		if resource == nil {
			t.Errorf("the rule for %q is not served", h)
			continue
		}
		if err := resource.Body.UnmarshalTo(rule); err != nil {
			t.Fatal(err)
		}
		if want := string(model.ResolveShortnameToFQDN(h, istioconfig.Meta{Namespace: namespace, Domain: domain})); rule.Host != want {
			t.Errorf("%q is served as %q, istiod makes it %q", h, rule.Host, want)
		}
	}
}
