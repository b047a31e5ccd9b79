package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/identity"
)

// guarded has the listeners a, for all certificates, b, for SPIFFE IDs of two trust domains, and c, in plaintext.
// Line 3 has a, line 4 has b, line 5 has c, and what follows begins in line 9.
const guarded = `downstream:
  listeners:
  - {address: "127.0.0.1:1", tls: {certFile: c, keyFile: k, clientCAFile: ca}}
  - {address: "127.0.0.1:2", tls: {certFile: c, keyFile: k, clientCAs: [{trustDomain: x, file: f}, {trustDomain: y, file: f}]}}
  - {address: "127.0.0.1:3", plaintext: true, debug: off}
upstreams:
- name: east
  file: {path: p}
`

const threeViews = "views: [{name: v}, {name: w, kinds: [se, dr]}]\n"

// rulesOf returns a config with rules, one a line from line 11 on.
func rulesOf(views string, rules ...string) string {
	return guarded + views + "authorization:\n- " + strings.Join(rules, "\n- ") + "\n"
}

// TestAnAuthorizationWithoutRulesIsAMistake: also where all rules are comments. Without the word, everybody is let in.
func TestAnAuthorizationWithoutRulesIsAMistake(t *testing.T) {
	for none, why := range map[string]string{" []": "empty: leave it out", " null": "no value", "\n# - {name: a}": "no value"} {
		wantMistakes(t, listenerOf(`address: "127.0.0.1:1", plaintext: true`, "authorization:"+none+"\n"), []string{"7: authorization: " + why})
	}
}

