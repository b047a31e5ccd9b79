package filter

import (
	"math/rand/v2"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// names has every name of up to four labels that are a or b. Patterns in the tests have two labels at most.
var names = func() (all []string) {
	last := []string{""}
	for range 4 {
		var next []string
		for _, n := range last {
			for _, label := range []string{"a", "b"} {
				next = append(next, strings.TrimPrefix(n+"."+label, "."))
			}
		}
		all, last = append(all, next...), next
	}
	return all
}()

// has tells of one name whether a host or pattern means it, by the rule of Istio (host.Name.SubsetOf).
func has(pattern, name string) bool {
	if end, wild := strings.CutPrefix(pattern, "*"); wild {
		return strings.HasSuffix(name, end)
	}
	return pattern == name
}

func compare(t *testing.T, patterns []string, host string) {
	t.Helper()
	var mistakes federation.Mistakes
	p := newHostPatterns(patterns, "x", &mistakes) // some patterns cover others, which is a mistake in a config only
	within, some := false, false
	for _, pattern := range patterns {
		all, any := true, false
		for _, n := range names {
			if has(host, n) {
				all, any = all && has(pattern, n), any || has(pattern, n)
			}
		}
		within, some = within || all, some || any
	}
	if got := p.covers(host); (got != "") != within {
		t.Errorf("%q covers %q by %q, want %v", patterns, host, got, within)
	}
	if got := p.overlaps(host); (got != "") != some {
		t.Errorf("%q overlaps %q by %q, want %v", patterns, host, got, some)
	}
}

// TestHostsAreComparedAsIstioDoes, on every name there is: a host is covered if one pattern has all its names.
func TestHostsAreComparedAsIstioDoes(t *testing.T) {
	hosts := []string{"*", "a", "b", "a.b", "b.a", "a.a", "*.a", "*.b", "*.a.b", "*.b.b", "*.b.a"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		patterns := make([]string, 1+r.IntN(4))
		for i := range patterns {
			patterns[i] = hosts[r.IntN(len(hosts))]
		}
		compare(t, patterns, hosts[r.IntN(len(hosts))])
	}
	// A host may be a wildcard within a label, which no pattern is.
	for _, tc := range []struct {
		pattern, host       string
		covered, overlapped bool
	}{
		{"*.a.b", "*x.a.b", true, true},
		{"x.a.b", "*x.a.b", false, true},
		{"y.a.b", "*x.a.b", false, false},
		{"*.x.a.b", "*x.a.b", false, true},
		{"*.a", "a", false, false},
	} {
		var mistakes federation.Mistakes
		p := newHostPatterns([]string{tc.pattern}, "x", &mistakes)
		if p.covers(tc.host) != "" != tc.covered || p.overlaps(tc.host) != "" != tc.overlapped {
			t.Errorf("%s and %s: %q %q", tc.pattern, tc.host, p.covers(tc.host), p.overlaps(tc.host))
		}
	}
}

func FuzzHosts(f *testing.F) {
	f.Add("*.a b", "a.a")
	f.Fuzz(func(t *testing.T, patterns, host string) {
		for _, text := range append(strings.Fields(patterns), host) {
			if name := strings.TrimPrefix(text, "*."); strings.Trim(name, "ab.") != "" || strings.Count(name, ".") > 1 || checkHostPattern(text) != nil {
				return
			}
		}
		compare(t, strings.Fields(patterns), host)
	})
}

func TestAResourcePassesIfAllItsHostsDo(t *testing.T) {
	entry := func(hosts ...string) item {
		return item{kind: federation.ServiceEntry, namespace: "shop", name: "a", body: &networking.ServiceEntry{Hosts: hosts}}
	}
	for _, tc := range []struct {
		hosts Hosts
		item  item
		want  string // the sentence; empty if it passes
	}{
		{Hosts{Include: []string{"*.Team.example", "x.y"}}, entry("a.team.EXAMPLE", "X.Y.", "*.b.team.example"), ""},
		{Hosts{Include: []string{"*.team.example"}}, entry("a.team.example", "team.example"), `it claims host "team.example", which hosts.include does not cover: "*.team.example"`},
		{Hosts{Include: []string{"*.team.example"}}, entry("*.example"), `it claims host "*.example", which hosts.include does not cover: "*.team.example"`},
		{Hosts{Exclude: []string{"*.Secret.example"}}, entry("*.example"), `it claims host "*.example", and hosts.exclude has "*.Secret.example"`},
		{Hosts{Include: []string{"*.example"}, Exclude: []string{"pay.example"}}, entry("a.example", "pay.example."), `it claims host "pay.example", and hosts.exclude has "pay.example"`},
		{Hosts{Include: []string{"*.svc.mesh.local"}}, item{kind: federation.DestinationRule, namespace: "shop", name: "a", body: &networking.DestinationRule{Host: "web"}}, ""},
		{Hosts{Exclude: []string{"web.shop.svc.mesh.local"}}, item{kind: federation.VirtualService, namespace: "shop", name: "a", body: &networking.VirtualService{Hosts: []string{"web"}}}, `it claims host "web.shop.svc.mesh.local", and hosts.exclude has "web.shop.svc.mesh.local"`},
		{Hosts{Include: []string{"*.team.example"}}, item{kind: networkingKind("WorkloadEntry"), namespace: "shop", name: "a", body: &networking.WorkloadEntry{}}, ""},
		{Hosts{Include: []string{"*.team.example"}}, item{kind: networkingKind("Gateway"), namespace: "shop", name: "a", body: &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"./a.team.example", "*/*"}}}}}, `it claims host "*", which hosts.include does not cover: "*.team.example"`},
	} {
		f, err := New(Rules{Hosts: tc.hosts, Domain: "mesh.local"})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Check(tc.item.build(t)); got.Sentence() != tc.want || got.Passes() != (tc.want == "") {
			t.Errorf("%+v: %s: %s, want %s", tc.hosts, got.Reason, got.Sentence(), tc.want)
		}
	}
}

