package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
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

func TestDefaultsAreFilledIn(t *testing.T) {
	c, err := Parse("/etc/relay/relay.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	u := c.Upstreams[0]
	if u.ClusterID != "east" || u.Generated != GeneratedDrop || u.XDS.Protocol != ProtocolAuto || u.XDS.ResyncInterval.D() != 5*time.Minute {
		t.Errorf("upstream defaults: %+v %+v", u, u.XDS)
	}
	if got := u.XDS.TLS.CAFile; got != "/etc/relay/ca.pem" {
		t.Errorf("a relative path is %q, want it beside the config file", got)
	}
	if c.Downstream.StartupTimeout.D() != 30*time.Second || c.Admin.Address != "127.0.0.1:15014" || c.Node.ID == "" || c.Node.IP == "" {
		t.Errorf("defaults: %+v", c)
	}
}

func TestEffectiveConfigReadsBack(t *testing.T) {
	c, err := Parse("relay.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("relay.yaml", out)
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
		if !strings.Contains(minimal, old) {
			t.Fatalf("%q is not in the minimal config", old)
		}
		return strings.Replace(minimal, old, new, 1)
	}
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"empty file", "", []string{"relay.yaml: the file is empty"}},
		{"comment only", "# nothing\n", []string{"relay.yaml: the file is empty"}},
		{"two documents", minimal + "---\nlog: {}\n", []string{"relay.yaml:10: a second YAML document"}},
		{"not yaml", "upstreams: [", []string{"relay.yaml:1:"}},
		{"unknown field", replace("    tls:", "    tsl:"), []string{`relay.yaml:5:5: unknown field "tsl"`, "spelling"}},
		{"misplaced field", replace("  xds:", "  addresses: []\n  xds:"), []string{`relay.yaml:3:3: unknown field "addresses"`}},
		{"duplicate key", minimal + "upstreams: []\n", []string{"relay.yaml:9:1:", `"upstreams"`}},
		{"wrong type", minimal + "log: [1]\n", []string{"relay.yaml:9:"}},
		{"bad duration", minimal + "push:\n  debounceAfter: soon\n", []string{"relay.yaml:10:", `"soon" is not a duration`}},
		{"no upstreams", "downstream: {listeners: [{address: '127.0.0.1:1', plaintext: true}]}", []string{"relay.yaml:1: upstreams: there must be at least one"}},
		{"bad name", replace("name: east", "name: East"), []string{`relay.yaml:2: upstreams[0].name: "East"`}},
		{"same name twice", replace("downstream:", "- {name: east, file: {path: x}}\ndownstream:"), []string{`relay.yaml:6: upstreams[1].name: "east" is the name of upstreams[0]`}},
		{"both kinds of source", replace("  xds:", "  file: {path: x}\n  xds:"), []string{"exactly one of xds and file"}},
		{"bad address", replace("istiod.east:15012", "istiod.east"), []string{`relay.yaml:4: upstreams[0].xds.addresses[0]: "istiod.east" is not host:port`}},
		{"neither tls nor plaintext", replace("    tls: {caFile: ca.pem}\n", ""), []string{"neither tls nor plaintext"}},
		{"both tls and plaintext", replace("    tls:", "    plaintext: true\n    tls:"), []string{"relay.yaml:5: upstreams[0].xds.plaintext: both"}},
		{"token over plaintext, C20", replace("tls: {caFile: ca.pem}", "plaintext: true\n    tokenFile: t"), []string{"relay.yaml:6: upstreams[0].xds.tokenFile: a token is not sent over plaintext"}},
		{"certificate without key", replace("caFile: ca.pem", "certFile: c.pem"), []string{"certFile and keyFile go together"}},
		{"bad protocol", replace("    tls:", "    protocol: rest\n    tls:"), []string{`"rest": want one of auto, sotw, delta`}},
		{"bad extra type", replace("    tls:", "    types: [ServiceEntry]\n    tls:"), []string{"want group/version/Kind"}},
		{"resync too often", replace("    tls:", "    resyncInterval: 1ms\n    tls:"), []string{"out of range: 1s to 24h"}},
		{"plaintext off loopback", replace("127.0.0.1:15010", "0.0.0.0:15010"), []string{"needs allowInsecure: true"}},
		{"listener of no kind", replace(", plaintext: true", ""), []string{"exactly one of tls and plaintext"}},
		{"admin off loopback", minimal + "admin: {address: ':15014'}\n", []string{"admin.allowInsecure: true"}},
		{"bad log level", minimal + "log: {level: loud}\n", []string{"want one of debug, info, warn, error"}},
		{"debounce turned round", minimal + "push: {debounceAfter: 2s}\n", []string{"push.debounceMax: 1s is less than debounceAfter"}},
		{"all at once", replace("name: east", "name: East") + "log: {level: loud}\n", []string{"upstreams[0].name", "log.level"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("relay.yaml", []byte(tc.in))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not say %q:\n%v", want, err)
				}
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
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckFiles(); err == nil || !strings.Contains(err.Error(), "upstreams[0].xds.tls.caFile") {
		t.Errorf("missing CA file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckFiles(); err != nil {
		t.Error(err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); err == nil {
		t.Error("a missing config file is no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("upstreams: [&a {name: b}, *a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("relay.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
	})
}
