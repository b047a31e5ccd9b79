package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
)

// guarded is a relay with a listener that wants certificates. as connects as a service account of the namespace shop.
type guarded struct {
	*relay
	as func(account string) grpc.DialOption
}

func startGuarded(t *testing.T, synced bool, all []views.View, opts ...option) *guarded {
	t.Helper()
	dir := t.TempDir()
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay.example", ca)
	roots := x509.NewCertPool()
	roots.AddCert(leafOf(ca))
	g := &guarded{as: func(account string) grpc.DialOption {
		cert := certificateOf(t, dir, account, ca, func(c *x509.Certificate) {
			c.DNSNames, c.URIs = nil, []*url.URL{must(url.Parse(shopAccount(account)))}
		})
		return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*cert}}))
	}}
	g.relay = startRelay(t, synced, append([]option{func(c *Config, _ *Deps) {
		c.Listeners[0].TLS = &TLS{CertFile: filepath.Join(dir, "relay.example.crt"), KeyFile: filepath.Join(dir, "relay.example.key"), ClientCAs: []ClientCA{{File: filepath.Join(dir, "ca.crt")}}}
		c.Views = all
	}}, opts...)...)
	return g
}

// open opens a delta stream for ServiceEntries, whose node claims nothing.
func (g *guarded) open(opts ...grpc.DialOption) *deltaStream {
	g.t.Helper()
	d := g.delta(opts...)
	n := node()
	n.Id = "client"
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1})
	return d
}

// reload reloads with other views.
func (g *guarded) reload(all ...views.View) {
	g.t.Helper()
	if err := g.server.Reload(g.t.Context(), all, Limits{}, nil); err != nil {
		g.t.Fatal(err)
	}
}

func shopAccount(name string) string { return "spiffe://cluster.local/ns/shop/sa/" + name }

// viewFor returns a view of namespaces for accounts.
func viewFor(accounts, name string, shown ...string) views.View {
	v := namespaces(name, "", shown...)
	v.Default, v.Shows = false, strings.Join(shown, " ")
	for _, one := range strings.Fields(accounts) {
		v.Match.Identities = append(v.Match.Identities, shopAccount(one))
	}
	return v
}

func TestAForgedNamespaceIsRefused(t *testing.T) {
	g := startGuarded(t, true, nil)
	d := g.delta(g.as("web"))
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node("NAMESPACE", "istio-system"), TypeUrl: seV1})
	wantCode(t, d.end(), codes.PermissionDenied)
	wantRefused(t, g.relay, refusal.Node, 1)
}

// TestClaimsOfANodeHideAndNeverShow: whatever cluster and revision a client claims, it sees nothing that it would
// not see without the claim.
func TestClaimsOfANodeHideAndNeverShow(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	for range 200 {
		c := newCopies("east", "west")
		for i := range 20 {
			res := se(pick("shop", "bank"), fmt.Sprint("s-", i%12), "x", "istio.io/rev", pick("", "", "blue", "green"))
			c.put(copyOf(res, pick("east", "west"), pick("east", "west", "north")))
		}
		vs := newViews(c)
		vs.open(time.Now())
		rule := &views.Rule{View: namespaces("shop", "", "shop")}
		seen := func(claims views.Client) map[string]bool {
			out := map[string]bool{}
			v := must(vs.admit(t.Context(), rule.Selection(claims), viewer{delta: true}))
			for _, p := range v.snapshot(typeSE).Pages {
				for _, e := range p.Entries {
					out[e.Item.FullName()] = true
				}
			}
			vs.release(v, viewer{delta: true})
			return out
		}
		honest := seen(views.Client{})
		for range 5 {
			claims := views.Client{ClusterID: pick("", "east", "west", "north", "nowhere"), Revision: pick("", "blue", "green", "none")}
			for name := range seen(claims) {
				if !honest[name] || !strings.HasPrefix(name, "shop/") {
					t.Fatalf("with %+v a client sees %s", claims, name)
				}
			}
		}
	}
}