// TestATextThatIsNoNameMayBeAnyHost: istiods, Envoy and relays each cut such texts in another way.
func TestATextThatIsNoNameMayBeAnyHost(t *testing.T) {
	gateway := func(host string) item {
		return item{kind: networkingKind("Gateway"), namespace: "shop", name: "a", body: &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{host}}}}}
	}
	include, exclude := Hosts{Include: []string{"*.team.example"}}, Hosts{Exclude: []string{"pay.example"}}
	for _, host := range []string{"./pay.example/x.team.example", "*/*/x.team.example", "~/pay.example", "pay.*", "pay.example:443", "pay.example\x00.team.example", "", "m\u00fcnchen.example"} {
		for _, hosts := range []Hosts{include, exclude} {
			f, err := New(Rules{Hosts: hosts, Domain: "mesh.local"})
			if err != nil {
				t.Fatal(err)
			}
			if f.Check(gateway(host).build(t)).Passes() {
				t.Errorf("%q passes %+v", host, hosts)
			}
		}
	}
	for _, host := range []string{"192.0.2.1", "2001:db8::1", "a_b.example", "*-x.example"} {
		f, err := New(Rules{Hosts: exclude, Domain: "mesh.local"})
		if err != nil {
			t.Fatal(err)
		}
		if v := f.Check(gateway(host).build(t)); !v.Passes() {
			t.Errorf("%q: %s", host, v.Sentence())
		}
	}
}

