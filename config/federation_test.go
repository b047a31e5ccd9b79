package config_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"

	"meshrelay/config"
	"meshrelay/federation/rewrite"
)

const withUpstream = `downstream:
  listeners:
  - {address: "127.0.0.1:15010", plaintext: true}
upstreams:
- name: east
  xds: {addresses: ["istiod.east:15012"], tls: {}}
`

func TestBadRulesAreErrorsWithTheirLine(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"expression that does not type-check", "  import:\n    expression: spec.hosts + 1\n", []string{
			"8: upstreams[0].import.expression: "}},
		{"expression that is no condition", "  import: {expression: name}\n", []string{
			"7: upstreams[0].import.expression: its result is string, want bool"}},
		{"expression with an unknown name", "  import: {expression: \"nmae == 'a'\"}\n", []string{
			"7: upstreams[0].import.expression: line 1, column 1: undeclared reference to 'nmae'"}},
		{"selector", "  import:\n    selector: tier in\n", []string{"8: upstreams[0].import.selector: "}},
		{"profile", "  import: {profile: some}\n", []string{`7: upstreams[0].import.profile: "some": want one of services, routing, all`}},
		{"kinds out of the profile", "  import:\n    profile: services\n    kinds: [se, vs]\n", []string{`9: upstreams[0].import.kinds[1]: profile services does not have "vs"`}},
		{"root namespace of no profile", "  import:\n    rootNamespace: x\n", []string{"8: upstreams[0].import.rootNamespace: only profile services and routing"}},
		{"hosts that let nothing in", "  import:\n    hosts:\n      include: [a.b, \"*.c\"]\n      exclude: [\"*.b\", \"*.c\"]\n", []string{"10: upstreams[0].import.hosts.exclude: it excludes every host that is included"}},
		{"a host that another one covers", "  import:\n    hosts:\n      include:\n      - \"*.b\"\n      - a.b\n", []string{`11: upstreams[0].import.hosts.include[1]: "*.b" has all hosts of "a.b"`}},
		{"no hosts", "  import: {hosts: {include: []}}\n", []string{"7: upstreams[0].import.hosts.include: empty"}},
		{"identities of servers", "  import:\n    requireVia: [relay.example, \"dns:a\", \"dns:a\"]\n", []string{
			`8: upstreams[0].import.requireVia[0]: "relay.example" is a bare name: write "dns:relay.example"`, `8: upstreams[0].import.requireVia[2]: "dns:a" is there already`}},
		{"unknown kind, and a pattern that is none", "  import:\n    kinds: [se, servicentry]\n    namespaces:\n      include: [Team]\n", []string{
			`8: upstreams[0].import.kinds[1]: unknown kind "servicentry"`,
			`10: upstreams[0].import.namespaces.include[0]: pattern "Team"`}},
		{"two namespaces become one", "  rewrite:\n    namespaces:\n      a: x\n      b: x\n", []string{
			`10: upstreams[0].rewrite.namespaces[b]: "a" and "b" both become "x"`}},
		{"a namespace becomes one that is imported, too", "  import: {namespaces: {include: [a, b]}}\n  rewrite:\n    namespaces: {a: b}\n", []string{
			`9: upstreams[0].rewrite.namespaces[a]: "a" and "b", which is not mapped, both become "b"`}},
		{"a namespace becomes one with the prefix", "  import: {namespaces: {include: [a, b]}}\n  rewrite:\n    namespacePrefix: east-\n    namespaces: {a: east-b}\n", []string{
			`10: upstreams[0].rewrite.namespaces[a]: "a" and "b", which is not mapped, both become "east-b"`}},
		{"domains", "  rewrite:\n    hosts:\n      cluster.local: \"*.east\"\n      \"*\": east\n", []string{
			`9: upstreams[0].rewrite.hosts[cluster.local]: "*.east"`,
			`10: upstreams[0].rewrite.hosts[*]: "*"`}},
		{"prefix that makes no name", "  rewrite: {namePrefix: -a, namespacePrefix: A}\n", []string{
			"7: upstreams[0].rewrite.namespacePrefix: ", "7: upstreams[0].rewrite.namePrefix: "}},
		{"labels", "  rewrite:\n    labels:\n      set: {\"a b\": x, c: \"d e\"}\n", []string{
			"9: upstreams[0].rewrite.labels.set[a b]: ", "9: upstreams[0].rewrite.labels.set[c]: "}},
		{"services", "  services:\n    mode: gateway\n", []string{"7: upstreams[0].services.gateways: missing"}},
		{"services behind a gateway that would not know them", "  services: {mode: gateway, gateways: [10.0.0.1]}\n  rewrite: {namespacePrefix: east-}\n", []string{
			"7: upstreams[0].services.mode: a gateway routes by the service names of its own mesh"}},
		{"services behind a gateway, in a cluster domain that is mapped", "  domainSuffix: east.corp\n  services: {mode: gateway, gateways: [10.0.0.1]}\n  rewrite: {hosts: {corp: example}}\n", []string{
			"8: upstreams[0].services.mode: a gateway routes by the service names of its own mesh"}},
		{"short hosts", "  rewrite:\n    shortHosts: drop\n", []string{`8: upstreams[0].rewrite.shortHosts: "drop": want one of complete, keep`}},
		{"cluster domain", "  domainSuffix: .cluster.local\n  rewrite: {namePrefix: -a}\n", []string{
			`7: upstreams[0].domainSuffix: ".cluster.local" is not a DNS domain: write the part after NAME.NAMESPACE.svc.`, "8: upstreams[0].rewrite.namePrefix: "}},
		{"mode of services", "  services: {mode: all}\n", []string{`7: upstreams[0].services.mode: "all": want one of omit, asIs, gateway, discover`}},
		{"gateways of another mode", "  services: {mode: discover, gateways: [10.0.0.1]}\n", []string{`7: upstreams[0].services.gateways: only for mode: gateway, and the mode is "discover"`}},
		{"gateway address", "  services: {mode: gateway, gateways: [\"a:b\"]}\n", []string{`7: upstreams[0].services.gateways[0]: gateway "a:b": want an IP address or a DNS name`}},
		{"gateways that lead nowhere", "  services: {mode: gateway, gateways: [\"gw_east!\", 0.0.0.0]}\n", []string{
			"7: upstreams[0].services.gateways[0]: ", "7: upstreams[0].services.gateways[1]: "}},
		{"exportTo of nothing", "  rewrite: {exportTo: []}\n", []string{"7: upstreams[0].rewrite.exportTo: empty, which would export everything"}},
		{"services of files", "- {name: f, file: {path: x}, services: {mode: asIs}}\n", []string{`7: upstreams[1].services.mode: "asIs" is only for xds upstreams and API servers`}},
		{"services of API servers", "- {name: k, kubernetes: {cluster: {inCluster: true}}, services: {mode: asIs, pods: true, selector: a}}\n- name: l\n  kubernetes: {cluster: {inCluster: true}}\n  import: {kinds: [se]}\n  services: {mode: discover, selector: a in, pods: false}\n- name: m\n  kubernetes: {cluster: {inCluster: true}}\n  import: {kinds: [vs]}\n  services: {mode: gateway, gateways: [192.0.2.1], pods: false}\n", []string{
			`7: upstreams[1].services.mode: "asIs" passes on what an istiod tells`, "7: upstreams[1].services.pods: only for API servers with mode: discover",
			`11: upstreams[2].services.selector: "a in" is not a label selector`,
			"15: upstreams[3].services.mode: services become ServiceEntries, and import leaves those out", "15: upstreams[3].services.pods: only for API servers with mode: discover"}},
		{"labels of services that an istiod does not tell", "  services: {mode: discover, selector: a, pods: false}\n", []string{
			"7: upstreams[0].services.selector: only for the services of API servers", "7: upstreams[0].services.pods: only for API servers with mode: discover"}},
		{"exports that an istiod does not tell", "  services: {mode: discover, only: exported}\n- {name: k, kubernetes: {cluster: {inCluster: true}}, services: {only: exported}}\n- {name: l, kubernetes: {cluster: {inCluster: true}}, services: {mode: discover, only: all}}\n", []string{
			"7: upstreams[0].services.only: only for the services of API servers in the modes gateway and discover: an istiod does not tell which services have a ServiceExport",
			"8: upstreams[1].services.only: only for the services of API servers", `9: upstreams[2].services.only: "all": want one of exported`}},
		{"HBONE of pods that are not read", "  services: {mode: discover, ambient: hbone}\n- {name: k, kubernetes: {cluster: {inCluster: true}}, services: {mode: discover, pods: false, ambient: hbone}}\n- {name: l, kubernetes: {cluster: {inCluster: true}}, services: {mode: discover, ambient: on}}\n", []string{
			"7: upstreams[0].services.ambient: only for API servers with mode: discover", "8: upstreams[1].services.ambient: only for API servers", `9: upstreams[2].services.ambient: "on": want one of hbone`}},
		{"merge", "merge:\n- {policy: oldest}\n- {kinds: [vs], policy: union}\n- {kinds: [vs, nonsense]}\n- {policy: newest}\n- {}\n", []string{
			`8: merge[0].policy: "oldest": want one of first, newest, reject, union, unionByHost`,
			"9: merge[1].kinds[0]: policy union is for networking.istio.io/ServiceEntry only",
			"10: merge[2].kinds[0]: merge[1] already names networking.istio.io/VirtualService",
			`10: merge[2].kinds[1]: unknown kind "nonsense"`,
			"12: merge[4]: merge[3] already applies to all other kinds"}},
		{"views that nobody can have", "views:\n- name: a\n- {name: b, match: {nodeIDs: [\"*\"]}}\n- {name: c, match: {clusterIDs: [x]}}\n- {name: d, match: {nodeIDs: [\"*\"]}}\n", []string{
			"8: views[0]: no client can get this view: it has no match, is not the default, and no listener names it",
			"10: views[2].match: no client can get this view: views[1] comes first and matches every client",
			"11: views[3].match: no client can get this view: views[1] comes first and matches every client"}},
		{"views that match the same", "views:\n- {name: a, match: {clusterIDs: [x]}}\n- {name: b, match: {clusterIDs: [x]}}\n", []string{
			"9: views[1].match: no client can get this view: an earlier view has the same match"}},
		{"views", "views:\n- {name: A, default: true, sources: [west], selector: \"a in\"}\n- {name: b, default: true, expression: \"1\", match: {nodeIDs: [\"\"]}}\n", []string{
			`8: views[0].name: "A"`, `8: views[0].selector: `, `8: views[0].sources[0]: there is no upstream "west"`,
			"9: views[1].expression: its result is int, want bool",
			"9: views[1].match.nodeIDs[0]: empty", "9: views[1].default: views[0] is the default already"}},
		{"provenance", "provenance: {relay: \"a b\"}\n", []string{`7: provenance.relay: "a b"`}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantMistakes(t, withUpstream+tc.in, tc.want) })
	}
}