func TestAReloadMovesOrEndsTheStreamsOfAView(t *testing.T) {
	g := startGuarded(t, true, []views.View{viewFor("stays moves ends renamed", "both", "shop", "bank")})
	g.put(se("shop", "a", "1"), se("bank", "b", "1"))
	streams := map[string]*deltaStream{}
	for _, name := range []string{"stays", "moves", "ends", "renamed"} {
		streams[name] = g.open(g.as(name))
		if got := deltaNames(streams[name].next()); got != "bank/b shop/a" {
			t.Fatalf("%s gets %q", name, got)
		}
	}
	g.reload(viewFor("stays", "both", "shop", "bank"), viewFor("moves", "shop", "shop"), viewFor("renamed", "again", "shop", "bank"))
	if got := deltaNames(streams["moves"].next()); got != "-bank/b" {
		t.Errorf("the client with the narrower view gets %q", got)
	}
	end := streams["ends"].end()
	wantCode(t, end, codes.PermissionDenied)
	if !strings.Contains(end.Error(), "no view matches this client") {
		t.Errorf("the client without a view is told %v", end)
	}
	g.put(se("shop", "a", "2"))
	for _, name := range []string{"stays", "moves", "renamed"} {
		if got := deltaNames(streams[name].next()); got != "shop/a" {
			t.Errorf("%s gets %q", name, got)
		}
	}
	// A reload can take all views away, and bring some.
	g.reload()
	if got := deltaNames(streams["moves"].next()); got != "bank/b" {
		t.Errorf("without views the client gets %q", got)
	}
	g.reload(viewFor("moves", "shop", "shop"))
	if got := deltaNames(streams["moves"].next()); got != "-bank/b" {
		t.Errorf("with views again the client gets %q", got)
	}
	wantCode(t, streams["stays"].end(), codes.PermissionDenied)
}

// TestAHeldClientIsJudgedAgainBeforeItIsServed: it never gets what its first view would have shown.
func TestAHeldClientIsJudgedAgainBeforeItIsServed(t *testing.T) {
	g := startGuarded(t, false, []views.View{viewFor("moves ends", "both", "shop", "bank")})
	g.store.Put(se("shop", "a", "1"))
	g.store.Put(se("bank", "b", "1"))
	moves, ends := g.open(g.as("moves")), g.open(g.as("ends"))
	g.eventually(t, "both wait", func() bool { return len(g.server.Clients()) == 2 })
	g.reload(viewFor("moves", "shop", "shop"))
	g.store.SetSynced()
	if got := deltaNames(moves.next()); got != "shop/a" {
		t.Errorf("the client with another view gets %q", got)
	}
	r := <-ends.recvd
	if wantCode(t, r.err, codes.PermissionDenied); r.msg != nil {
		t.Errorf("the client without a view gets %v", r.msg)
	}
}

// TestAFirstSyncEndsWithTheViewThatPlannedIt: the rest of a long answer is not sent after a reload that narrows
// what the client may read, or refuses it. A reload that changes nothing for it lets it go on.
func TestAFirstSyncEndsWithTheViewThatPlannedIt(t *testing.T) {
	const n = 12_000
	shop := namespaces("v", "", "shop")
	shop.Shows = "shop"
	all := many(n, "s-%05d", func(int) string { return strings.Repeat("x", 1000) })
	for name, tc := range map[string]struct {
		next views.View
		want codes.Code
	}{
		"another view": {namespaces("v", "", "bank"), codes.Unavailable},
		"no view":      {namespaces("v", "nobody", "shop"), codes.PermissionDenied},
		"another name": {views.View{Name: "w", Default: true, Accepts: shop.Accepts, Shows: shop.Shows}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			g := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{shop} })
			g.put(all...)
			s := g.stalledDelta(seV1)
			const underWay = 2 // the transport takes one part more than it can send
			g.eventually(t, "the second part is on its way", func() bool {
				c := g.server.Clients()
				return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes == underWay && g.server.connections()[0].sending.Load()
			})
			if err := g.server.Reload(t.Context(), []views.View{tc.next}, Limits{}, nil); err != nil {
				t.Fatal(err)
			}
			got, parts := 0, 0
			for {
				resp, err := s.Recv()
				if err != nil {
					wantCode(t, err, tc.want)
					break
				}
				parts++
				if got += len(resp.Resources); got == n {
					break
				}
			}
			if tc.want == codes.OK && got != n || tc.want != codes.OK && parts > underWay {
				t.Errorf("the client got %d resources in %d parts", got, parts)
			}
		})
	}
}

// TestNoPartOfAnAnswerFollowsTheReloadThatEndsTheStream, however late the stream notices its end.
func TestNoPartOfAnAnswerFollowsTheReloadThatEndsTheStream(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a"))
	c := r.toNobody()
	c.ctx, c.cancel = context.WithCancelCause(t.Context())
	round, err := c.plan()
	if err != nil || round == nil {
		t.Fatal(round, err)
	}
	c.moveTo(nil, nil, errNotTrusted)
	if _, ok, err := c.respond(round, time.Now()); ok || !errors.Is(err, errNotTrusted) {
		t.Errorf("%t %v", ok, err)
	}
}