func TestARuleMustLetInSomebody(t *testing.T) {
	const last = `{name: z, listeners: ["127.0.0.1:3"], view: v}`
	w := `{name: w, identities: ["spiffe://x/w"], view: w}`
	for name, tc := range map[string]struct {
		rules []string
		want  []string
	}{
		"all is well": {[]string{w, last}, nil},
		"a rule for each kind of client": {[]string{
			w, `{name: a, identities: ["spiffe://x/a", "spiffe://*/ns/*/sa/b", "dns:a.example"], view: v}`,
			`{name: b, identities: ["spiffe://y/**"], listeners: ["127.0.0.1:2"], view: v, kinds: [se], namespaces: {include: [a], exclude: [b]}}`,
			`{name: c, listeners: ["127.0.0.1:1"], view: v, debug: true}`, last}, nil},
		"no rules are empty": {[]string{w, `{name: a, view: v}`},
			[]string{`12: authorization[1]: it has neither identities nor listeners: name the clients of rule "a"`}},
		"names": {[]string{w, `{name: w, identities: ["dns:a"], view: v}`, `{name: A, identities: ["dns:b"], view: v}`},
			[]string{`12: authorization[1].name: "w" is the name of authorization[0] already`, `13: authorization[2].name: "A" is not a name`}},
		"an unknown listener": {[]string{w, `{name: a, listeners: ["127.0.0.1:9"], view: v}`},
			[]string{`12: authorization[1].listeners[0]: no listener has the address "127.0.0.1:9": write it as in downstream.listeners`}},
		"empty lists": {[]string{w, `{name: a, identities: [], listeners: ["127.0.0.1:3"], view: v, kinds: [], namespaces: {include: []}}`},
			[]string{`12: authorization[1].identities: empty`, `12: authorization[1].kinds: empty`, `12: authorization[1].namespaces.include: empty`}},
		"views": {[]string{w, `{name: a, identities: ["dns:a"], view: nope}`, `{name: b, identities: ["dns:b"]}`, last},
			[]string{`12: authorization[1].view: there is no view "nope"`, `13: authorization[2].view: missing: name the view of the clients of rule "b"`}},
		"kinds that the view does not show": {[]string{`{name: w, identities: ["spiffe://x/w"], view: w, kinds: [se, vs, nope]}`, last},
			[]string{`11: authorization[0].kinds[2]: unknown kind`, `11: authorization[0].kinds[1]: the view "w" does not show vs, and a rule only narrows its view`}},
		"patterns": {[]string{w, `{name: a, identities: ["relay.example", "dns:"], view: v}`},
			[]string{`12: authorization[1].identities[0]: "relay.example" is a bare name: write "dns:relay.example"`, `12: authorization[1].identities[1]: "dns:" matches nothing`}},
		"identities that nobody can prove": {[]string{
			w, `{name: a, identities: ["dns:a"], listeners: ["127.0.0.1:2"], view: v}`, `{name: b, identities: ["spiffe://z/b"], listeners: ["127.0.0.1:2"], view: v}`,
			`{name: c, identities: ["spiffe://x/c"], listeners: ["127.0.0.1:3"], view: v}`, last,
		}, []string{
			`12: authorization[1].identities[0]: "dns:a" matches nobody: only certificates of tls.clientCAFile have DNS names`,
			`13: authorization[2].identities[0]: "spiffe://z/b" matches nobody: no listener of this rule has client CAs for its trust domain`,
			`14: authorization[3].identities[0]: "spiffe://x/c" matches nobody: no listener of this rule verifies identities`,
		}},
		"a listener that can not verify its identities": {[]string{w, `{name: a, identities: ["dns:a"], listeners: ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], view: v}`},
			[]string{`12: authorization[1].listeners[1]: no client of 127.0.0.1:2 can prove one of these identities`, `12: authorization[1].listeners[2]: `}},
		"after one with wildcards": {[]string{`{name: w, identities: ["spiffe://x/**"], view: w}`, `{name: a, identities: ["spiffe://x/a", "spiffe://x/ns/*"], view: v}`},
			[]string{`12: authorization[1]: rule "a" lets in nobody: authorization[0] (w) before it fit all of its clients`}},
		"after several together": {[]string{w, `{name: a, identities: ["spiffe://x/a/**"], view: v}`, `{name: b, identities: ["spiffe://x/w", "spiffe://x/a/b"], view: v}`},
			[]string{`13: authorization[2]: rule "b" lets in nobody: authorization[0] (w), authorization[1] (a) before it`}},
		"after one that has less": {[]string{w, `{name: a, identities: ["spiffe://x/w", "spiffe://x/a"], view: v}`}, nil},
		"after one of another listener": {[]string{
			w, `{name: a, identities: ["spiffe://x/**"], listeners: ["127.0.0.1:1"], view: v}`, `{name: b, identities: ["spiffe://x/b"], view: v}`}, nil},
		"after one of each listener": {[]string{
			w, `{name: a, identities: ["spiffe://x/**"], listeners: ["127.0.0.1:1"], view: v}`, `{name: b, listeners: ["127.0.0.1:2"], view: v}`, `{name: c, identities: ["spiffe://x/c"], view: v}`},
			[]string{`14: authorization[3]: rule "c" lets in nobody: authorization[1] (a), authorization[2] (b) before it`}},
		"after one where it can be proven": {[]string{
			w, `{name: a, identities: ["dns:*"], listeners: ["127.0.0.1:1"], view: v}`, `{name: b, identities: ["dns:b"], view: v}`},
			[]string{`13: authorization[2]: rule "b" lets in nobody`}},
		"after everybody of the listener": {[]string{w, last, `{name: a, listeners: ["127.0.0.1:3"], view: v}`},
			[]string{`13: authorization[2]: rule "a" lets in nobody: authorization[1] (z)`}},
		"everybody after some": {[]string{w, `{name: a, identities: ["spiffe://*/**", "dns:*"], listeners: ["127.0.0.1:1"], view: v}`, `{name: b, listeners: ["127.0.0.1:1"], view: v}`}, nil},
		"debug that nobody gets": {[]string{
			`{name: w, identities: ["spiffe://x/w"], view: w, debug: true}`, `{name: a, identities: ["spiffe://x/a"], view: v, namespaces: {exclude: [a]}, debug: true}`,
			`{name: b, listeners: ["127.0.0.1:3"], view: v, debug: true}`},
			[]string{`11: authorization[0].debug: debug documents show everything`, `12: authorization[1].debug: debug documents show everything`, `13: authorization[2].debug: every listener of rule "b" has debug: off`}},
	} {
		t.Run(name, func(t *testing.T) {
			in := rulesOf(threeViews, tc.rules...)
			if tc.want != nil {
				wantMistakes(t, in, tc.want)
			} else if _, err := parse("relay.yaml", []byte(in)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWithRulesNothingElseChoosesAView: neither views, nor listeners, nor the permission for any identity.
func TestWithRulesNothingElseChoosesAView(t *testing.T) {
	wantMistakes(t, strings.Replace(strings.Replace(rulesOf(
		"views: [{name: v, match: {clusterIDs: [c]}}, {name: w, default: true}, {name: x}]\n",
		`{name: a, identities: ["dns:a"], view: v}`, `{name: b, identities: ["dns:b"], view: w}`),
		"plaintext: true", "plaintext: true, view: v", 1),
		"clientCAFile: ca}", "clientCAFile: ca}, allowAnyIdentity: true", 1),
		[]string{
			`3: downstream.listeners[0].allowAnyIdentity: with authorization its rules decide which identities get in`,
			`5: downstream.listeners[2].view: with authorization its rules choose the view of a client: leave this out, and add a rule with listeners: ["127.0.0.1:3"] and view: v`,
			`9: views[0].match: with authorization its rules choose the view of a client`, `9: views[1].default: with authorization`, `9: views[2]: no client can get this view: no rule of authorization names it`,
		})
	wantMistakes(t, guarded+"authorization: []\n", []string{`9: authorization: empty: leave it out`})
	// Without views, a rule may show everything.
	if _, err := parse("relay.yaml", []byte(rulesOf("", `{name: a, identities: ["dns:a"]}`, `{name: b, identities: ["dns:b"], kinds: [se]}`))); err != nil {
		t.Error(err)
	}
	// A listener with TLS alone still needs allowAnonymous.
	wantMistakes(t, strings.Replace(rulesOf("", `{name: a, identities: ["dns:a"]}`), "plaintext: true", "tls: {certFile: c, keyFile: k}", 1),
		[]string{"5: downstream.listeners[2].tls: clients need no certificate"})
}

func TestAListenerWithoutARuleForAnonymousClientsIsAWarning(t *testing.T) {
	for rule, want := range map[string]bool{
		`{name: a, identities: ["dns:a"]}`:         true,
		`{name: a, listeners: ["127.0.0.1:1"]}`:    true,
		`{name: a, listeners: ["127.0.0.1:3"]}`:    false,
		`{name: a, identities: ["spiffe://*/**"]}`: true,
	} {
		c, err := parse("relay.yaml", []byte(rulesOf("", rule)))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Join(c.Warnings(), "\n")
		if got := strings.Contains(lines, `downstream.listeners[2] (127.0.0.1:3): clients without an identity are refused`); got != want || !want && lines != "" {
			t.Errorf("%s: %q", rule, lines)
		}
	}
}

func TestRulesAreBounded(t *testing.T) {
	var many, ids []string
	for i := range 1001 {
		many = append(many, fmt.Sprintf(`{name: r-%d, identities: ["dns:a%d"]}`, i, i))
		ids = append(ids, fmt.Sprintf(`"dns:a%d"`, i))
	}
	if _, err := parse("relay.yaml", []byte(rulesOf("", many[:1000]...))); err != nil {
		t.Error(err)
	}
	wantMistakes(t, rulesOf("", many...), []string{"9: authorization: 1001 rules: at most 1000 are allowed"})
	wantMistakes(t, rulesOf("", "{name: a, identities: ["+strings.Join(ids[:101], ", ")+"]}"), []string{"10: authorization[0].identities: 101 identities: at most 100 are allowed"})
}

// TestNoClientOfAPointlessRuleGetsPastTheRulesBeforeIt: what validate calls pointless is, for every identity and
// listener of a small world; and what it does not call so lets in one of them, or a client of the world's rest.
func TestNoClientOfAPointlessRuleGetsPastTheRulesBeforeIt(t *testing.T) {
	patterns := []string{"dns:a", "dns:b", "dns:*", "dns:?", "spiffe://x/a", "spiffe://x/*", "spiffe://x/**", "spiffe://y/a", "spiffe://*/a"}
	identities := []string{"dns:a", "dns:b", "dns:c", "dns:cc", "spiffe://x/a", "spiffe://x/b", "spiffe://x/a/b", "spiffe://y/a", "spiffe://y/b", "spiffe://z/a"}
	listeners := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	proven := func(id, listener string) bool {
		return listener == listeners[0] || listener == listeners[1] && (strings.HasPrefix(id, "spiffe://x/") || strings.HasPrefix(id, "spiffe://y/"))
	}
	fits := func(r config.AuthorizationRule, id, listener string) bool {
		return (len(r.Listeners) == 0 || slices.Contains(r.Listeners, listener)) && (len(r.Identities) == 0 || slices.ContainsFunc(r.Identities, func(text string) bool {
			p, err := identity.Parse(text)
			return err == nil && p.Matches(id)
		}))
	}
	pointless, state := 0, uint32(1)
	next := func(n int) int { state = state*1664525 + 1013904223; return int(state>>8) % n }
	for range 500 {
		var rules []config.AuthorizationRule
		var texts []string
		for i := range 3 {
			r := config.AuthorizationRule{Name: fmt.Sprint("r", i)}
			for range next(3) {
				r.Identities = append(r.Identities, patterns[next(len(patterns))])
			}
			if len(r.Identities) == 0 || next(2) == 0 {
				r.Listeners = []string{listeners[next(3)]}
			}
			rules = append(rules, r)
			text := fmt.Sprintf("{name: r%d", i)
			if len(r.Identities) > 0 {
				text += `, identities: ["` + strings.Join(r.Identities, `", "`) + `"]`
			}
			if len(r.Listeners) > 0 {
				text += `, listeners: ["` + strings.Join(r.Listeners, `", "`) + `"]`
			}
			texts = append(texts, text+"}")
		}
		_, err := parse("relay.yaml", []byte(rulesOf("", texts...)))
		if err != nil && strings.Contains(err.Error(), "matches nobody") || err != nil && strings.Contains(err.Error(), "can prove one of") {
			continue
		}
		for i, r := range rules {
			gets := false
			for _, l := range listeners {
				for _, id := range append(identities, "") {
					if (id == "" || proven(id, l)) && fits(r, id, l) && !slices.ContainsFunc(rules[:i], func(o config.AuthorizationRule) bool { return fits(o, id, l) }) {
						gets = true
					}
				}
			}
			called := err != nil && strings.Contains(err.Error(), fmt.Sprintf(`rule "r%d" lets in nobody`, i))
			if called {
				pointless++
			}
			if called == gets {
				t.Fatalf("rule %d of\n%s\nlets in somebody: %t; validate: %v", i, strings.Join(texts, "\n"), gets, err)
			}
		}
	}
	if pointless < 100 {
		t.Errorf("only %d rules were pointless", pointless)
	}
}
