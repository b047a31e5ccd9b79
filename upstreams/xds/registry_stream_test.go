package xds

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
)

// TestTheStreamToNacosStays: Nacos ends the first connection for its pings, as gRPC servers do by
// default, and then is pinged as seldom as it likes.
func TestTheStreamToNacosStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(func(u *config.Upstream) { u.Source.(*Config).ResyncInterval = config.Duration(24 * time.Hour) })
		p.synced()
		first := p.after(10 * time.Minute).Reconnects
		st := p.after(2 * time.Hour)
		if first > 1 || st.Reconnects != first {
			t.Errorf("%d further streams in ten minutes, %d in two hours", first, st.Reconnects)
		}
		n.Put(orders, at("10.1.0.2"))
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.2*1")
	})
}

// TestTheDeltaOfNacosIsLeftForSotW_C14: its resources have neither names nor envelopes.
func TestTheDeltaOfNacosIsLeftForSotW_C14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(func(u *config.Upstream) { u.Source.(*Config).Protocol = "delta" })
		p.after(time.Minute)
		p.wantsServed(nacosOrders + " consumers:cn.example.OrderService::.DEFAULT-GROUP.public.nacos:8080 10.1.0.1*1")
		if st := p.m.Status()[0]; st.Protocol != "sotw" || st.RefusedTotal > 0 || len(n.NACKs()) > 0 {
			t.Errorf("%s, refused %v, NACKs %q", st.Protocol, st.Refused, n.NACKs())
		}
	})
}

// TestAProbeTakesNoPushesOfNacos: Nacos keeps streams by node ID, and the probe has one of its own.
func TestAProbeTakesNoPushesOfNacos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registryPlace(t)
		n := p.nacos(&fakexds.Nacos{})
		p.begin(nil)
		p.synced()
		nodes := n.Nodes()
		p.ask(config.Upstream{Name: "east", Source: &Config{Plaintext: true}, Limits: config.Limits{MaxResponseBytes: 1 << 20}})
		synctest.Wait() // the server has noticed that the probe's stream has ended
		if left := n.Nodes(); !slices.Equal(left, nodes) {
			t.Errorf("nodes %q, and %q before the probe", left, nodes)
		}
		n.Put(fakexds.Service{Namespace: "public", Group: "shop", Name: "Cards"}, at("10.1.0.9"))
		if served := p.served(); len(served) != 2 {
			t.Errorf("served are %v", served)
		}
	})
}
