package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typeapi "istio.io/api/type/v1beta1"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/push"
)

type (
	entry     = networking.ServiceEntry
	workload  = networking.WorkloadEntry
	rule      = networking.DestinationRule
	policy    = networking.TrafficPolicy
	endpoints = []*networking.WorkloadEntry
)

// change is a row of the table: what a source changes, for which reason it is pushed, and how many messages each client
// gets that subscribes to ServiceEntries.
type change struct {
	name     string
	old, now *mirror.Resource
	reason   push.Reason // empty: it is not pushed
	messages int
}

// changes returns cases for the rows of the table in docs/changes.md, in their order. The name of a case is that of its
// row, with a detail in parentheses where a row has several.
func changes(t *testing.T) (rows []change) {
	kind := func(group, name string) mirror.Kind {
		return mirror.Kind{Group: group + ".istio.io", Kind: name}
	}
	row := func(name string, old, now *mirror.Resource, reason push.Reason, messages int) {
		rows = append(rows, change{name, old, now, reason, messages})
	}
	of := func(kind mirror.Kind, m proto.Message, edits ...func(*mirror.Spec)) *mirror.Resource {
		t.Helper()
		body, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		s := mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: "shop", Name: "db"}, Source: "east", Cluster: "east", Body: body}
		if kind == mirror.MeshConfig {
			s.Key = mirror.Key{Kind: kind, Name: mirror.MeshConfigName}
		}
		for _, edit := range edits {
			edit(&s)
		}
		r, err := mirror.New(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// service returns a service with an endpoint.
	service := func(edits ...func(*entry)) *mirror.Resource {
		se := &entry{
			Hosts: []string{"db.example"}, Resolution: networking.ServiceEntry_STATIC, Endpoints: endpoints{{Address: "10.0.0.1"}},
			Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		}
		for _, edit := range edits {
			edit(se)
		}
		return of(federation.ServiceEntry, se)
	}
	labelled := func(s *mirror.Spec) { s.Labels = map[string]string{"team": "a"} }
	annotated := func(key string) func(*mirror.Spec) {
		return func(s *mirror.Spec) { s.Annotations = map[string]string{key: "x"} }
	}
	again := func(edit func(*mirror.Spec)) *mirror.Resource {
		s := service().Spec()
		edit(&s)
		return must(mirror.New(s))(t)
	}
	// edit adds a row for a change of the service.
	edit := func(name string, edit func(*entry), reason push.Reason) {
		row(name, service(), service(edit), reason, 1)
	}

	row("ServiceEntry added, deleted (added)", nil, service(), push.ServiceUpdate, 1)
	row("ServiceEntry added, deleted (deleted)", service(), nil, push.ServiceUpdate, 1)
	edit("hosts", func(se *entry) { se.Hosts = append(se.Hosts, "db2.example") }, push.ServiceUpdate)
	edit("ports (another)", func(se *entry) {
		se.Ports = append(se.Ports, &networking.ServicePort{Number: 81, Name: "admin", Protocol: "TCP"})
	}, push.ServiceUpdate)
	edit("ports (number)", func(se *entry) { se.Ports[0].Number = 81 }, push.ServiceUpdate)
	edit("ports (name)", func(se *entry) { se.Ports[0].Name = "web" }, push.ServiceUpdate)
	edit("targetPort", func(se *entry) { se.Ports[0].TargetPort = 8080 }, push.EndpointUpdate)
	edit("resolution", func(se *entry) { se.Resolution = networking.ServiceEntry_DNS }, push.ServiceUpdate)
	edit("location", func(se *entry) { se.Location = networking.ServiceEntry_MESH_INTERNAL }, push.ServiceUpdate)
	edit("exportTo", func(se *entry) { se.ExportTo = []string{"."} }, push.ServiceUpdate)
	row("labels", service(), again(labelled), push.ServiceUpdate, 1)
	row("traffic distribution", service(), again(annotated("networking.istio.io/traffic-distribution")), push.ServiceUpdate, 1)
	edit("subjectAltNames", func(se *entry) { se.SubjectAltNames = []string{"db"} }, push.ServiceUpdate)
	edit("addresses", func(se *entry) { se.Addresses = []string{"10.96.0.1"} }, push.ServiceUpdate)
	edit("workloadSelector", func(se *entry) { se.WorkloadSelector = &networking.WorkloadSelector{} }, push.EndpointUpdate)

	edit("inline endpoints, STATIC", func(se *entry) { se.Endpoints[0].Address = "10.0.0.2" }, push.EndpointUpdate)
	for _, resolution := range []networking.ServiceEntry_Resolution{networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN} {
		named := func(address string) *mirror.Resource {
			return service(func(se *entry) { se.Resolution, se.Endpoints[0].Address = resolution, address })
		}
		row("inline endpoints, DNS or DNS_ROUND_ROBIN ("+resolution.String()+")", named("a.internal"), named("b.internal"), push.ServiceUpdate, 1)
	}

	// A ServiceEntry that selects workloads is served with them where services.mode is discover.
	selecting := func(resolution networking.ServiceEntry_Resolution, address string) *mirror.Resource {
		r := of(federation.ServiceEntry, &entry{
			Hosts: []string{"db.example"}, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Resolution: resolution, WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "db"}},
		})
		one := services.Endpoint{Port: 8080}
		if one.Host = address; resolution == networking.ServiceEntry_STATIC {
			one.Host, one.Addr = "", netip.MustParseAddr(address)
		}
		out, _, err := services.WithEndpoints(r, services.Assignments{80: {one}}, "")
		return must(out, err)(t)
	}
	row("selected workload, STATIC", selecting(networking.ServiceEntry_STATIC, "10.0.0.1"), selecting(networking.ServiceEntry_STATIC, "10.0.0.2"), push.EndpointUpdate, 1)
	row("selected workload, DNS", selecting(networking.ServiceEntry_DNS, "a.internal"), selecting(networking.ServiceEntry_DNS, "b.internal"), push.ServiceUpdate, 1)
	entryOf := func(w *workload, edits ...func(*mirror.Spec)) *mirror.Resource {
		return of(kind("networking", "WorkloadEntry"), w, edits...)
	}
	one := &workload{Address: "10.0.0.1"}
	row("WorkloadEntry (added)", nil, entryOf(one), push.EndpointUpdate, 0)
	row("WorkloadEntry (deleted)", entryOf(one), nil, push.EndpointUpdate, 0)
	row("WorkloadEntry (address)", entryOf(one), entryOf(&workload{Address: "10.0.0.2"}), push.EndpointUpdate, 0)
	row("WorkloadEntry (labels)", entryOf(one), entryOf(one, labelled), push.EndpointUpdate, 0)
	row("serviceAccount of a WorkloadEntry", entryOf(one), entryOf(&workload{Address: "10.0.0.1", ServiceAccount: "db"}), push.ServiceUpdate, 0)

	// What an istiod tells of a Kubernetes service, with its endpoints.
	kubernetes := func() *mirror.Resource {
		return of(federation.ServiceEntry, &entry{
			Hosts: []string{"db.shop.svc.cluster.local"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		}, func(s *mirror.Spec) { s.Name = "synthetic-db" })
	}
	discovered := func(all ...*endpointv3.LbEndpoint) *mirror.Resource {
		found := services.FromAssignment(&endpointv3.ClusterLoadAssignment{Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: all}}})
		out, _, err := services.WithEndpoints(kubernetes(), services.Assignments{80: found}, "")
		return must(out, err)(t)
	}
	pod := func(address string, health corev3.HealthStatus) *endpointv3.LbEndpoint {
		socket := &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080}}
		return &endpointv3.LbEndpoint{HealthStatus: health, HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: socket}}},
		}}
	}
	ready, another := pod("10.0.0.1", corev3.HealthStatus_HEALTHY), pod("10.0.0.2", corev3.HealthStatus_HEALTHY)
	none := must(services.Without(discovered(ready)))(t)
	row("first endpoints of a service", none, discovered(ready), push.EndpointUpdate, 1)
	row("endpoints (another)", discovered(ready), discovered(ready, another), push.EndpointUpdate, 1)
	row("no endpoints any more", discovered(ready), none, push.EndpointUpdate, 1)
	with := func(accounts ...string) *mirror.Resource {
		return service(func(se *entry) {
			for i, account := range accounts {
				se.Endpoints = append(se.Endpoints, &workload{Address: fmt.Sprintf("10.0.0.%d", i+2), ServiceAccount: account})
			}
			se.Endpoints = se.Endpoints[1:]
		})
	}
	row("set of service accounts", with("a"), with("a", "b"), push.ServiceUpdate, 1)
	row("endpoints (with the account of others)", with("a"), with("a", "a"), push.EndpointUpdate, 1)
	row("unhealthy endpoint, or the same again (unhealthy)", discovered(ready), discovered(ready, pod("10.0.0.2", corev3.HealthStatus_UNHEALTHY)), "", 0)
	row("unhealthy endpoint, or the same again (another version)", service(), again(func(s *mirror.Spec) { s.SourceVersion = "8" }), "", 0)
	two := func(addresses ...string) *mirror.Resource {
		return service(func(se *entry) {
			se.Endpoints = nil
			for _, a := range addresses {
				se.Endpoints = append(se.Endpoints, &workload{Address: a})
			}
		})
	}
	row("order or duplicate of endpoints (order)", two("10.0.0.1", "10.0.0.2"), two("10.0.0.2", "10.0.0.1"), push.ConfigUpdate, 1)
	row("order or duplicate of endpoints (duplicate)", two("10.0.0.1", "10.0.0.2"), two("10.0.0.1", "10.0.0.2", "10.0.0.1"), push.ConfigUpdate, 1)
	row("other annotation", service(), again(annotated("kubectl.kubernetes.io/last-applied-configuration")), push.ConfigUpdate, 1)

	ruled := func(p *policy) *mirror.Resource {
		return of(federation.DestinationRule, &rule{Host: "db.example", TrafficPolicy: p})
	}
	balanced := func(lb *networking.LoadBalancerSettings) *mirror.Resource { return ruled(&policy{LoadBalancer: lb}) }
	subset := func(version string) *mirror.Resource {
		return of(federation.DestinationRule, &rule{Host: "db.example", Subsets: []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": version}}}})
	}
	sticky := &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{
		HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: "x-user"},
	}}}
	row("DestinationRule (added)", nil, ruled(nil), push.ConfigUpdate, 0)
	row("DestinationRule: policy", ruled(&policy{}), ruled(&policy{Tls: &networking.ClientTLSSettings{Sni: "db"}}), push.ConfigUpdate, 0)
	row("DestinationRule: labels of a subset", subset("1"), subset("2"), push.ConfigUpdate, 0)
	row("DestinationRule: locality", balanced(&networking.LoadBalancerSettings{}), balanced(&networking.LoadBalancerSettings{
		LocalityLbSetting: &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)},
	}), push.ConfigUpdate, 0)
	row("DestinationRule: consistentHash", balanced(&networking.LoadBalancerSettings{}), balanced(sticky), push.ConfigUpdate, 0)
	row("DestinationRule: exportTo", ruled(nil), of(federation.DestinationRule, &rule{Host: "db.example", ExportTo: []string{"."}}), push.ConfigUpdate, 0)
	routed := func(subset string) *mirror.Resource {
		return of(federation.VirtualService, &networking.VirtualService{Hosts: []string{"db.example"}, Http: []*networking.HTTPRoute{
			{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "db.example", Subset: subset}}}},
		}})
	}
	row("VirtualService", routed("v1"), routed("v2"), push.ConfigUpdate, 0)
	sidecar := func(host string) *mirror.Resource {
		return of(kind("networking", "Sidecar"), &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{host}}}})
	}
	row("Sidecar", sidecar("*/*"), sidecar("./*"), push.ConfigUpdate, 0)
	selector := &typeapi.WorkloadSelector{MatchLabels: map[string]string{"app": "db"}}
	row("PeerAuthentication, AuthorizationPolicy (the first)", nil, of(kind("security", "PeerAuthentication"), &security.PeerAuthentication{Selector: selector}), push.ConfigUpdate, 0)
	row("PeerAuthentication, AuthorizationPolicy (the second)", nil, of(kind("security", "AuthorizationPolicy"), &security.AuthorizationPolicy{Selector: selector}), push.ConfigUpdate, 0)
	row("MeshConfig", of(mirror.MeshConfig, &mesh.MeshConfig{TrustDomain: "a"}), of(mirror.MeshConfig, &mesh.MeshConfig{TrustDomain: "b"}), push.ConfigUpdate, 0)
	gateways := func(addresses ...string) *mirror.Resource {
		return must(services.WithGateways(kubernetes(), services.Gateways{Addresses: addresses}))(t)
	}
	row("network gateway", gateways("192.0.2.1"), gateways("192.0.2.1", "192.0.2.2"), push.EndpointUpdate, 1)
	row("expired source", service(), nil, push.ServiceUpdate, 1)
	row("rollback", service(func(se *entry) { se.Ports[0].Name = "web" }), service(), push.ServiceUpdate, 1)
	return rows
}

