package rewrite

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

var completeShortHosts = Rules{ShortHosts: ShortHostsComplete}

func TestShortHostsAreCompletedInEveryField_C23(t *testing.T) {
	tests := []struct{ name, kind, before, after string }{
		{
			"hosts", "vs",
			`{"hosts": ["productpage", "reviews.shop.svc.cluster.local", "example.com", "*.example.com"]}`,
			`{"hosts": ["productpage.shop.svc.cluster.local", "reviews.shop.svc.cluster.local", "example.com", "*.example.com"]}`,
		},
		{
			"http destinations and mirrors", "vs",
			`{"hosts": ["example.com"], "http": [{"match": [{"uri": {"exact": "/"}}], "route": [{"destination": {"host": "reviews", "subset": "v1", "port": {"number": 9080}}, "weight": 90}, {"destination": {"host": "reviews.corp"}, "weight": 10}], "mirror": {"host": "shadow"}},
			  {"route": [{"destination": {"host": "details"}}], "mirrors": [{"destination": {"host": "shadow"}, "percentage": {"value": 5}}, {"destination": {"host": "shadow.corp"}}]}]}`,
			`{"hosts": ["example.com"], "http": [{"match": [{"uri": {"exact": "/"}}], "route": [{"destination": {"host": "reviews.shop.svc.cluster.local", "subset": "v1", "port": {"number": 9080}}, "weight": 90}, {"destination": {"host": "reviews.corp"}, "weight": 10}], "mirror": {"host": "shadow.shop.svc.cluster.local"}},
			  {"route": [{"destination": {"host": "details.shop.svc.cluster.local"}}], "mirrors": [{"destination": {"host": "shadow.shop.svc.cluster.local"}, "percentage": {"value": 5}}, {"destination": {"host": "shadow.corp"}}]}]}`,
		},
		{
			"tcp destinations", "vs",
			`{"hosts": ["example.com"], "tcp": [{"match": [{"port": 27017}], "route": [{"destination": {"host": "mongo"}}]}]}`,
			`{"hosts": ["example.com"], "tcp": [{"match": [{"port": 27017}], "route": [{"destination": {"host": "mongo.shop.svc.cluster.local"}}]}]}`,
		},
		{
			"tls destinations, and the server names that must fit the hosts", "vs",
			`{"hosts": ["db", "*.corp"], "tls": [{"match": [{"port": 443, "sniHosts": ["db", "a.corp"]}], "route": [{"destination": {"host": "db"}}]}]}`,
			`{"hosts": ["db.shop.svc.cluster.local", "*.corp"], "tls": [{"match": [{"port": 443, "sniHosts": ["db.shop.svc.cluster.local", "a.corp"]}], "route": [{"destination": {"host": "db.shop.svc.cluster.local"}}]}]}`,
		},
		{
			"a server name that the host * covers as it is", "vs",
			`{"hosts": ["*"], "gateways": ["gw"], "tls": [{"match": [{"sniHosts": ["db"]}], "route": [{"destination": {"host": "db"}}]}]}`,
			`{"hosts": ["*"], "gateways": ["gw"], "tls": [{"match": [{"sniHosts": ["db"]}], "route": [{"destination": {"host": "db.shop.svc.cluster.local"}}]}]}`,
		},
		{
			"a host that is there both ways is there once", "vs",
			`{"hosts": ["reviews", "reviews.shop.svc.cluster.local"]}`, `{"hosts": ["reviews.shop.svc.cluster.local"]}`,
		},
		{
			"a host that a wildcard beside it covers", "vs",
			`{"hosts": ["reviews", "*.shop.svc.cluster.local", "ratings"]}`, `{"hosts": ["*.shop.svc.cluster.local"]}`,
		},
		{
			"a host that a wildcard beside it does not cover", "vs",
			`{"hosts": ["*.bank.svc.cluster.local", "reviews"]}`, `{"hosts": ["*.bank.svc.cluster.local", "reviews.shop.svc.cluster.local"]}`,
		},
		{
			"a host that a short wildcard covers", "vs",
			`{"hosts": ["web-canary", "*.svc.cluster.local", "*-canary"]}`, `{"hosts": ["*.svc.cluster.local"]}`,
		},
		{
			"the host of a rule, and none of its other fields", "dr",
			`{"host": "reviews", "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "reviews"}}, "subsets": [{"name": "v1", "labels": {"version": "v1"}}]}`,
			`{"host": "reviews.shop.svc.cluster.local", "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "reviews"}}, "subsets": [{"name": "v1", "labels": {"version": "v1"}}]}`,
		},
		{"a wildcard before a short name", "dr", `{"host": "*-canary"}`, `{"host": "*-canary.shop.svc.cluster.local"}`},
	}
	w := mustRewriter(t, completeShortHosts)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kind := rewriteKind(tt.kind)
			in := newRewriteResource(t, rewriteSpec(t, kind, "shop/r", tt.before))
			out := mustRewrite(t, w, in)
			if d := cmp.Diff(rewriteBody(t, kind, tt.after), decodedBody(t, out), protocmp.Transform()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if out.Key() != in.Key() || out.Version() == in.Version() {
				t.Errorf("%s in version %s became %s in %s: want the same key and another version", in.Key(), in.Version(), out.Key(), out.Version())
			}
			if again := mustRewrite(t, w, out); again != out {
				t.Error("a second relay changes what the first has completed")
			}
		})
	}
}