// wantMistakes checks that each mistake begins as it should.
func wantMistakes(t *testing.T, in string, want []string) {
	t.Helper()
	_, err := parse("relay.yaml", []byte(in))
	var many *multierror.Error
	if !errors.As(err, &many) {
		t.Fatalf("error %v of\n%s\nwant the mistakes %q", err, in, want)
	}
	var got []string
	for i, e := range many.Errors {
		text := strings.TrimPrefix(e.Error(), "relay.yaml:")
		if i < len(want) && strings.HasPrefix(text, want[i]) && len(text) > len(want[i])-1 {
			text = want[i]
		}
		got = append(got, text)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestListenersNameViewsThatExist(t *testing.T) {
	in := strings.Replace(withUpstream, "plaintext: true}", "plaintext: true, view: west}", 1)
	wantMistakes(t, in, []string{`3: downstream.listeners[0].view: there is no view "west"`})
	wantMistakes(t, in+"views: [{name: west}, {name: other, default: true}]\n", []string{
		"7: views[1]: no client can get this view: every listener names another one"})
}

func TestRulesThatAreTaken(t *testing.T) {
	for name, in := range map[string]string{
		"two namespaces become one, of which one is not imported": "  import: {namespaces: {exclude: [b]}}\n  rewrite: {namespaces: {a: c, b: c}}\n",
		"a namespace becomes one that may or may not be there":    "  rewrite: {namespaces: {a: b}}\n",
		"namespaces that change places":                           "  rewrite: {namespaces: {a: b, b: a}}\n",
		"a namespace that is exempt from the prefix":              "  rewrite: {namespacePrefix: east-, namespaces: {a: a}, hosts: {cluster.local: east.example}}\n",
		"gateways beside the mapping of another cluster's domain": "  domainSuffix: east.corp\n  services: {mode: gateway, gateways: [10.0.0.1]}\n  rewrite: {hosts: {cluster.local: example}}\n",
		"a cluster domain and short hosts that are kept":          "  domainSuffix: east.corp\n  rewrite: {shortHosts: keep}\n",
		"gateways":                   "  services: {mode: gateway, gateways: [10.0.0.1, \"[2001:db8::1]:15443\", gw.example, \"2001:db8::2\"], network: net}\n",
		"annotations that are kept":  "  rewrite: {annotations: {remove: []}}\n",
		"policies":                   "merge: [{kinds: [se], policy: union}, {kinds: [vs]}, {policy: reject}]\n",
		"a view for all the others":  "views: [{name: a, match: {identities: [\"spiffe://*/**\"]}}, {name: b, default: true}]\n",
		"a view after that of nodes": "views: [{name: a, match: {nodeIDs: [\"*\"], clusterIDs: [x]}}, {name: b, match: {nodeIDs: [\"*\"]}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse("relay.yaml", []byte(withUpstream+in))
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.YAML()
			if err != nil {
				t.Fatal(err)
			}
			again, err := parse("relay.yaml", out)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if d := cmp.Diff(c, again); d != "" {
				t.Errorf("read back, the effective config differs:\n%s", d)
			}
		})
	}
}

