package xds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// orders is a service as Nacos has them, and the name that its ServiceEntry has there.
var orders = fakexds.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: "consumers:cn.example.OrderService::", Kind: "nacos"}

const (
	nacosOrders   = "public/consumers:cn.example.OrderService::.DEFAULT-GROUP.public"
	higressOrders = "mcp/consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos"
)

func at(ip string, change ...func(*fakexds.Instance)) fakexds.Instance {
	i := fakexds.Instance{IP: ip, Port: 8080, Weight: 1}
	for _, f := range change {
		f(&i)
	}
	return i
}

func unhealthy(i *fakexds.Instance) { i.Unhealthy = true }

// registryPlace is a place without a server.
func registryPlace(t *testing.T) *place {
	p := &place{t: t, disk: disk{records: map[mirror.Key]state.Record{}}}
	p.lis.Store(bufconn.Listen(1 << 20))
	t.Cleanup(func() { p.halt() })
	return p
}

// nacos starts a Nacos with one service.
func (p *place) nacos(n *fakexds.Nacos) *fakexds.Nacos {
	n.Start(p.t, p.lis.Load())
	n.Put(orders, at("10.1.0.1"))
	return n
}

// higress starts a Higress with some ServiceEntries.
func (p *place) higress(entries ...fakexds.Resource) *fakexds.Server {
	s := fakexds.Start(p.t, &fakexds.Server{Listener: p.lis.Load()})
	s.Offer(fakexds.HigressTypes...)
	s.Set(entryURL, entries...)
	return s
}

// served returns the ServiceEntries that the relay has, by full name. It looks once all is quiet.
func (p *place) served() map[string]*mirror.Resource {
	p.t.Helper()
	p.after(time.Second)
	if err := p.disk.Flush(context.Background()); err != nil {
		p.t.Fatal(err)
	}
	out := map[string]*mirror.Resource{}
	for key, r := range p.disk.records {
		if key.Kind.Kind == "ServiceEntry" {
			out[key.Namespace+"/"+key.Name] = r.Resource
		}
	}
	return out
}

// wantsServed demands ServiceEntries: "name host:port ADDRESS*WEIGHT…".
func (p *place) wantsServed(want ...string) {
	p.t.Helper()
	var got []string
	for name, r := range p.served() {
		se := specOf(p.t, r)
		line := fmt.Sprintf("%s %s:%d", name, se.Hosts[0], se.Ports[0].Number)
		for _, e := range se.Endpoints {
			line += fmt.Sprintf(" %s*%d", e.Address, e.Weight)
		}
		got = append(got, line)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		p.t.Fatalf("served are %q, want %q", got, want)
	}
}

func specOf(t *testing.T, r *mirror.Resource) *networking.ServiceEntry {
	t.Helper()
	se := &networking.ServiceEntry{}
	if err := r.Body().UnmarshalTo(se); err != nil {
		t.Fatal(err)
	}
	return se
}

// synced waits until a server without MeshConfig has told that it is no relay, which takes 10 s, and
// 15 s more.
func (p *place) synced() upstreams.Status {
	p.t.Helper()
	st := p.after(25 * time.Second)
	if !st.Synced {
		p.t.Fatalf("not synced: %+v", st)
	}
	return st
}

// resyncing asks for everything again before Nacos ends the stream for its pings.
func resyncing(u *config.Upstream) {
	u.Source.(*Config).ResyncInterval = config.Duration(40 * time.Second)
}

// TestNacosIsSyncedWithoutMeshConfig_C21: Nacos never answers it, and answers other types with an
// empty list.
func TestNacosIsSyncedWithoutMeshConfig_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		p.nacos(&fakexds.Nacos{})
		p.begin(nil)
		if st := p.synced(); !slices.Equal(st.NotOffered, []string{meshURL}) || st.Protocol != "sotw" {
			t.Errorf("%s; not offered are %q", st.Protocol, st.NotOffered)
		}
	})
}

// TestNamesOfNacosAreServedAsTheyCome: with upper case, dots and colons, and so are hosts.
func TestNamesOfNacosAreServedAsTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		p.nacos(&fakexds.Nacos{})
		p.begin(nil)
		p.synced()
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*1")
		m := p.served()[nacosOrders].Metadata()
		if m.Labels["registryType"] != "nacos" || m.Annotations["virtual"] != "1" || m.CreateTime.IsZero() {
			t.Errorf("metadata %+v", m)
		}
	})
}

