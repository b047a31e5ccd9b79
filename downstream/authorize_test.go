package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

const (
	verifying = "127.0.0.1:0" // the listener that wants certificates
	plain     = "localhost:0" // the one in plaintext
)

// guarded is a relay with both listeners. as connects to the first as a service account of a namespace.
type guarded struct {
	*relay
	as    func(namespace, account string) grpc.DialOption
	addrs []string
}

func startGuarded(t *testing.T, synced bool, views []View, rules []AuthorizationRule, opts ...option) *guarded {
	t.Helper()
	dir := t.TempDir()
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay.example", ca)
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(ca.Certificate[0])))
	g := &guarded{as: func(namespace, account string) grpc.DialOption {
		cert := certificateOf(t, dir, namespace+"-"+account, ca, func(c *x509.Certificate) {
			c.DNSNames = nil
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + namespace + "/sa/" + account}}
		})
		return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*cert}}))
	}}
	g.relay = startRelay(t, synced, append([]option{func(c *Config, _ *Deps) {
		c.Listeners = []Listener{
			{Address: verifying, TLS: &TLS{CertFile: filepath.Join(dir, "relay.example.crt"), KeyFile: filepath.Join(dir, "relay.example.key"), ClientCAFile: filepath.Join(dir, "ca.crt")}},
			{Address: plain},
		}
		c.Views, c.Authorization = views, rules
	}}, opts...)...)
	for _, a := range must(g.server.Addrs(t.Context())) {
		g.addrs = append(g.addrs, a.String())
	}
	return g
}

// open opens a delta stream for a type, whose node claims nothing.
func (g *guarded) open(typeURL string, opts ...grpc.DialOption) *deltaStream {
	g.t.Helper()
	d := g.delta(opts...)
	n := node()
	n.Id = "client"
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: typeURL})
	return d
}

// reauthorize reloads with other rules.
func (g *guarded) reauthorize(views []View, rules ...AuthorizationRule) {
	g.t.Helper()
	if err := g.server.Reload(g.t.Context(), Access{Views: views, Authorization: rules}, Limits{}, nil); err != nil {
		g.t.Fatal(err)
	}
}

// viewOf returns a view of namespaces that matches no client.
func viewOf(name string, shown ...string) View {
	v := namespaces(name, "", shown...)
	v.Default = false
	return v
}

func onlyKind(kind mirror.Kind) func(*mirror.Resource) bool {
	return func(r *mirror.Resource) bool { return r.Kind() == kind }
}

func account(namespace, name string) string {
	return "spiffe://cluster.local/ns/" + namespace + "/sa/" + name
}

func TestTheFirstRuleThatFitsCounts(t *testing.T) {
	listeners := []Listener{{Address: "a"}, {Address: "b"}}
	rules := []AuthorizationRule{
		{Name: "exact", Identities: []string{account("shop", "web")}, View: "v"},
		{Name: "here", Identities: []string{"spiffe://cluster.local/ns/shop/**"}, Listeners: []string{"a"}, View: "v"},
		{Name: "dns", Identities: []string{"dns:*.example", "dns:relay.east"}, View: "v"},
		{Name: "late", Identities: []string{account("shop", "web"), account("bank", "web")}, View: "v"},
		{Name: "anybody there", Listeners: []string{"b"}, View: "v"},
		{Name: "never", Identities: []string{account("till", "web")}, Listeners: []string{"b"}, View: "v"},
	}
	rs := must(newRules(Access{Views: []View{{Name: "v"}}, Authorization: rules}, listeners))
	for _, tc := range []struct {
		listener, identities, want string
	}{
		{"a", account("shop", "web"), "exact"},
		{"a", account("shop", "api"), "here"},
		{"a", account("bank", "web"), "late"},
		{"a", account("bank", "api"), ""},
		{"a", "dns:relay.example", "dns"},
		{"a", "dns:relay.east", "dns"},
		{"a", account("bank", "api") + " dns:relay.east", "dns"},
		{"a", "", ""},
		{"b", account("shop", "api"), "anybody there"},
		{"b", account("till", "web"), "anybody there"},
		{"b", "", "anybody there"},
		{"c", account("shop", "web"), ""},
	} {
		who := identity.Claimed(strings.Fields(tc.identities))
		r, err := rs.authorize(Listener{Address: tc.listener}, client{}, who)
		if tc.want == "" {
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s on %s: %v, %v, want a refusal", tc.identities, tc.listener, r, err)
			}
			continue
		}
		if err != nil || r.ruleName() != tc.want || r.Name != "v" {
			t.Errorf("%q on %s: %v, %v, want %s", tc.identities, tc.listener, r, err, tc.want)
		}
	}
}

