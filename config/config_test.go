package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"
	"go.uber.org/goleak"

	"meshrelay/config"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/xds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const minimal = `upstreams:
- name: east
  xds:
    addresses: ["istiod.east:15012"]
    tls: {caFile: ca.pem}
downstream:
  listeners:
  - {address: "127.0.0.1:15010", plaintext: true}
`

// sources are the sections that an upstream can have in these tests.
func sources() []config.Source {
	return []config.Source{&xds.Config{}, &file.Config{}, &kubernetes.Config{}}
}

func parse(name string, data []byte) (*config.Config, error) {
	return config.Parse(name, data, sources()...)
}

func TestDefaultsAreFilledIn(t *testing.T) {
	c, err := parse("/etc/relay/relay.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	u := c.Upstreams[0]
	section := u.Source.(*xds.Config)
	if u.ClusterID != "east" || u.Generated != "drop" || section.Protocol != "auto" || section.ResyncInterval.D() != 5*time.Minute {
		t.Errorf("upstream defaults: %+v %+v", u, section)
	}
	if got := section.TLS.CAFile; got != "/etc/relay/ca.pem" {
		t.Errorf("a relative path is %q, want it beside the config file", got)
	}
	if c.Downstream.StartupTimeout.D() != 30*time.Second || c.Admin.Address != "127.0.0.1:15014" || c.Node.ID == "" || c.Node.IP == "" {
		t.Errorf("defaults: %+v", c)
	}
}

func TestEffectiveConfigReadsBack(t *testing.T) {
	c, err := parse("relay.yaml", []byte(minimal))
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
	out2, err := again.YAML()
	if err != nil || string(out) != string(out2) {
		t.Errorf("second reading differs (%v):\n%s\n%s", err, out, out2)
	}
}

func TestMistakesAreNamedWithFileAndLine(t *testing.T) {
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(minimal, old) {
			t.Fatalf("%q is not in the minimal config", old)
		}
		return strings.Replace(minimal, old, new, 1)
	}
	const xdsFields = "addresses, protocol, tls, tokenFile, token, plaintext, resyncInterval, partial, types"
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"empty file", "", []string{"1: the file is empty: write at least upstreams and downstream, see docs/configuration.md"}},
		{"comment only", "# nothing\n", []string{"1: the file is empty: write at least upstreams and downstream, see docs/configuration.md"}},
		{"null", "null\n", []string{"1: the file is empty: write at least upstreams and downstream, see docs/configuration.md"}},
		{"two documents", minimal + "---\nlog: {}\n", []string{"10: a second YAML document begins: remove it, as the config must be one document"}},
		{"not YAML", "upstreams: [", []string{"1: sequence end token ']' not found"}},
		{"not UTF-8", "\xff", []string{"1: the file is not UTF-8 text"}},
		{"brackets without end", strings.Repeat("[", 1_000_000), []string{"1: the file is too large: it has more than 200000 keys, values and marks"}},
		{"not a map", "- a\n", []string{"1: want a map of fields, not a list"}},
		{"unknown field", replace("    tls:", "    tsl:"), []string{
			"3: upstreams[0].xds.tls: neither tls nor plaintext is set: set tls, or plaintext: true to serve without TLS",
			"5: upstreams[0].xds.tsl: unknown field: check its spelling and indentation; here it can be " + xdsFields}},
		{"field in another case", minimal + "Log: {}\n", []string{"9: Log: unknown field: check its spelling and indentation; here it can be node, upstreams, clusters, merge, hostConflicts, views, sinks, provenance, downstream, admin, state, replicas, log"}},
		{"misplaced field", replace("  xds:", "  addresses: []\n  xds:"), []string{"3: upstreams[0].addresses: unknown field: check its spelling and indentation; here it can be name, clusterID, domainSuffix, generated, import, services, rewrite, required, firstSync, staleness, guard, limits, xds, file, kubernetes"}},
		{"duplicate key", minimal + "upstreams: []\n", []string{`9: mapping key "upstreams" already defined at [1:1]`}},
		{"list for a map", minimal + "log: [1]\n", []string{"9: log: want a map of fields, not a list"}},
		{"map for a list", replace(`["istiod.east:15012"]`, "{a: b}"), []string{"4: upstreams[0].xds.addresses: want a list, not a map"}},
		{"text for a map", replace("{caFile: ca.pem}", "yes"), []string{`5: upstreams[0].xds.tls: want a map of fields, not "yes"`}},
		{"number for a text", replace("name: east", "name: 1.10"), []string{`2: upstreams[0].name: want a text, not "1.10": put it in quotes`}},
		{"text for a boolean", replace("plaintext: true", "plaintext: yes"), []string{`8: downstream.listeners[0].plaintext: want true or false, not "yes"`}},
		{"fraction for a whole number", replace("  listeners:", "  maxStreams: 1.5\n  listeners:"), []string{`7: downstream.maxStreams: want a whole number, not "1.5"`}},
		{"empty item", replace(`["istiod.east:15012"]`, `["a:1", ~]`), []string{"4: upstreams[0].xds.addresses[1]: empty: leave it out"}},
		{"no such anchor", replace("name: east", "name: *nobody"), []string{"2: upstreams[0].name: there is no anchor &nobody above"}},
		{"tag", replace("name: east", "name: !!str east"), []string{"2: upstreams[0].name: tags (!!str) are not used in this file"}},
		{"bad duration", replace("  listeners:", "  startupTimeout: soon\n  listeners:"), []string{`7: downstream.startupTimeout: want a duration like 90s, 5m or 250ms, not "soon"`}},
		{"duration without unit", replace("  listeners:", "  startupTimeout: 100\n  listeners:"), []string{`7: downstream.startupTimeout: want a duration like 90s, 5m or 250ms, not "100"`}},
		{"negative duration", replace("  listeners:", "  startupTimeout: -1s\n  listeners:"), []string{"7: downstream.startupTimeout: -1s is out of range: 1ms to 24h0m0s"}},
		{"an empty file", "{}", []string{
			"1: upstreams: missing: add an upstream with xds or file or kubernetes, or clusters",
			"1: downstream.listeners: missing: add an address to serve on"}},
		{"bad name", replace("name: east", "name: East"), []string{`2: upstreams[0].name: "East" is not a name: write 1 to 63 lower-case letters, digits and dashes, without a dash at the beginning or end`}},
		{"long name", replace("name: east", "name: "+strings.Repeat("e", 64)), []string{`2: upstreams[0].name: "` + strings.Repeat("e", 64) + `" is not a name: write 1 to 63 lower-case letters, digits and dashes, without a dash at the beginning or end`}},
		{"no name", replace("name: east\n  xds", "xds"), []string{`2: upstreams[0].name: "" is not a name: write 1 to 63 lower-case letters, digits and dashes, without a dash at the beginning or end`}},
		{"same name twice", replace("downstream:", "- {name: east, file: {path: x}}\ndownstream:"), []string{`6: upstreams[1].name: "east" is the name of upstreams[0] already: names must differ`}},
		{"bad cluster", replace("name: east", "name: east\n  clusterID: a b"), []string{`3: upstreams[0].clusterID: "a b" is not an ID: write 1 to 253 letters, digits, dots, dashes and underscores`}},
		{"bad generated", replace("name: east", "name: east\n  generated: maybe"), []string{`3: upstreams[0].generated: "maybe": want one of drop, keep`}},
		{"both kinds of source", replace("  xds:", "  file: {path: x}\n  xds:"), []string{`2: upstreams[0]: upstream "east" needs exactly one of xds, file, kubernetes`}},
		{"no kind of source", replace("downstream:", "- name: west\ndownstream:"), []string{`6: upstreams[1]: upstream "west" needs exactly one of xds, file, kubernetes`}},
		{"plaintext off loopback", replace("127.0.0.1:15010", "0.0.0.0:15010"), []string{`8: downstream.listeners[0].address: plaintext on "0.0.0.0:15010", which is not a loopback address, needs allowInsecure: true: anybody who reaches it can read all resources`}},
		{"listener of no kind", replace(", plaintext: true", ""), []string{"8: downstream.listeners[0].tls: neither tls nor plaintext is set: set tls, or plaintext: true to serve without TLS"}},
		{"listener of both kinds", replace("plaintext: true", "plaintext: true, tls: {certFile: a, keyFile: b}"), []string{"8: downstream.listeners[0].plaintext: plaintext and tls are both set: leave out one"}},
		{"listener without key", replace("plaintext: true", "tls: {certFile: a}"), []string{"8: downstream.listeners[0].tls: certFile and keyFile are both needed"}},
		{"same address twice", minimal + "  - {address: '127.0.0.1:15010', plaintext: true}\n", []string{`9: downstream.listeners[1].address: "127.0.0.1:15010" is already the address of listeners[0] ("127.0.0.1:15010")`}},
		{"an address within another", minimal + "  - {address: ':15010', allowAnonymous: true, tls: {certFile: a, keyFile: b}}\n", []string{`9: downstream.listeners[1].address: ":15010" is already the address of listeners[0] ("127.0.0.1:15010")`}},
		{"number out of range", replace("  listeners:", "  maxStreams: 0\n  listeners:"), []string{"7: downstream.maxStreams: 0 is out of range: 1 to 1000000"}},
		{"admin off loopback", minimal + "admin: {address: ':15014'}\n", []string{`9: admin.address: ":15014" is not a loopback address: listen on 127.0.0.1, or set admin.allowInsecure: true`}},
		{"admin on a listener's address", minimal + "admin: {address: '127.0.0.1:15010'}\n", []string{`9: admin.address: "127.0.0.1:15010" is already the address of downstream.listeners[0]: choose another port`}},
		{"bad log level", minimal + "log: {level: loud}\n", []string{`9: log.level: "loud": want one of debug, info, warn, error`}},
		{"bad log format", minimal + "log: {format: xml}\n", []string{`9: log.format: "xml": want one of text, json`}},
		{"bad node", minimal + "node:\n  id: a~b\n  namespace: A\n  clusterID: 1_2\n", []string{
			`10: node.id: "a~b" is not an ID: write 1 to 253 letters, digits, dots, dashes and underscores`,
			`11: node.namespace: "A" is not a namespace`,
			`12: node.clusterID: want a text, not "1_2": put it in quotes`}},
		{"bad revision", replace("name: east", "name: east\n  import: {revision: A}"), []string{`3: upstreams[0].import.revision: "A" is not a revision: write it as in the label istio.io/rev`}},
		{"placeholder", minimal + "provenance:\n  relay: <NAME OF THIS RELAY>\n", []string{`10: provenance.relay: "<NAME OF THIS RELAY>" is a placeholder: replace it by a name for this relay, without the angle brackets: all replicas have the same name, and no other relay has it`}},
		{"placeholders elsewhere", replace(`["istiod.east:15012"]`, `[&a "<ADDRESS>", *a]`) + "log: {level: <LEVEL>}\n", []string{
			`4: upstreams[0].xds.addresses[0]: "<ADDRESS>" is a placeholder: replace it by your own value, without the angle brackets`,
			`4: upstreams[0].xds.addresses[1]: "<ADDRESS>" is a placeholder: replace it by your own value, without the angle brackets`,
			`9: log.level: "<LEVEL>" is a placeholder: replace it by your own value, without the angle brackets`}},
		{"all at once", replace("name: east", "name: East\n  nmae: x") + "log: {level: loud, format: [a]}\nhostConflicts: [a]\nfoo: 1\n", []string{
			`2: upstreams[0].name: "East" is not a name: write 1 to 63 lower-case letters, digits and dashes, without a dash at the beginning or end`,
			"3: upstreams[0].nmae: unknown field: check its spelling and indentation; here it can be name, clusterID, domainSuffix, generated, import, services, rewrite, required, firstSync, staleness, guard, limits, xds, file, kubernetes",
			`10: log.level: "loud": want one of debug, info, warn, error`,
			"10: log.format: want a text, not a list",
			"11: hostConflicts: want a text, not a list",
			"12: foo: unknown field: check its spelling and indentation; here it can be node, upstreams, clusters, merge, hostConflicts, views, sinks, provenance, downstream, admin, state, replicas, log"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse("relay.yaml", []byte(tc.in))
			var many *multierror.Error
			if !errors.As(err, &many) {
				t.Fatalf("error %v, want several", err)
			}
			var got []string
			for _, e := range many.Errors {
				got = append(got, strings.TrimPrefix(e.Error(), "relay.yaml:"))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestWhatIsTaken(t *testing.T) {
	for name, in := range map[string]string{
		"TLS with the host's roots":       strings.Replace(minimal, "{caFile: ca.pem}", "{}", 1),
		"empty maps and texts":            minimal + "admin: {}\nnode: {}\nlog: {level: ''}\n",
		"JSON":                            `{"upstreams": [{"name": "a", "file": {"path": "x"}}], "downstream": {"listeners": [{"address": "[::1]:0", "plaintext": true}, {"address": "[::1]:0", "plaintext": true}]}}`,
		"anchors":                         strings.Replace(minimal, "{caFile: ca.pem}", "&tls {caFile: ca.pem}", 1) + "provenance: {relay: &n a}\nnode: {id: *n}\n",
		"merged maps":                     strings.Replace(minimal, "{caFile: ca.pem}", "\n      <<: {caFile: ca.pem}\n      serverName: x", 1),
		"plaintext off loopback, allowed": strings.Replace(minimal, `"127.0.0.1:15010"`, `":15010", allowInsecure: true`, 1),
		"admin off loopback, allowed":     minimal + "admin: {address: ':15014', allowInsecure: true}\n",
		"a leading empty document":        "---\n" + minimal,
		"an annotation like a tag":        strings.Replace(minimal, "  xds:", "  rewrite: {annotations: {set: {note: <none>}}}\n  xds:", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse("relay.yaml", []byte(in)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMissingFilesAreNamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Check(path, sources()...); c == nil || err == nil || !regexp.MustCompile(`relay\.yaml:\d+: upstreams\[0\]\.xds\.tls\.caFile: `).MatchString(err.Error()) {
		t.Errorf("missing CA file: %v", err)
	}
	issue(t, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key"))
	if _, err := config.Check(path, sources()...); err != nil {
		t.Error(err)
	}
	if _, err := config.Load(filepath.Join(dir, "none.yaml")); err == nil {
		t.Error("a missing config file is no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("upstreams: [&a {name: b}, *a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse("relay.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
	})
}
