package upstreams_test

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
)

// service is what an istiod makes of a Kubernetes service with one port.
func service(name, host string) fakexds.Resource {
	return fakexds.MCP("shop/synthetic-"+name, &networking.ServiceEntry{
		Hosts: []string{host}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	})
}

func discovers(u *config.Upstream) {
	u.Services = config.Services{Mode: config.ServicesDiscover, Network: "here"}
}

// endpoints returns what the store has of a ServiceEntry: "address:port@network …", or a
// dash when it has none of that name.
func (r *xdsRun) endpoints(name string) string {
	res := r.store.Get(mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: name})
	if res == nil {
		return "-"
	}
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(res.Body().GetValue(), se); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range se.Endpoints {
		out = append(out, fmt.Sprintf("%s:%d@%s", e.Address, e.Ports["http"], e.Network))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *xdsRun) awaitEndpoints(name, want string) {
	r.t.Helper()
	r.await("endpoints of "+name+" "+want, func() bool { return r.endpoints(name) == want })
}

const webCluster, dbCluster = "outbound|80||web.example", "outbound|80||db.example"

func TestDiscoveredEndpointsAreFoldedIntoTheirServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryAlpha, service("web", "web.example"), service("db", "db.example"), xdsEntry("shop/other", "other.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"), edsOf(dbCluster))
		r := runXDS(t, discovers, s)
		r.await("the source has synced", func() bool { return r.x.Status().Synced })
		if got := r.endpoints("synthetic-web"); got != "10.0.0.1:8080@here" {
			t.Errorf("web has %q when the source has synced", got)
		}
		if got, n := r.endpoints("synthetic-db"), r.x.Status().LeftOut["endpoints"]; got != "" || n != 0 {
			t.Errorf("a service without endpoints has %q, %d left out", got, n)
		}
		if got := r.endpoints("other"); got == "-" {
			t.Error("a ServiceEntry that is no service is left out")
		}

		// An endpoint comes, the first of a service too, and goes.
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1", "10.0.0.2"), edsOf(dbCluster, "10.0.0.9"))
		s.PushNames(edsTypeURL, webCluster, dbCluster)
		r.awaitEndpoints("synthetic-web", "10.0.0.1:8080@here 10.0.0.2:8080@here")
		r.awaitEndpoints("synthetic-db", "10.0.0.9:8080@here")
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.2"), edsOf(dbCluster))
		s.PushNames(edsTypeURL, webCluster, dbCluster)
		r.awaitEndpoints("synthetic-web", "10.0.0.2:8080@here")
		r.awaitEndpoints("synthetic-db", "")

		// A service goes, and is not asked for any more; another comes.
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.2"), edsOf("outbound|80||new.example", "10.0.0.5"))
		s.Set(xdsEntryAlpha, service("db", "db.example"), service("new", "new.example"))
		s.Push(xdsEntryAlpha)
		r.awaitEndpoints("synthetic-new", "10.0.0.5:8080@here")
		r.awaitEndpoints("synthetic-web", "-")
		r.await("web is not asked for", func() bool { return !s.Asked(edsTypeURL, webCluster) })
		if n := r.x.Status().NACKs; n != 0 {
			t.Errorf("%d responses were rejected: %+v", n, r.x.Status().Refused)
		}
	})
}

// TestAChangedServiceKeepsItsEndpointsUntilTheNewAreKnown: make before break.
func TestAChangedServiceKeepsItsEndpointsUntilTheNewAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryAlpha, service("web", "web.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"), edsOf("outbound|80||web2.example", "10.0.0.2"))
		r := runXDS(t, discovers, s)
		r.awaitEndpoints("synthetic-web", "10.0.0.1:8080@here")
		var seen []string
		key := mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: "synthetic-web"}
		s.Withhold(edsTypeURL, true)
		s.Set(xdsEntryAlpha, service("web", "web2.example"))
		s.Push(xdsEntryAlpha)
		r.await("the new host is asked for", func() bool {
			if r.store.Get(key) == nil {
				seen = append(seen, "gone")
			}
			return s.Asked(edsTypeURL, "outbound|80||web2.example")
		})
		s.Withhold(edsTypeURL, false)
		s.PushNames(edsTypeURL, "outbound|80||web2.example")
		r.await("the new endpoints are there", func() bool {
			res := r.store.Get(key)
			if res == nil {
				seen = append(seen, "gone")
			}
			return res != nil && r.endpoints("synthetic-web") == "10.0.0.2:8080@here"
		})
		if len(seen) > 0 {
			t.Error("the service was gone in between")
		}
	})
}