func TestHostsThatIstiodDoesNotCompleteKeepTheirBytes_C23(t *testing.T) {
	w := mustRewriter(t, completeShortHosts)
	for _, tt := range []struct{ name, kind, full, body string }{
		{"full names", "vs", "shop/r", `{"hosts": ["reviews.shop.svc.cluster.local", "*.corp"], "http": [{"route": [{"destination": {"host": "reviews.shop"}}]}]}`},
		{"the wildcard", "vs", "shop/r", `{"hosts": ["*"], "gateways": ["gw"]}`},
		{"addresses", "vs", "shop/r", `{"hosts": ["10.0.0.1"], "tcp": [{"route": [{"destination": {"host": "2001:db8::1"}}]}]}`},
		{"no host", "vs", "shop/r", `{"http": [{"delegate": {"name": "other"}}]}`},
		{"headers, authorities, gateways and namespaces", "vs", "shop/r", `{"hosts": ["a.corp"], "gateways": ["gw"], "http": [{"match": [{"authority": {"exact": "reviews"}, "sourceNamespace": "shop"}],
			"rewrite": {"authority": "reviews"}, "headers": {"request": {"set": {"host": "reviews"}}}}, {"redirect": {"authority": "reviews"}}]}`},
		{"hosts of services", "se", "shop/r", `{"hosts": ["reviews"], "endpoints": [{"address": "reviews"}]}`},
		{"what sidecars import, and their proxy", "sidecar", "shop/r", `{"egress": [{"hosts": ["shop/reviews", "./*"]}], "outboundTrafficPolicy": {"egressProxy": {"host": "proxy", "port": {"number": 80}}}}`},
		{"servers of gateways", "gw", "shop/r", `{"servers": [{"hosts": ["reviews", "shop/reviews"], "port": {"number": 80, "name": "http", "protocol": "HTTP"}}]}`},
		{"policies", "authorizationpolicy", "shop/r", `{"rules": [{"to": [{"operation": {"hosts": ["reviews"]}}]}]}`},
		{"addresses of workloads", "workloadentry", "shop/r", `{"address": "vm1"}`},
		{"gateways of the Gateway API", "gateways.gateway.networking.k8s.io", "shop/r", `{"addresses": [{"type": "Hostname", "value": "reviews"}]}`},
		{"routes of the Gateway API", "httproute", "shop/r", `{"hostnames": ["reviews"], "rules": [{"backendRefs": [{"name": "reviews", "port": 80}]}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := newRewriteResource(t, rewriteSpec(t, rewriteKind(tt.kind), tt.full, tt.body))
			if out := mustRewrite(t, w, in); out != in {
				t.Errorf("became %s", decodedBody(t, out))
			}
		})
	}

	t.Run("what an istiod made of the Gateway API", func(t *testing.T) {
		spec := rewriteSpec(t, rewriteKind("vs"), "shop/r", `{"hosts": ["reviews"], "gateways": ["shop/gw"]}`)
		spec.Annotations = map[string]string{"internal.istio.io/route-semantics": "gateway"}
		in := newRewriteResource(t, spec)
		if out := mustRewrite(t, w, in); out != in {
			t.Errorf("became %s", decodedBody(t, out))
		}
		spec.Annotations = map[string]string{"internal.istio.io/route-semantics": "ingress"}
		out := mustRewrite(t, w, newRewriteResource(t, spec))
		if got := decodedBody(t, out).(*networking.VirtualService).Hosts; !slices.Equal(got, []string{"reviews.shop.svc.cluster.local"}) {
			t.Errorf("made of an Ingress, the hosts became %q", got)
		}
	})
}

func TestRulesSeeTheCompletedHost_C23(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules Rules
		want  string
	}{
		{"the domain of the source", Rules{Domain: "east.corp"}, "reviews.shop.svc.east.corp"},
		{"a mapped namespace", Rules{Namespaces: map[string]string{"shop": "store"}}, "reviews.store.svc.cluster.local"},
		{"a prefix", Rules{NamespacePrefix: "east-", Domain: "east.corp"}, "reviews.east-shop.svc.east.corp"},
		{"a mapped domain", Rules{Domain: "east.corp", Hosts: map[string]string{"east.corp": "corp"}}, "reviews.shop.svc.corp"},
		{"a mapped host", Rules{Hosts: map[string]string{"reviews.shop.svc.cluster.local": "reviews.example"}}, "reviews.example"},
		{"a domain that is not the source's", Rules{Hosts: map[string]string{"corp": "example"}}, "reviews.shop.svc.cluster.local"},
		{"names and labels", Rules{NamePrefix: "e-", Labels: Edit{Set: map[string]string{"a": "b"}}}, "reviews.shop.svc.cluster.local"},
		{"visibility", Rules{ExportTo: []string{"."}}, "reviews.shop.svc.cluster.local"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.rules.ShortHosts = ShortHostsComplete
			out := mustRewrite(t, mustRewriter(t, tt.rules), newRewriteResource(t, rewriteSpec(t, rewriteKind("dr"), "shop/r", `{"host": "reviews"}`)))
			if got := decodedBody(t, out).(*networking.DestinationRule).Host; got != tt.want {
				t.Errorf("the host is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestUnknownFieldsAndOddEncodingsSurviveCompletion_C23(t *testing.T) {
	w := mustRewriter(t, completeShortHosts)
	field := func(num protowire.Number, value ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
	}
	text := func(num protowire.Number, v string) []byte { return field(num, []byte(v)...) }
	newer := text(4000, "of a newer API")
	route := func(host string) []byte { return field(2, field(1, text(1, host)...)...) } // HTTPRoute.route[].destination.host
	for name, tt := range map[string]struct{ in, out []byte }{
		"unknown fields at every level": {
			slices.Concat(newer, text(1, "reviews"), field(3, slices.Concat(newer, route("reviews"))...), newer),
			slices.Concat(newer, text(1, "reviews.shop.svc.cluster.local"), field(3, slices.Concat(newer, route("reviews.shop.svc.cluster.local"))...), newer),
		},
		"another order of fields": {
			slices.Concat(text(6, "."), field(3, route("reviews")...), text(1, "a.corp")),
			slices.Concat(text(6, "."), field(3, route("reviews.shop.svc.cluster.local")...), text(1, "a.corp")),
		},
		"a message in parts": { // put together as protobuf has it: the host of the second part counts
			slices.Concat(text(1, "a.corp"), field(3, field(9, text(1, "old")...)...), field(3, slices.Concat(field(9, text(1, "other")...), field(9, text(1, "shadow")...))...)),
			slices.Concat(text(1, "a.corp"), field(3, field(9, text(1, "old.shop.svc.cluster.local")...)...), field(3, field(9, text(1, "shadow.shop.svc.cluster.local")...)...)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := rewriteSpec(t, rewriteKind("vs"), "shop/r", `{}`)
			spec.Body.Value = tt.in
			if got := mustRewrite(t, w, newRewriteResource(t, spec)).BodyValue(); !bytes.Equal(got, tt.out) {
				t.Errorf("became\n%q, want\n%q", got, tt.out)
			}
		})
	}
}

func TestKeptShortHostsStay_C23(t *testing.T) {
	in := newRewriteResource(t, rewriteSpec(t, rewriteKind("vs"), "shop/r", `{"hosts": ["reviews"], "http": [{"route": [{"destination": {"host": "reviews"}}]}]}`))
	if out := mustRewrite(t, mustRewriter(t, Rules{Domain: "east.corp"}), in); out != in {
		t.Errorf("became %s", decodedBody(t, out))
	}
}

// Conflicts of hosts are found among the completed ones: "reviews" in two clusters with
// different domains is two hosts.
func TestHostConflictsSeeCompletedHosts_C23(t *testing.T) {
	claims := func(domain, host string) []string {
		spec := rewriteSpec(t, rewriteKind("vs"), "shop/a", `{"hosts": ["`+host+`"]}`)
		return federation.Claims(mustRewrite(t, mustRewriter(t, Rules{ShortHosts: ShortHostsComplete, Domain: domain}), newRewriteResource(t, spec)), federation.DefaultDomain)
	}
	east := claims("east.corp", "reviews")
	if got := claims("west.corp", "reviews"); slices.Equal(got, east) {
		t.Errorf("a host of two domains is one: %q", got)
	}
	if got := claims("west.corp", "reviews.shop.svc.east.corp"); !slices.Equal(got, east) {
		t.Errorf("a short host and the same in full: %q, want %q", got, east)
	}
}

// A resource without a short host costs no allocation more than where short hosts are kept.
func TestCompletionAllocatesNothingWhereThereIsNoShortHost_C23(t *testing.T) {
	remove := Edit{Remove: []string{"kubectl.kubernetes.io/last-applied-configuration"}} // as in every config
	keep, complete := mustRewriter(t, Rules{Annotations: remove}), mustRewriter(t, Rules{Annotations: remove, ShortHosts: ShortHostsComplete})
	allocs := func(w *Rewriter, in *mirror.Resource) float64 {
		return testing.AllocsPerRun(100, func() {
			if out, err := w.Rewrite(in); out != in || err != nil {
				t.Fatal("the resource has changed", err)
			}
		})
	}
	for kind, body := range map[string]string{
		"vs": `{"hosts": ["a.corp", "*.corp", "*"], "gateways": ["gw"], "http": [{"match": [{"uri": {"prefix": "/"}}], "route": [{"destination": {"host": "reviews.shop.svc.cluster.local"}}]}], "tls": [{"match": [{"sniHosts": ["*.corp"]}]}]}`,
		"dr": `{"host": "reviews.shop.svc.cluster.local", "subsets": [{"name": "v1"}]}`,
		"se": `{"hosts": ["plain"]}`,
	} {
		in := newRewriteResource(t, rewriteSpec(t, rewriteKind(kind), "shop/r", body))
		if with, without := allocs(complete, in), allocs(keep, in); with > without {
			t.Errorf("%s: %v allocations, and %v where short hosts are kept", kind, with, without)
		}
	}
}

// resolved is what istiod does to what it reads itself (model.ResolveShortnameToFQDN and
// resolveVirtualServiceShortnames), written down a second time, and server names along with
// the hosts.
func resolved(m proto.Message, ns string) {
	complete := func(h *string) {
		if isIP := strings.Contains(*h, ":") && !federation.IsShort(*h); !isIP {
			*h = istiodHost(*h, ns, "cluster.local")
		}
	}
	destination := func(d *networking.Destination) {
		if d != nil {
			complete(&d.Host)
		}
	}
	each := func(hosts []string) []string { // those that become one are listed once
		var out []string
		for _, h := range hosts {
			complete(&h)
			if !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
		return out
	}
	switch b := m.(type) {
	case *networking.DestinationRule:
		complete(&b.Host)
	case *networking.VirtualService:
		everything := slices.Contains(b.Hosts, "*")
		b.Hosts = each(b.Hosts)
		for _, h := range b.Http {
			for _, r := range h.GetRoute() {
				destination(r.GetDestination())
			}
			destination(h.GetMirror())
			for _, r := range h.GetMirrors() {
				destination(r.GetDestination())
			}
		}
		for _, h := range b.Tcp {
			for _, r := range h.GetRoute() {
				destination(r.GetDestination())
			}
		}
		for _, h := range b.Tls {
			for _, r := range h.GetRoute() {
				destination(r.GetDestination())
			}
			for _, match := range h.GetMatch() {
				if !everything {
					match.SniHosts = each(match.SniHosts)
				}
			}
		}
	}
}

// withoutTwice lists hosts once: istiod takes a host that is there twice as one.
func withoutTwice(m proto.Message) {
	once := func(hosts []string) (out []string) {
		for _, h := range hosts {
			if !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
		return out
	}
	if b, ok := m.(*networking.VirtualService); ok {
		b.Hosts = once(b.Hosts)
		for _, h := range b.Tls {
			for _, match := range h.GetMatch() {
				match.SniHosts = once(match.SniHosts)
			}
		}
	}
}

// FuzzCompleteShortHosts compares the completion on encoded bodies with istiod's on decoded
// ones.
func FuzzCompleteShortHosts(f *testing.F) {
	w, err := New(completeShortHosts)
	if err != nil {
		f.Fatal(err)
	}
	kinds := []mirror.Kind{rewriteKind("vs"), rewriteKind("dr")}
	for i, bodies := range [][]string{{
		`{"hosts": ["reviews", "*", "::1", "a:b"], "http": [{"route": [{"destination": {"host": "reviews"}}], "mirror": {"host": "x"}, "mirrors": [{"destination": {"host": "y"}}]}]}`,
		`{"hosts": ["db", "db.shop.svc.cluster.local"], "tls": [{"match": [{"sniHosts": ["db", "db"]}], "route": [{"destination": {"host": "db"}}]}], "tcp": [{"route": [{"destination": {"host": "db"}}]}]}`,
	}, {`{"host": "reviews", "subsets": [{"name": "v1"}]}`}} {
		for _, body := range bodies {
			b, err := proto.Marshal(rewriteBody(f, kinds[i], body))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(i == 1, b)
			f.Add(i == 1, append(b, b...))
		}
	}
	f.Fuzz(func(t *testing.T, rule bool, value []byte) {
		kind := kinds[0]
		if rule {
			kind = kinds[1]
		}
		info, _ := mirror.LookupKind(kind)
		body := info.NewBody()
		want := info.NewBody()
		if proto.Unmarshal(value, want) != nil {
			return
		}
		in, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: "shop", Name: "x"}, Body: &anypb.Any{TypeUrl: "type.googleapis.com/" + string(body.ProtoReflect().Descriptor().FullName()), Value: value}})
		if err != nil {
			return
		}
		out, err := w.Rewrite(in)
		if err != nil {
			t.Fatalf("what decodes is refused: %v", err)
		}
		if err := proto.Unmarshal(out.BodyValue(), body); err != nil {
			t.Fatal(err)
		}
		resolved(want, "shop")
		withoutTwice(want)
		withoutTwice(body)
		if d := cmp.Diff(want, body, protocmp.Transform()); d != "" {
			t.Errorf("-istiod +relay:\n%s", d)
		}
		if again, _ := w.Rewrite(out); again != out {
			t.Error("a second relay changes what the first has completed")
		}
	})
}

func BenchmarkCompleteShortHosts(b *testing.B) {
	const routes = 20
	body := func(host string) string {
		var http []string
		for i := range routes {
			http = append(http, fmt.Sprintf(`{"match": [{"uri": {"prefix": "/%d"}}], "route": [{"destination": {"host": %q, "subset": "v1"}}], "timeout": "1s", "retries": {"attempts": 3}}`, i, host))
		}
		return `{"hosts": ["` + host + `"], "http": [` + strings.Join(http, ",") + `]}`
	}
	for _, bc := range []struct {
		name, host string
		rules      Rules
	}{
		{"keep", "reviews.shop.svc.cluster.local", Rules{}},
		{"complete/none", "reviews.shop.svc.cluster.local", completeShortHosts},
		{"complete/all", "reviews", completeShortHosts},
	} {
		b.Run(bc.name, func(b *testing.B) {
			bc.rules.Annotations.Remove = []string{"kubectl.kubernetes.io/last-applied-configuration"}
			w := mustRewriter(b, bc.rules)
			in := newRewriteResource(b, rewriteSpec(b, rewriteKind("vs"), "shop/reviews", body(bc.host)))
			b.SetBytes(int64(len(in.BodyValue())))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Rewrite(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