func must(r *mirror.Resource, err error) func(*testing.T) *mirror.Resource {
	return func(t *testing.T) *mirror.Resource {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// pushing is a relay whose only upstream is a store of the test.
type pushing struct {
	t       *testing.T
	relay   *Relay
	store   *mirror.Store
	address string
	reasons atomic.Pointer[map[push.Reason]int] // of the pushes since it was last set to nil
}

func startPushing(t *testing.T) *pushing {
	p := &pushing{t: t, store: mirror.NewStore()}
	dir := t.TempDir()
	text := fmt.Sprintf("downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nupstreams:\n- {name: east, file: {path: %q}}\n", dir)
	cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(text), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	if p.relay, err = New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar),
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{p.relay.server.Run, p.relay.aggregate.Run, p.relay.manager.Run, func(ctx context.Context) error {
		return p.relay.pusher.Run(ctx, func(req *push.Request) {
			seen := maps.Clone(req.Reason)
			if before := p.reasons.Load(); before != nil {
				for why, n := range *before {
					seen[why] += n
				}
			}
			p.reasons.Store(&seen)
			p.relay.server.Push(req)
		})
	}} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	await.Closed(t, "the first sync", p.relay.server.Released())
	p.relay.aggregate.SetSources([]mirror.Source{{Name: "east", Store: p.store}})
	addrs, err := p.relay.server.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.address = addrs[0].String()
	return p
}

// put puts a content of a key, or removes the key, and returns the reasons of what was pushed.
func (p *pushing) put(key mirror.Key, r *mirror.Resource) map[push.Reason]int {
	p.t.Helper()
	ctx := await.Context(p.t)
	p.reasons.Store(nil)
	if r == nil {
		p.store.Remove(key)
	} else {
		p.store.Put(r)
	}
	if err := cmp.Or(p.relay.aggregate.CaughtUp(ctx), p.relay.pusher.Flushed(ctx)); err != nil {
		p.t.Fatal(err)
	}
	if seen := p.reasons.Load(); seen != nil {
		return *seen
	}
	return nil
}

// acknowledged waits until all clients have acknowledged what was pushed. What is pushed before that may come with what
// is pushed next.
func (p *pushing) acknowledged() {
	p.t.Helper()
	_, over := p.relay.server.Round(p.relay.server.NewestRound())
	if over != nil { // else they have
		await.Closed(p.t, "all clients acknowledge", over)
	}
}

// entry returns a ServiceEntry.
func (p *pushing) entry(host string) *mirror.Resource {
	p.t.Helper()
	body, err := anypb.New(&entry{Hosts: []string{host}})
	if err != nil {
		p.t.Fatal(err)
	}
	return must(mirror.New(mirror.Spec{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "other"}, Source: "east", Body: body}))(p.t)
}