// TestSourceHasSyncedOnceItsEndpointsAreKnown_C21
func TestSourceHasSyncedOnceItsEndpointsAreKnown_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryAlpha, service("web", "web.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"))
		s.Withhold(edsTypeURL, true)
		r := runXDS(t, discovers, s)
		r.await("the endpoints are asked for, and all types were answered", func() bool {
			return s.Asked(edsTypeURL, webCluster) && len(r.x.Status().Pending) == 0
		})
		if st := r.x.Status(); st.Synced || st.Endpoints.Awaited != 1 {
			t.Errorf("synced %v with %+v", st.Synced, st.Endpoints)
		}
		s.PushNames(edsTypeURL, webCluster)
		r.await("the source has synced", func() bool { return r.x.Status().Synced })
	})
}

// TestServicesThatAreOnDiskAreFollowedAfterARestart: also those that the server has nothing new of.
func TestServicesThatAreOnDiskAreFollowedAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryURL, service("web", "web.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"))
		u := xdsUpstream("east", s)
		discovers(&u)
		r := runManager(t, nil, u)
		endpoints := func(r *managed) string {
			return (&xdsRun{t: t, store: r.m.Upstreams()[0].Store()}).endpoints("synthetic-web")
		}
		r.await("its endpoints are known", func() bool { return endpoints(r) == "10.0.0.1:8080@here" })
		_, meta := r.m.Upstreams()[0].TakeChanges()
		saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: meta.Fingerprint}, Records: (&xdsSource{u: r.m.Upstreams()[0]}).kept()}
		again := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"east": saved}}, u)
		again.await("it has synced again", func() bool { return again.m.Status()[0].Synced })
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.2"))
		s.PushNames(edsTypeURL, webCluster)
		again.await("its endpoints are followed", func() bool { return endpoints(again) == "10.0.0.2:8080@here" })
	})
}

// TestABadUpdateOfAServiceLeavesItsEndpointsFollowed: the last good content keeps its endpoints up
// to date.
func TestABadUpdateOfAServiceLeavesItsEndpointsFollowed_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryAlpha, service("web", "web.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"))
		r := runXDS(t, discovers, s)
		r.awaitEndpoints("synthetic-web", "10.0.0.1:8080@here")
		s.Set(xdsEntryAlpha, fakexds.MCP("shop/synthetic-web", &networking.ServiceEntry{
			Hosts: []string{"web.example"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}, ExportTo: []string{"no namespace"},
		}))
		s.Push(xdsEntryAlpha)
		r.await("the update is refused", func() bool { return r.x.Status().RefusedTotal == 1 })
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.2"))
		s.PushNames(edsTypeURL, webCluster)
		r.awaitEndpoints("synthetic-web", "10.0.0.2:8080@here")
	})
}

// TestServicesByGateway: what can not pass a gateway is left out, and is nobody's mistake.
func TestServicesByGateway(t *testing.T) {
	s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) {
		u.Services = config.Services{Mode: config.ServicesGateway, Gateways: []string{"192.0.2.1"}, Network: "east"}
	})
	udp := fakexds.MCP("shop/synthetic-dns", &networking.ServiceEntry{
		Hosts: []string{"dns.example"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 53, Name: "dns", Protocol: "UDP"}},
	})
	s.ok(s.sotw(xdsEntryURL, service("web", "web.example"), udp))
	r := &xdsRun{t: t, store: s.store}
	if got := r.endpoints("synthetic-web"); got != "192.0.2.1:15443@east" {
		t.Errorf("web has %q", got)
	}
	st := s.x.Status()
	if st.LeftOut["endpoints"] != 1 || st.NACKs != 0 || st.RefusedTotal != 0 {
		t.Errorf("%+v", st)
	}
	for _, tr := range s.x.Trace(mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: "synthetic-dns"}) {
		if tr.Reason != "endpoints" || tr.Detail == "" || tr.From == nil {
			t.Errorf("%+v", tr)
		}
	}
}

const edsTypeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// assignmentOf is a cluster with endpoints at addresses.
func assignmentOf(cluster string, addresses ...string) *endpointv3.ClusterLoadAssignment {
	l := &endpointv3.LocalityLbEndpoints{}
	for _, a := range addresses {
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: a, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080}},
			}}}},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"a": {}, "b": {}, "c": {}, "d": {}}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
}

func edsOf(cluster string, addresses ...string) fakexds.Resource {
	return fakexds.Bare(cluster, assignmentOf(cluster, addresses...))
}