// TestGatesDecideAsReadingTheRulesInOrderWould: for random rules and clients.
func TestGatesDecideAsReadingTheRulesInOrderWould(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	patterns := []string{"dns:a", "dns:b", "dns:*", "dns:a?", "spiffe://t/a", "spiffe://t/*", "spiffe://*/**"}
	ids := []string{"dns:a", "dns:b", "dns:ab", "spiffe://t/a", "spiffe://t/a/b"}
	some := func(from []string, most int) (out []string) {
		for range r.IntN(most + 1) {
			out = append(out, from[r.IntN(len(from))])
		}
		return out
	}
	listeners := []Listener{{Address: "a"}, {Address: "b"}, {Address: "c"}}
	for range 3000 {
		var rules []AuthorizationRule
		for i := range r.IntN(6) {
			a := AuthorizationRule{Name: fmt.Sprint("r", i), Identities: some(patterns, 3), Listeners: some([]string{"a", "b", "c"}, 2)}
			if len(a.Identities)+len(a.Listeners) > 0 {
				rules = append(rules, a)
			}
		}
		if len(rules) == 0 {
			continue
		}
		rs := must(newRules(Access{Authorization: rules}, listeners))
		for range 10 {
			names, l := some(ids, 3), listeners[r.IntN(3)]
			want := slices.IndexFunc(rules, func(a AuthorizationRule) bool {
				return (len(a.Listeners) == 0 || slices.Contains(a.Listeners, l.Address)) &&
					(len(a.Identities) == 0 || slices.ContainsFunc(a.Identities, func(p string) bool {
						return slices.ContainsFunc(names, must(identity.Parse(p)).Matches)
					}))
			})
			got, err := rs.authorize(l, client{}, identity.Identity{Names: names})
			if (want < 0) != (err != nil) || err == nil && got.ruleName() != rules[want].Name {
				t.Fatalf("%v on %s by %+v: %v, %v, want number %d", names, l.Address, rules, got, err, want)
			}
		}
	}
}

// TestAClientWithoutARuleIsRefused: it is told what it has presented, and nothing of the rules.
func TestAClientWithoutARuleIsRefused(t *testing.T) {
	g := startGuarded(t, true, []View{viewOf("hidden-view", "shop")}, []AuthorizationRule{
		{Name: "hidden-rule", Identities: []string{account("hidden", "web")}, Listeners: []string{verifying}, View: "hidden-view"},
	})
	g.put(se("shop", "a", "a"))
	for i, tc := range []struct{ with, presented string }{
		{"a certificate", "listener 127.0.0.1:0, identity \"" + account("shop", "web") + "\""},
		{"nothing", "listener localhost:0, identity none verified"},
	} {
		g.addr = g.addrs[i]
		d := g.open(seV1, map[bool]grpc.DialOption{true: g.as("shop", "web"), false: grpc.EmptyDialOption{}}[i == 0])
		err := d.end()
		wantCode(t, err, codes.PermissionDenied)
		if !strings.Contains(err.Error(), "no rule of authorization lets this client in: "+tc.presented) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("with %s: %v", tc.with, err)
		}
	}
	r := g.relay
	wantRefused(t, r, refusal.Authorization, 2)
}

// TestAStreamWithoutIdentityGetsTheRuleOfItsListener: and a client with one gets that of its identity.
func TestAStreamWithoutIdentityGetsTheRuleOfItsListener(t *testing.T) {
	g := startGuarded(t, true, []View{viewOf("all", "shop", "bank"), viewOf("few", "shop")}, []AuthorizationRule{
		{Name: "known", Identities: []string{"spiffe://cluster.local/**"}, View: "all"},
		{Name: "unknown", Listeners: []string{plain}, View: "few"},
	})
	g.put(se("shop", "a", "a"), se("bank", "b", "b"))
	if got := deltaNames(g.open(seV1, g.as("shop", "web")).next()); got != "bank/b shop/a" {
		t.Errorf("a client with a certificate gets %q", got)
	}
	g.addr = g.addrs[1]
	if got := deltaNames(g.open(seV1).next()); got != "shop/a" {
		t.Errorf("a client in plaintext gets %q", got)
	}
	g.eventually(t, "both are there", func() bool { return len(g.server.Clients()) == 2 })
	for _, c := range g.server.Clients() {
		if got := c.Rule + " " + c.View + " " + c.Identity; got != "known all "+account("shop", "web") && got != "unknown few " {
			t.Errorf("a client has the rule, view and identity %q", got)
		}
	}
}