// reader is a client that acknowledges all that it is sent.
type reader struct {
	mu       sync.Mutex
	messages [][]string // the names of their resources
}

func read(s *subscriber) *reader {
	r := &reader{}
	go func() { // until the stream ends
		for {
			resp, err := s.stream.Recv()
			if err != nil {
				return
			}
			names := slices.Clone(resp.RemovedResources)
			for _, one := range resp.Resources {
				names = append(names, one.Name)
			}
			r.mu.Lock()
			r.messages = append(r.messages, names)
			r.mu.Unlock()
			if s.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce}) != nil {
				return
			}
		}
	}()
	return r
}

// take returns the messages since the last call.
func (r *reader) take() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.messages
	r.messages = nil
	return taken
}

// TestTheTableOfChangesIsThatOfTheDocuments: each row has a case, and tells what the case expects.
func TestTheTableOfChangesIsThatOfTheDocuments(t *testing.T) {
	page, err := os.ReadFile("../docs/changes.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (.+?) \| .+? \| (\w+) \| (\d) \|$`).FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = strings.Join(m[2:], " ")
	}
	found := map[string]bool{}
	for _, c := range changes(t) {
		row, _, _ := strings.Cut(c.name, " (")
		found[row] = true
		if want := fmt.Sprintf("%s %d", cmp.Or(c.reason, "none"), c.messages); rows[row] != want {
			t.Errorf("the row %q has %q, want %q", row, rows[row], want)
		}
	}
	if len(found) != len(rows) {
		t.Errorf("%d rows have a case, of %d", len(found), len(rows))
	}
}