func TestDefaultsOfRules(t *testing.T) {
	c, err := parse("relay.yaml", []byte(withUpstream+"  generated: keep\n- {name: f, generated: keep, file: {path: x}, rewrite: {annotations: {remove: []}}}\nnode: {id: hub}\nviews: [{name: a, default: true}, {name: b, match: {clusterIDs: [x]}}]\nmerge: [{kinds: [se]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	east, file := c.Upstreams[0], c.Upstreams[1]
	if east.Services.Mode != config.ServicesAsIs || file.Services.Mode != config.ServicesOmit {
		t.Errorf("services %q and %q", east.Services.Mode, file.Services.Mode)
	}
	if !slices.Equal(east.Rewrite.Annotations.Remove, []string{config.LastApplied}) || len(file.Rewrite.Annotations.Remove) != 0 {
		t.Errorf("annotations removed: %q and %q", east.Rewrite.Annotations.Remove, file.Rewrite.Annotations.Remove)
	}
	if c.Provenance != (config.Provenance{Relay: "hub"}) || c.Merge[0].Policy != "first" {
		t.Errorf("%+v %+v", c.Provenance, c.Merge)
	}
}

func TestShortHostsAreCompletedUnlessTheConfigSaysOtherwise_C23(t *testing.T) {
	c, err := parse("relay.yaml", []byte(withUpstream+"- {name: f, file: {path: x}}\n- {name: g, file: {path: x}, domainSuffix: east.corp, rewrite: {shortHosts: keep}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		domain   string
		complete bool
	}{{"cluster.local", true}, {"cluster.local", true}, {"east.corp", false}} {
		if got := c.Upstreams[i].RewriteRules(); got.Domain != want.domain || (got.ShortHosts == rewrite.ShortHostsComplete) != want.complete {
			t.Errorf("upstream %s: domain %q, short hosts %q; want %+v", c.Upstreams[i].Name, got.Domain, got.ShortHosts, want)
		}
	}
}