// TestAWeightOfNacosArrivesUnderTheOldVersion_C5: the version is that of the service, which weights
// and metadata do not change.
func TestAWeightOfNacosArrivesUnderTheOldVersion_C5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(nil)
		p.synced()
		before := p.served()[nacosOrders]
		long := strings.Repeat("x", 64) // more than Kubernetes lets a label have
		n.Put(orders, at("10.1.0.1", func(i *fakexds.Instance) { i.Weight, i.Metadata = 7, map[string]string{"version": long} }))
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*7")
		now := p.served()[nacosOrders]
		if now.SourceVersion() != before.SourceVersion() || now.Version() == before.Version() {
			t.Errorf("version there %q and %q, here %q and %q", before.SourceVersion(), now.SourceVersion(), before.Version(), now.Version())
		}
		if label := specOf(t, now).Endpoints[0].Labels["version"]; label != long {
			t.Errorf("the label is %q", label)
		}
		if nacks := n.NACKs(); len(nacks) > 0 {
			t.Errorf("NACKs %q", nacks)
		}
	})
}

// TestWhatNacosDoesNotPushArrivesWithTheResync_C4 (alibaba/nacos#8742).
func TestWhatNacosDoesNotPushArrivesWithTheResync_C4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{Quiet: true})
		p.begin(resyncing)
		p.synced()
		n.Put(orders, at("10.1.0.1", func(i *fakexds.Instance) { i.Weight = 7 }))
		if st := p.after(50 * time.Second); st.Reconnects > 0 {
			t.Errorf("%d further streams", st.Reconnects)
		}
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*7")
	})
}

// TestAnswersOfNacosInAnotherOrderAreNoChange: each push brings all services, in any order, under
// another version_info.
func TestAnswersOfNacosInAnotherOrderAreNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		for i := range 20 {
			n.Put(fakexds.Service{Namespace: "public", Group: "g", Name: fmt.Sprint("s", i)}, at("10.1.1.1"))
		}
		p.begin(nil)
		p.synced()
		before := p.served()
		if len(before) != 21 {
			t.Fatalf("%d ServiceEntries", len(before))
		}
		for range 10 {
			n.Put(orders, at("10.1.0.1"))
		}
		if now := p.served(); !maps.Equal(now, before) {
			t.Error("repeated resources are others")
		}
		if changes, _ := p.disk.source.TakeChanges(); len(changes) > 0 {
			t.Errorf("%d changes", len(changes))
		}
	})
}

// TestAServiceOfNacosWithoutHealthyInstances has a port with number 0 and no endpoints while it has
// instances, and is gone without.
func TestAServiceOfNacosWithoutHealthyInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		other := fakexds.Service{Namespace: "public", Group: "shop", Name: "Cards"}
		n.Put(other, at("10.1.0.9"))
		p.begin(nil)
		p.synced()
		const cards = "public/Cards.shop.public Cards.shop.public.nacos:8080 10.1.0.9*1"
		n.Put(orders, at("10.1.0.1", unhealthy), at("10.1.0.2", func(i *fakexds.Instance) { i.Disabled = true }))
		p.wantsServed(cards, nacosOrders+" consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:0")
		n.Put(orders, at("10.1.0.1"), at("10.1.0.2", unhealthy))
		p.wantsServed(cards, nacosOrders+" consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*1")
		n.Put(orders)
		p.wantsServed(cards)
	})
}

// TestARegistryOfNacosKeepsItsPortsAndNoEndpoints, with guard.profile, when its instances are unhealthy and
// when they are gone.
func TestARegistryOfNacosKeepsItsPortsAndNoEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(func(u *config.Upstream) {
			resyncing(u)
			u.Guard = config.Guard{Percent: 30, Count: 10, Profile: config.ProfileRegistry}
		})
		p.synced()
		const empty = nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080"
		n.Put(orders, at("10.1.0.1", unhealthy))
		p.wantsServed(empty)
		n.Put(orders)
		p.wantsServed(empty)
		n.Put(orders, at("10.1.0.2"))
		p.wantsServed(empty + " 10.1.0.2*1")
		n.Put(orders)
		p.after(2 * time.Hour)
		p.wantsServed()
	})
}