// TestACertificateOfNobodyIsAnonymous: a rule of the listener alone does not let it in, unless the listener takes
// clients that prove nothing.
func TestACertificateOfNobodyIsAnonymous(t *testing.T) {
	for _, anonymous := range []bool{false, true} {
		dir := t.TempDir()
		ca := certificate(t, dir, "ca", nil)
		certificate(t, dir, "relay.example", ca)
		roots := x509.NewCertPool()
		roots.AddCert(leafOf(ca))
		cert := certificateOf(t, dir, "nobody", ca, func(c *x509.Certificate) { c.DNSNames, c.URIs = nil, nil })
		r := startRelay(t, true, func(c *Config, _ *Deps) {
			c.Listeners[0].TLS = &TLS{
				CertFile: filepath.Join(dir, "relay.example.crt"), KeyFile: filepath.Join(dir, "relay.example.key"), ClientCAFile: filepath.Join(dir, "ca.crt"),
				AllowAnonymous: anonymous,
			}
			c.Authorization = []AuthorizationRule{{Name: "all", Listeners: []string{c.Listeners[0].Address}}}
		})
		s := r.sotw(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*cert}})))
		s.send(subscribe(seV1))
		if anonymous {
			s.next()
			continue
		}
		wantCode(t, s.end(), codes.PermissionDenied)
		wantRefused(t, r, refusal.Authorization, 1)
	}
}

// TestARuleNarrowsItsView: and never shows what the view does not.
func TestARuleNarrowsItsView(t *testing.T) {
	g := startGuarded(t, true, []View{viewOf("shop", "shop")}, []AuthorizationRule{
		{Name: "narrow", Identities: []string{account("shop", "web")}, View: "shop", Accepts: onlyKind(kindSE)},
		{Name: "whole", Identities: []string{account("shop", "api")}, View: "shop"},
		{Name: "nothing", Identities: []string{account("shop", "none")}, View: "shop", Accepts: func(r *mirror.Resource) bool { return r.Namespace() == "bank" }},
	})
	g.put(se("shop", "a", "a"), dr("shop", "d", "a"), se("bank", "b", "b"))
	for account, want := range map[string][2]string{"web": {"shop/a", ""}, "api": {"shop/a", "shop/d"}, "none": {"", ""}} {
		for i, typeURL := range []string{seV1, drV1} {
			d := g.open(typeURL, g.as("shop", account))
			if got := deltaNames(d.next()); got != want[i] {
				t.Errorf("%s gets %q of %s", account, got, typeURL)
			}
			d.cancel()
		}
	}
}

// TestRulesThatShowTheSameShareAView, whatever they are called; others do not.
func TestRulesThatShowTheSameShareAView(t *testing.T) {
	rule := func(name, account_, selection string, accepts func(*mirror.Resource) bool) AuthorizationRule {
		return AuthorizationRule{Name: name, Identities: []string{account("shop", account_)}, View: "shop", Accepts: accepts, Selection: selection}
	}
	narrow := onlyKind(kindSE)
	g := startGuarded(t, true, []View{viewOf("shop", "shop")}, []AuthorizationRule{
		rule("one", "a", "shop se", narrow), rule("two", "b", "shop se", onlyKind(kindSE)), rule("whole", "c", "shop", nil), rule("again", "d", "shop", nil), rule("alone", "e", "", narrow),
	})
	g.put(se("shop", "a", "a"))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		g.open(seV1, g.as("shop", name)).next()
	}
	g.eventually(t, "all are there", func() bool { return len(g.server.Clients()) == 5 })
	if n := g.server.views.copies.Load(); n != 3 {
		t.Errorf("there are %d views, want one for each selection", n)
	}
}