// TestEachChangeHasItsReasonAndCostsAClientItsOwnResourceAtMost goes through the table in docs/changes.md.
func TestEachChangeHasItsReasonAndCostsAClientItsOwnResourceAtMost(t *testing.T) {
	p := startPushing(t)
	other := p.entry("other.example")
	p.put(other.Key(), other)
	readers := []*reader{read(subscribe(t, p.address, "istiod-1", 1)), read(subscribe(t, p.address, "istiod-2", 1))}
	for _, c := range changes(t) {
		t.Run(c.name, func(t *testing.T) {
			key := cmp.Or(c.now, c.old).Key()
			step := func(r *mirror.Resource) (map[push.Reason]int, [][]string) {
				why := p.put(key, r)
				p.acknowledged()
				first := readers[0].take()
				if got := readers[1].take(); !slices.EqualFunc(got, first, slices.Equal) {
					t.Errorf("one client gets %v, another one %v", first, got)
				}
				return why, first
			}
			step(c.old)
			why, got := step(c.now)
			want := map[push.Reason]int{}
			if c.reason != "" {
				want[c.reason] = 1
			}
			if !maps.Equal(why, want) {
				t.Errorf("pushed for %v, want %v", why, want)
			}
			if wanted := slices.Repeat([][]string{{key.FullName()}}, c.messages); !slices.EqualFunc(got, wanted, slices.Equal) {
				t.Errorf("the messages have %v, want %v", got, wanted)
			}
			step(nil)
		})
	}
}
