package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestPackedEndpointsAreAsBefore(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "b", strings.Repeat("long", 100)})
	one := rapid.Custom(func(t *rapid.T) Endpoint {
		return Endpoint{
			Addr: rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:1.2.3.4")}).Draw(t, "addr"),
			Host: text.Draw(t, "host"), Port: rapid.Uint32().Draw(t, "port"), Weight: rapid.Uint32().Draw(t, "weight"), Locality: text.Draw(t, "locality"),
			Network: text.Draw(t, "network"), Account: text.Draw(t, "account"), TLS: rapid.Bool().Draw(t, "tls"), Labels: text.Draw(t, "labels"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(one, 0, 20).Draw(t, "all")
		if got := Pack(all).Unpack(); !slices.Equal(got, all) {
			t.Fatalf("%+v, want %+v", got, all)
		}
	})
}

// The intake keeps the endpoints of all services: 300,000 pods of them must not cost 40 MB.
func TestPackedEndpointsOfAServiceTakeAFractionOfTheirMemory(t *testing.T) {
	var all []Endpoint
	for i := range 10 {
		all = append(all, Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 8080, Locality: "region-1/zone-1", Account: "spiffe://cluster.local/ns/shop/sa/db", TLS: true, Labels: "app=db"})
	}
	if n := len(Pack(all)); 5*n > len(all)*int(unsafe.Sizeof(all[0])) {
		t.Errorf("%d bytes", n)
	}
}

func BenchmarkPack(b *testing.B) {
	var all []Endpoint
	for i := range 10 {
		all = append(all, Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 8080, Locality: "region-1/zone-1", Account: "spiffe://cluster.local/ns/shop/sa/db", TLS: true, Labels: "app=db"})
	}
	b.ReportAllocs()
	for b.Loop() {
		Pack(all).Unpack()
	}
}