func TestClaimsOfANodeMustBeThoseOfItsIdentity(t *testing.T) {
	rs := must(newRules(Access{Authorization: []AuthorizationRule{{Name: "r", Listeners: []string{"a"}}}}, []Listener{{Address: "a"}}))
	without := must(newRules(Access{}, []Listener{{Address: "a"}}))
	shop := identity.Claimed([]string{account("shop", "web")})
	for name, tc := range map[string]struct {
		who                        identity.Identity
		id, namespace, serviceName string
		want                       string // empty: it is let in
	}{
		"claims nothing":             {shop, "client", "", "", ""},
		"claims what it is":          {shop, "client", "shop", "web", ""},
		"another namespace":          {shop, "client", "bank", "web", `claims the namespace "bank", and its identity "` + account("shop", "web") + `" has "shop"`},
		"another account":            {shop, "client", "shop", "api", `claims the service account "api", and its identity "` + account("shop", "web") + `" has "web"`},
		"a namespace in the node ID": {shop, "sidecar~10.0.0.1~istiod.bank~bank.svc", "", "", `claims the namespace "bank"`},
		"NAMESPACE goes before that": {shop, "sidecar~10.0.0.1~istiod.bank~bank.svc", "shop", "", ""},
		"no identity":                {identity.Identity{}, "client", "bank", "api", ""},
		"an identity of no workload": {identity.Claimed([]string{"spiffe://cluster.local/relay"}), "client", "bank", "api", ""},
		"a DNS name":                 {identity.Claimed([]string{"dns:relay.example"}), "client", "bank", "api", ""},
	} {
		c := clientOf(tc.id, map[string]string{"NAMESPACE": tc.namespace, "SERVICE_ACCOUNT": tc.serviceName}, nil)
		_, err := rs.authorize(Listener{Address: "a"}, c, tc.who)
		if tc.want == "" && err != nil || tc.want != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if _, err := without.authorize(Listener{Address: "a"}, c, tc.who); err != nil {
			t.Errorf("%s, without authorization: %v", name, err)
		}
	}
}

func TestAForgedNamespaceIsRefused(t *testing.T) {
	g := startGuarded(t, true, nil, []AuthorizationRule{{Name: "all", Identities: []string{"spiffe://cluster.local/**"}}})
	d := g.delta(g.as("shop", "web"))
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node("NAMESPACE", "istio-system"), TypeUrl: seV1})
	wantCode(t, d.end(), codes.PermissionDenied)
	r := g.relay
	wantRefused(t, r, refusal.Authorization, 1)
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
		vs := newViews(c, generators{newMCPGenerator()})
		vs.open(time.Now())
		rs := must(newRules(Access{Views: []View{viewOf("shop", "shop")}, Authorization: []AuthorizationRule{{Name: "r", Listeners: []string{"a"}, View: "shop", Selection: "x"}}}, []Listener{{Address: "a"}}))
		rule := must(rs.authorize(Listener{Address: "a"}, client{}, identity.Identity{}))
		seen := func(claims client) map[string]bool {
			out := map[string]bool{}
			v := must(vs.admit(t.Context(), variantOf(rule, claims), viewer{delta: true}))
			for _, p := range v.snapshot(typeSE).Pages {
				for _, e := range p.Entries {
					out[e.Item.FullName()] = true
				}
			}
			vs.release(v, viewer{delta: true})
			return out
		}
		honest := seen(client{})
		for range 5 {
			claims := client{clusterID: pick("", "east", "west", "north", "nowhere"), revision: pick("", "blue", "green", "none")}
			for name := range seen(claims) {
				if !honest[name] || !strings.HasPrefix(name, "shop/") {
					t.Fatalf("with %+v a client sees %s", claims, name)
				}
			}
		}
	}
}

// TestWhoamiTellsAClientAboutItselfAlone: with and without an authorization, in both protocols.
func TestWhoamiTellsAClientAboutItselfAlone(t *testing.T) {
	g := startGuarded(t, true, []View{viewOf("shop", "shop"), viewOf("secret-view", "bank")}, []AuthorizationRule{
		{Name: "shops", Identities: []string{account("shop", "*")}, View: "shop"},
		{Name: "secret-rule", Identities: []string{account("bank", "*")}, View: "secret-view"},
	})
	g.put(se("bank", "secret", "x"))
	g.open(seV1, g.as("bank", "secret-account")).next()
	d := g.open(WhoamiType, g.as("shop", "web"))
	resp := d.next()
	var w Whoami
	if err := json.Unmarshal(resp.Resources[0].Resource.Value, &w); err != nil {
		t.Fatal(err)
	}
	if w.Identities[0] != account("shop", "web") || w.Namespace != "shop" || w.ServiceAccount != "web" || w.Rule != "shops" || w.View != "shop" || w.Listener != verifying || w.Debug || w.Expires.IsZero() {
		t.Errorf("the client is told %+v", w)
	}
	if strings.Contains(resp.String(), "secret") {
		t.Errorf("the client is told of others: %v", resp)
	}
	bare := startRelay(t, true)
	s := bare.sotw()
	s.send(&discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: WhoamiType})
	if got := string(s.next().Resources[0].Value); !strings.HasPrefix(got, `{"identities":[],"address":"127.0.0.1:`) || !strings.HasSuffix(got, `,"listener":"127.0.0.1:0","debug":false}`) {
		t.Errorf("without anything proven: %s", got)
	}
}

