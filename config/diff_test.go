package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/config"
)

func TestAReloadNamesWhatHasChanged(t *testing.T) {
	base := `node: {id: hub}
upstreams:
- {name: east, xds: {addresses: ["e:1"], plaintext: true}}
- {name: west, xds: {addresses: ["w:1"], plaintext: true}}
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
admin: {address: "127.0.0.1:15014"}
`
	parsed := func(text string) *config.Config {
		t.Helper()
		c, err := parse("relay.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, tc := range []struct {
		name, from, to string
		want           []string
	}{
		{"nothing", "hub", "hub", nil},
		{"a field", "{id: hub}", "{id: other}", []string{"node.id", "provenance.relay"}},
		{"a section of an upstream", `["w:1"]`, `["w:2"]`, []string{"upstreams[west].xds.addresses[0]"}},
		{"a rule of an upstream", "- {name: west,", "- {name: west, required: true,", []string{"upstreams[west].required"}},
		{"a new upstream", "downstream:", "- {name: lab, xds: {addresses: [\"l:1\"], plaintext: true}}\ndownstream:", []string{"upstreams: lab added"}},
		{"another name", "name: west", "name: lab", []string{"upstreams: west removed", "upstreams: lab added"}},
		{"another kind", `xds: {addresses: ["w:1"], plaintext: true}`, "file: {path: w}", []string{"upstreams[west].xds"}},
	} {
		text := strings.Replace(base, tc.from, tc.to, 1)
		if d := cmp.Diff(tc.want, config.Changes(parsed(base), parsed(text))); d != "" {
			t.Errorf("%s: -want +got:\n%s", tc.name, d)
		}
	}
	lines := strings.Split(base, "\n")
	lines[2], lines[3] = lines[3], lines[2]
	if d := cmp.Diff([]string{"upstreams: order changed"}, config.Changes(parsed(base), parsed(strings.Join(lines, "\n")))); d != "" {
		t.Errorf("the order: -want +got:\n%s", d)
	}
}

func TestTheListOfChangesIsBounded(t *testing.T) {
	many := func(prefix string) *config.Config {
		c := &config.Config{}
		for i := range 50 {
			c.Upstreams = append(c.Upstreams, config.Upstream{Name: prefix + strings.Repeat("x", i)})
		}
		return c
	}
	got := config.Changes(many("a"), many("b"))
	if len(got) != 21 || got[20] != "and 80 more" {
		t.Errorf("%d changes, the last is %q", len(got), got[len(got)-1])
	}
}
