package config_test

import (
	"slices"
	"strings"
	"testing"
)

func TestTheNamesOfOthersInAConfigAreKnown(t *testing.T) {
	c, err := parse("relay.yaml", []byte(strings.Replace(minimal, "    tls: {caFile: ca.pem}\n", `    tls: {serverName: server.example}
  import: {namespaces: {include: ["team-*"], exclude: [hidden]}}
  rewrite: {namespaces: {shop: store}}
`, 1)+"views: [{name: all, default: true, namespaces: {exclude: [secret]}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := c.Names()
	for _, want := range []string{"server.example", "team-*", "hidden", "shop", "store", "secret"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing in %q", want, got)
		}
	}
	if slices.Contains(got, "east") {
		t.Errorf("the name of an upstream is in %q", got)
	}
}
