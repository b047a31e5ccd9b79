package xds

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams"
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
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := (&fakexds.Nacos{}).Start(t, lis)
	n.Put(orders, at("10.1.0.1"))
	cfg := parsed(t, sharedServer+fmt.Sprintf("- {name: east, xds: {addresses: [%q], protocol: sotw, plaintext: true}}\n", lis.Addr()))
	m := run(t, cfg)
	entries := func(want int) {
		t.Helper()
		deadline := time.After(30 * time.Second)
		for m.Status()[0].Resources["networking.istio.io/ServiceEntry"] != want {
			select {
			case <-deadline:
				t.Fatalf("%d ServiceEntries do not come; nodes %q", want, n.Nodes())
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	entries(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for _, check := range probe(cfg.Upstreams[0], upstreams.Env{Node: cfg.Node}) {
		check.Run(ctx)
	}
	n.Put(fakexds.Service{Namespace: "public", Group: "shop", Name: "Cards"}, at("10.1.0.9"))
	entries(2)
}