func TestPreviewCountsWhatARuleOpensAndCloses(t *testing.T) {
	views := []View{viewOf("both", "shop", "bank"), viewOf("shop", "shop"), viewOf("till", "till")}
	rule := func(name, view string, accounts ...string) AuthorizationRule {
		a := AuthorizationRule{Name: name, View: view, Selection: view}
		for _, one := range accounts {
			a.Identities = append(a.Identities, account("shop", one))
		}
		return a
	}
	g := startGuarded(t, true, views, []AuthorizationRule{rule("one", "both", "stays", "narrows", "swaps", "ends", "renamed")})
	g.put(se("shop", "a", "1"), se("bank", "b", "1"), se("bank", "c", "1"), se("till", "d", "1"), dr("till", "d", "1"))
	for i, name := range []string{"stays", "narrows", "swaps", "ends", "renamed"} {
		g.open(seV1, g.as("shop", name)).next()
		g.eventually(t, "it is there", func() bool { return len(g.server.Clients()) == i+1 })
	}
	changes, err := g.server.Preview(t.Context(), Access{Views: views, Authorization: []AuthorizationRule{rule("one", "both", "stays"), rule("two", "shop", "narrows"), rule("three", "till", "swaps"), rule("four", "both", "renamed")}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range changes {
		refused := ""
		if c.Refused != "" {
			refused = " refused"
		}
		got[strings.TrimPrefix(c.Identity, account("shop", ""))] = fmt.Sprintf("%s/%s > %s/%s +%d -%d%s", c.OldRule, c.OldView, c.NewRule, c.NewView, c.Gained, c.Lost, refused)
	}
	want := map[string]string{
		"narrows": "one/both > two/shop +0 -2", "swaps": "one/both > three/till +2 -3", "ends": "one/both > / +0 -3 refused", "renamed": "one/both > four/both +0 -0",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(g.server.Clients()) != 5 {
		t.Error("a preview has ended streams")
	}
}

func TestWrongRulesAreErrorsThatNameThem(t *testing.T) {
	listener := []Listener{{Address: "a"}}
	for want, tc := range map[string]struct {
		views     []View
		listeners []Listener
		rules     []AuthorizationRule
	}{
		`"r": there is no view "v"`:        {nil, listener, []AuthorizationRule{{Name: "r", View: "v", Listeners: []string{"a"}}}},
		`"r": there is no view ""`:         {[]View{{Name: "v"}}, listener, []AuthorizationRule{{Name: "r", Listeners: []string{"a"}}}},
		`"r": there is no listener b`:      {nil, listener, []AuthorizationRule{{Name: "r", Listeners: []string{"b"}}}},
		`neither identities nor listeners`: {nil, listener, []AuthorizationRule{{Name: "r"}}},
		`"r": identity: "x" is a bare`:     {nil, listener, []AuthorizationRule{{Name: "r", Identities: []string{"x"}}}},
		`rules need names that differ`:     {nil, listener, []AuthorizationRule{{Name: "r", Listeners: []string{"a"}}, {Name: "r", Listeners: []string{"a"}}}},
		`view v: the rules`:                {[]View{{Name: "v", Default: true}}, listener, []AuthorizationRule{{Name: "r", Listeners: []string{"a"}, View: "v"}}},
		`listener a: the rules`:            {[]View{{Name: "v"}}, []Listener{{Address: "a", View: "v"}}, []AuthorizationRule{{Name: "r", Listeners: []string{"a"}, View: "v"}}},
	} {
		if _, err := newRules(Access{Views: tc.views, Authorization: tc.rules}, tc.listeners); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