// TestHostsOfAResourceCostALookUpForEachLabel: many patterns make a check no slower.
func TestHostsOfAResourceCostALookUpForEachLabel(t *testing.T) {
	var hosts Hosts
	for _, label := range []string{"x", "y"} {
		for range 4000 {
			hosts.Exclude = append(hosts.Exclude, label+strings.Repeat("z", len(hosts.Exclude)%60)+"."+strings.Repeat("q", len(hosts.Exclude)/60+1)+".example")
		}
	}
	f, err := New(Rules{Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() { _ = f.exclude.overlaps("*.a.example") }); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

// TestProfilesAreClosedLists: a new kind needs a decision, and until then the profile all.
func TestProfilesAreClosedLists(t *testing.T) {
	for profile, want := range map[string]string{
		ProfileServices: "WorkloadGroup WorkloadEntry ServiceEntry DestinationRule",
		ProfileRouting:  "WorkloadGroup WorkloadEntry ServiceEntry DestinationRule Sidecar networking.istio.io/Gateway VirtualService HTTPRoute GRPCRoute TCPRoute TLSRoute UDPRoute",
	} {
		f, err := New(Rules{Profile: profile})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, info := range mirror.Kinds() {
			name := info.Kind.Kind
			if name == "Gateway" {
				name = info.Kind.String()
			}
			if f.PassesKind(info.Kind) {
				got = append(got, name)
			}
		}
		if s := strings.Join(got, " "); s != want || f.PassesKind(mirror.Kind{Group: "example.com", Kind: "Widget"}) {
			t.Errorf("%s has %s", profile, s)
		}
	}
}

// TestRulesThatCanNotMatchAreMistakes, and those that another one makes pointless.
func TestRulesThatCanNotMatchAreMistakes(t *testing.T) {
	for _, tc := range []struct {
		rules Rules
		want  string // begin of the error; empty if there is none
	}{
		{Rules{Profile: "most"}, `profile: "most": want one of services, routing, all`},
		{Rules{RootNamespace: "x"}, "rootNamespace: only profile services and routing"},
		{Rules{Profile: ProfileAll, RootNamespace: "x"}, "rootNamespace: only"},
		{Rules{Profile: ProfileServices, Kinds: []string{"se", "vs"}}, `kinds[1]: profile services does not have "vs"`},
		{Rules{Profile: ProfileRouting, Kinds: []string{"gateways"}}, ""},
		{Rules{Profile: ProfileServices, RootNamespace: "x", Namespaces: Globs{Include: []string{"a", "x"}}}, "namespaces.include[1]: it is rootNamespace"},
		{Rules{Hosts: Hosts{Include: []string{"a.b", "*.b"}}}, `hosts.include[0]: "*.b" has all hosts of "a.b"`},
		{Rules{Hosts: Hosts{Include: []string{"*.b", "*.a.b"}}}, `hosts.include[1]: "*.b" has all hosts of "*.a.b"`},
		{Rules{Hosts: Hosts{Include: []string{"*", "a"}}}, `hosts.include[1]: "*" has all hosts of "a"`},
		{Rules{Hosts: Hosts{Include: []string{"a.b", "A.b"}}}, `hosts.include[1]: "A.b" is there already, as "a.b"`},
		{Rules{Hosts: Hosts{Include: []string{"a.b", "b", "*.c"}}}, ""},
		{Rules{Hosts: Hosts{Include: []string{"*.a.b", "c"}, Exclude: []string{"*.b", "c"}}}, "hosts.exclude: it excludes every host"},
		{Rules{Hosts: Hosts{Exclude: []string{"*"}}}, "hosts.exclude: it excludes every host"},
		{Rules{Hosts: Hosts{Include: []string{"*.a"}, Exclude: []string{"x.a", "x.b"}}}, `hosts.exclude[1]: "x.b" excludes nothing`},
		{Rules{Hosts: Hosts{Include: []string{"x.a"}, Exclude: []string{"*.b"}}}, `hosts.exclude[0]: "*.b" excludes nothing`},
		{Rules{Hosts: Hosts{Include: []string{"*x.a"}}}, `hosts.include[0]: pattern "*x.a": want a DNS name`},
		{Rules{Hosts: Hosts{Include: []string{"a..b"}}}, `hosts.include[0]: pattern "a..b"`},
		{Rules{Hosts: Hosts{Include: []string{""}}}, "hosts.include[0]: the pattern is empty"},
		{Rules{Hosts: Hosts{Exclude: []string{"*."}}}, `hosts.exclude[0]: pattern "*."`},
	} {
		_, err := New(tc.rules)
		if text := strings.TrimPrefix(errorText(err), "1 error occurred:\n\t* "); tc.want == "" && err != nil || !strings.HasPrefix(text, tc.want) {
			t.Errorf("%+v: %s, want %s", tc.rules, text, tc.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