// TestNacosForgetsARefusal: what the relay refuses by name it refuses in each answer, and takes the rest.
func TestNacosForgetsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		n.Put(fakexds.Service{Namespace: "public", Group: "g", Name: "a/b"}, at("10.1.1.1"))
		p.begin(nil)
		if st := p.synced(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Resource, "a/b.g.public") {
			t.Errorf("refused are %+v", st.Refused)
		}
		n.Put(orders, at("10.1.0.1"), at("10.1.0.2"))
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*1 10.1.0.2*1")
		if nacks := n.NACKs(); len(nacks) < 2 || !strings.Contains(nacks[0], "a/b.g.public") {
			t.Errorf("NACKs %q", nacks)
		}
	})
}

// TestPushesOfNacosThatAnotherStreamTookArriveWithTheResync_C4: Nacos keeps streams by node ID, and
// forgets both when one ends.
func TestPushesOfNacosThatAnotherStreamTookArriveWithTheResync_C4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(resyncing)
		p.synced()
		nodes := n.Nodes()
		if len(nodes) != 1 || !strings.HasPrefix(nodes[0], "sotw ") {
			t.Fatalf("nodes %q", nodes)
		}
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := grpc.NewClient("passthrough:///nacos", grpc.WithTransportCredentials(insecure.NewCredentials()), p.dial())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: strings.TrimPrefix(nodes[0], "sotw ")}, TypeUrl: entryURL}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if left := n.Nodes(); len(left) > 0 {
			t.Fatalf("nodes %q", left)
		}
		n.Put(orders, at("10.1.0.2"))
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*1")
		if st := p.after(50 * time.Second); st.Reconnects > 0 {
			t.Errorf("%d further streams", st.Reconnects)
		}
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.2*1")
	})
}

// TestHigressIsSyncedIfItIsPartial_C21: it answers six types, and the status names the cure without
// partial.
func TestHigressIsSyncedIfItIsPartial_C21(t *testing.T) {
	for _, cured := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := registryPlace(t)
			s := p.higress(orders.Higress(at("10.1.0.1")))
			s.Set("networking.istio.io/v1alpha3/VirtualService", fakexds.Higress("higress-system/route", &networking.VirtualService{Hosts: []string{"shop.example"}}))
			p.begin(func(u *config.Upstream) { u.Source.(*Config).Partial = cured })
			st := p.after(25 * time.Second)
			p.wantsServed(higressOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*0")
			if st.Synced != cured || cured == strings.Contains(st.Silence, ifSilent) {
				t.Errorf("synced %v, silence %q", st.Synced, st.Silence)
			}
			if cured && len(st.NotOffered) != len(askedFor(false, nil))-len(fakexds.HigressTypes) {
				t.Errorf("not offered are %q", st.NotOffered)
			}
			if n := st.Resources["networking.istio.io/VirtualService"]; n != 1 {
				t.Errorf("%d VirtualServices", n)
			}
		})
	}
}

// TestResourcesOfHigressChangeWithoutVersions_C5: they have no labels either.
func TestResourcesOfHigressChangeWithoutVersions_C5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		s := p.higress(orders.Higress(at("10.1.0.1")))
		p.begin(partial)
		p.synced()
		before := p.served()[higressOrders]
		s.Set(entryURL, orders.Higress(at("10.1.0.2")))
		s.Push(entryURL)
		p.wantsServed(higressOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.2*0")
		now := p.served()[higressOrders]
		if now.SourceVersion() != "" || now.Version() == before.Version() || len(now.Metadata().Labels) > 0 {
			t.Errorf("version there %q, here %q and %q, labels %v", now.SourceVersion(), before.Version(), now.Version(), now.Metadata().Labels)
		}
	})
}

// TestANameThatHigressHasTwiceIsServedOnce_C7: the first of an answer is served and the second refused
// by name, and an answer in which it is alone mends that.
func TestANameThatHigressHasTwiceIsServedOnce_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		second := orders
		second.Kind = "nacos2"
		s := p.higress(orders.Higress(at("10.1.0.1")), second.Higress(at("10.1.0.2")))
		p.begin(partial)
		const served = higressOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 "
		if st := p.synced(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Reason, "comes twice") {
			t.Errorf("refused are %+v", st.Refused)
		}
		p.wantsServed(served + "10.1.0.1*0")
		nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
		if !strings.Contains(nack.Error, higressOrders) {
			t.Errorf("the NACK is %q", nack.Error)
		}
		s.Set(entryURL, second.Higress(at("10.1.0.2")))
		s.Push(entryURL)
		p.wantsServed(served + "10.1.0.2*0")
		if st := p.after(time.Second); st.RefusedTotal != 0 {
			t.Errorf("refused are %+v", st.Refused)
		}
	})
}
