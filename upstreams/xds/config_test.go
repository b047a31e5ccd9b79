package xds

import (
	"strings"
	"testing"

	"meshrelay/config"
)

const withServer = `upstreams:
- name: east
  xds:
    addresses: ["istiod.east:15012"]
    tls: {caFile: ca.pem}
downstream:
  listeners:
  - {address: "127.0.0.1:15010", plaintext: true}
`

// wantMistake checks that a config file has one mistake: LINE: FIELD: TEXT.
func wantMistake(t *testing.T, text, want string) {
	t.Helper()
	_, err := config.Parse("relay.yaml", []byte(text), &Config{})
	if err == nil || strings.Count(err.Error(), "relay.yaml:") != 1 || !strings.Contains(err.Error(), "relay.yaml:"+want+"\n") {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMistakesInTheSectionOfAServerAreNamed(t *testing.T) {
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(withServer, old) {
			t.Fatalf("%q is not in the config", old)
		}
		return strings.Replace(withServer, old, new, 1)
	}
	for _, tc := range []struct{ name, in, want string }{
		{"no address", replace(`["istiod.east:15012"]`, "[]"), "4: upstreams[0].xds.addresses: missing: give at least one host:port"},
		{"bad address", replace("istiod.east:15012", "istiod.east"), `4: upstreams[0].xds.addresses[0]: "istiod.east" is not host:port`},
		{"bad port", replace("istiod.east:15012", "istiod.east:xds"), `4: upstreams[0].xds.addresses[0]: "istiod.east:xds": the port must be a number from 1 to 65535`},
		{"no host", replace("istiod.east:15012", ":15012"), `4: upstreams[0].xds.addresses[0]: ":15012" has no host`},
		{"neither tls nor plaintext", replace("    tls: {caFile: ca.pem}\n", ""), "3: upstreams[0].xds.tls: neither tls nor plaintext is set: set tls, or plaintext: true to serve without TLS"},
		{"both tls and plaintext", replace("    tls:", "    plaintext: true\n    tls:"), "5: upstreams[0].xds.plaintext: plaintext and tls are both set: leave out one"},
		{"identities over plaintext", replace("tls: {caFile: ca.pem}", "plaintext: true\n  import: {requireVia: [\"dns:a\"]}"), "5: upstreams[0].xds.plaintext: a server proves no identity over plaintext, so that import.requireVia believes none: set tls, or leave out requireVia"},
		{"token over plaintext, C20", replace("tls: {caFile: ca.pem}", "plaintext: true\n    tokenFile: t"), "6: upstreams[0].xds.tokenFile: a token is not sent over plaintext, where anybody can read it, and an istiod ignores it there: set tls, or leave out tokenFile"},
		{"issued token over plaintext, C20", replace("tls: {caFile: ca.pem}", "plaintext: true\n    token: {cluster: {inCluster: true}, serviceAccount: r}"), "6: upstreams[0].xds.token: a token is not sent over plaintext, where anybody can read it, and an istiod ignores it there: set tls, or leave out token"},
		{"two tokens", replace("    tls:", "    tokenFile: t\n    token: {cluster: {inCluster: true}, serviceAccount: r}\n    tls:"), "6: upstreams[0].xds.token: token and tokenFile are both set: leave out one"},
		{"no cluster", replace("    tls:", "    token: {serviceAccount: r}\n    tls:"), "5: upstreams[0].xds.token.cluster: neither kubeconfig nor inCluster is set: name a kubeconfig, or set inCluster: true to use the service account of the pod"},
		{"no account", replace("    tls:", "    token: {cluster: {inCluster: true}}\n    tls:"), `5: upstreams[0].xds.token.serviceAccount: "", with namespace "", is not the name of a service account: name one that the istiod accepts`},
		{"an account that is a path", replace("    tls:", "    token: {cluster: {inCluster: true}, serviceAccount: a/b}\n    tls:"), `5: upstreams[0].xds.token.serviceAccount: "a/b", with namespace "", is not the name of a service account: name one that the istiod accepts`},
		{"a namespace that is a path", replace("    tls:", "    token: {cluster: {inCluster: true}, serviceAccount: r, namespace: a/b}\n    tls:"), `5: upstreams[0].xds.token.serviceAccount: "r", with namespace "a/b", is not the name of a service account: name one that the istiod accepts`},
		{"certificate without key", replace("caFile: ca.pem", "certFile: c.pem"), "5: upstreams[0].xds.tls: set both certFile and keyFile, or neither"},
		{"bad protocol", replace("    tls:", "    protocol: rest\n    tls:"), `5: upstreams[0].xds.protocol: "rest": want one of auto, sotw, delta`},
		{"bad extra type", replace("    tls:", "    types: [ServiceEntry]\n    tls:"), `5: upstreams[0].xds.types[0]: type URL "ServiceEntry": want group/version/Kind, for example networking.istio.io/v1/ServiceEntry`},
		{"resync too often", replace("    tls:", "    resyncInterval: 1ms\n    tls:"), "5: upstreams[0].xds.resyncInterval: 1ms is out of range: 1s to 24h0m0s"},
		{"no resync", replace("    tls:", "    resyncInterval: 0s\n    tls:"), "5: upstreams[0].xds.resyncInterval: 0s is out of range: 1s to 24h0m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) { wantMistake(t, tc.in, tc.want) })
	}
}

// TestOneTokenForTwoClustersIsAMistake: each of them could present it to the other.
func TestOneTokenForTwoClustersIsAMistake(t *testing.T) {
	const two = `downstream: {listeners: [{address: "127.0.0.1:1", plaintext: true}]}
upstreams:
- {name: east, xds: {addresses: ["east:1"], tls: {}, tokenFile: t}}
- {name: west, xds: {addresses: ["west:1"], tls: {}, tokenFile: ./t}}
`
	wantMistake(t, two, `4: upstreams[1].xds.tokenFile: upstreams[0] ("east") of cluster "east" has the same token, so that each upstream can use it with the other: give each its own`)
	const issued = `token: {cluster: {kubeconfig: k}, serviceAccount: r}`
	ask := strings.NewReplacer("tokenFile: t}", issued+"}", "tokenFile: ./t}", issued+"}").Replace(two)
	wantMistake(t, ask, `4: upstreams[1].xds.token: upstreams[0] ("east") of cluster "east" has the same token, so that each upstream can use it with the other: give each its own`)
	for name, in := range map[string]string{
		"two accounts": strings.Replace(ask, "serviceAccount: r", "serviceAccount: s", 1),
		"one of each":  strings.Replace(two, "tokenFile: ./t", issued, 1),
		"one cluster":  strings.Replace(two, "name: west", "name: west, clusterID: east", 1),
		"two tokens":   strings.Replace(two, "./t", "./u", 1),
	} {
		if _, err := config.Parse("relay.yaml", []byte(in), &Config{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
