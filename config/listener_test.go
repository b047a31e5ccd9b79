package config_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"meshrelay/config"
)

// listenerOf returns a config with one listener, and what follows it.
func listenerOf(listener, more string) string {
	return strings.Replace(withUpstream, `{address: "127.0.0.1:15010", plaintext: true}`, "{"+listener+"}", 1) + more
}

// TestAListenerIsNotOpenUnlessItIsAllowed: anonymous clients and any identity are let in only
// where the config allows them.
func TestAListenerIsNotOpenUnlessItIsAllowed(t *testing.T) {
	const (
		loopback  = `address: "127.0.0.1:15012", `
		off       = `address: "0.0.0.0:15012", `
		server    = "tls: {certFile: c, keyFile: k}"
		mutual    = "tls: {certFile: c, keyFile: k, clientCAs: [{file: ca}]}"
		ids       = "views: [{name: a, match: {identities: [\"spiffe://x/y\"]}}]\n"
		mixed     = "views: [{name: a, match: {identities: [\"spiffe://x/y\"]}}, {name: b, match: {clusterIDs: [c]}}]\n"
		fallback  = "views: [{name: a, match: {identities: [\"spiffe://x/y\"]}}, {name: b, default: true}]\n"
		anonymous = "downstream.listeners[0].tls: clients need no certificate, so anybody who reaches this listener can read all resources"
		anyID     = "downstream.listeners[0].tls.clientCAs: every client with a certificate of these roots can read what is served here"
	)
	for name, tc := range map[string]struct{ listener, more, want string }{
		"plaintext on loopback":                          {loopback + "plaintext: true", "", ""},
		"plaintext elsewhere":                            {off + "plaintext: true", "", "downstream.listeners[0].address: plaintext on"},
		"plaintext elsewhere, allowed":                   {off + "plaintext: true, allowInsecure: true", "", ""},
		"TLS without client CA":                          {off + server, "", anonymous},
		"TLS without client CA on loopback":              {loopback + server, "", anonymous},
		"allowInsecure is for plaintext":                 {off + server + ", allowInsecure: true", "", anonymous},
		"TLS without client CA, allowed":                 {off + server + ", allowAnonymous: true", "", ""},
		"client CA without views":                        {off + mutual, "", anyID},
		"client CA on loopback":                          {loopback + mutual, "", anyID},
		"client CA without views, allowed":               {off + mutual + ", allowAnyIdentity: true", "", ""},
		"client CA and views of identities":              {off + mutual, ids, ""},
		"client CA and a view without identities":        {off + mutual, mixed, anyID},
		"client CA and a default view":                   {off + mutual, fallback, anyID},
		"client CA and a default view, allowed":          {off + mutual + ", allowAnyIdentity: true", fallback, ""},
		"client CA, named view of identities":            {off + mutual + ", view: a}\n  - {address: \"127.0.0.1:1\", plaintext: true", fallback, ""},
		"client CA and a view of another listener":       {off + mutual + "}\n  - {address: \"127.0.0.1:1\", plaintext: true, view: c", strings.Replace(ids, "}]", "}, {name: c}]", 1), ""},
		"client CA, named view without identities":       {off + mutual + ", view: b}\n  - {address: \"127.0.0.1:1\", plaintext: true", fallback, anyID},
		"client CA that is not needed":                   {off + mutual + ", allowAnonymous: true", "", ""},
		"allowAnyIdentity where there is no certificate": {off + server + ", allowAnonymous: true, allowAnyIdentity: true", "", "downstream.listeners[0].allowAnyIdentity: clients of this listener need no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			in := listenerOf(tc.listener, tc.more)
			if tc.want != "" {
				wantMistakes(t, in, []string{"3: " + tc.want})
				return
			}
			if _, err := parse("relay.yaml", []byte(in)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAListenerThatNamesAViewOfIdentitiesCanVerifyThem: else nobody could have it.
func TestAListenerThatNamesAViewOfIdentitiesCanVerifyThem(t *testing.T) {
	const views = "views: [{name: a, match: {identities: [\"spiffe://x/y\"]}}]\n"
	want := []string{`3: downstream.listeners[0].view: the view "a" needs identities, and this listener verifies none`}
	wantMistakes(t, listenerOf(`address: "127.0.0.1:1", plaintext: true, view: a`, views), want)
	wantMistakes(t, listenerOf(`address: "127.0.0.1:1", tls: {certFile: c, keyFile: k}, allowAnonymous: true, view: a`, views), want)
	wantMistakes(t, listenerOf(`address: "127.0.0.1:1", plaintext: true, view: a`, "views: [{name: a, default: true, match: {identities: [\"spiffe://x/y\"]}}]\n"), append(want,
		"7: views[0].default: the default view applies to every client that no other view matches"))
	if _, err := parse("relay.yaml", []byte(listenerOf(`address: "127.0.0.1:1", tls: {certFile: c, keyFile: k, clientCAs: [{file: ca}]}, view: a`, views))); err != nil {
		t.Error(err)
	}
}

// TestDebugIsForLoopbackWhereTheListenerIs: elsewhere it is for who has a certificate.
func TestDebugIsForLoopbackWhereTheListenerIs(t *testing.T) {
	for listener, want := range map[string]string{
		`address: "127.0.0.1:1", plaintext: true`:                     config.DebugLoopback,
		`address: "[::1]:1", plaintext: true`:                         config.DebugLoopback,
		`address: ":1", plaintext: true, allowInsecure: true`:         config.DebugVerified,
		`address: "10.0.0.1:1", plaintext: true, allowInsecure: true`: config.DebugVerified,
		`address: "127.0.0.1:1", plaintext: true, debug: off`:         config.DebugOff,
		`address: "127.0.0.1:1", plaintext: true, debug: "off"`:       config.DebugOff,
	} {
		c, err := parse("relay.yaml", []byte(listenerOf(listener, "")))
		if err != nil {
			t.Errorf("%s: %v", listener, err)
			continue
		}
		if got := c.Downstream.Listeners[0].Debug; got != want {
			t.Errorf("%s: debug is %q, want %q", listener, got, want)
		}
	}
	wantMistakes(t, listenerOf(`address: "127.0.0.1:1", plaintext: true, debug: all`, ""), []string{
		`3: downstream.listeners[0].debug: "all": want one of off, loopback, verified`})
}

// TestViewsAreCheckedAgainstTheListenersThatRun: they stay when the views are replaced.
func TestViewsAreCheckedAgainstTheListenersThatRun(t *testing.T) {
	mutual := config.Listener{TLS: &config.ListenerTLS{ClientCAs: []config.ClientCA{{File: "ca"}}}}
	ids := config.View{Name: "a", Match: config.Match{Identities: []string{"spiffe://x/y"}}}
	for name, tc := range map[string]struct {
		running config.Listener
		views   []config.View
		want    string
	}{
		"as before":              {mutual, []config.View{ids}, ""},
		"the views are gone":     {mutual, nil, "downstream.listeners[0].tls.clientCAs: every client"},
		"a view for everybody":   {mutual, []config.View{ids, {Name: "b", Default: true}}, "downstream.listeners[0].tls.clientCAs: every client"},
		"a view of identities":   {config.Listener{Plaintext: true, View: "a"}, []config.View{ids}, "downstream.listeners[0].view: the view"},
		"a plaintext listener":   {config.Listener{Plaintext: true}, nil, ""},
		"any identity, allowed":  {config.Listener{TLS: mutual.TLS, AllowAnyIdentity: true}, nil, ""},
		"anonymous, not allowed": {config.Listener{TLS: &config.ListenerTLS{}}, nil, "downstream.listeners[0].tls: clients need no certificate"},
	} {
		err := (&config.Config{Views: tc.views}).CheckListeners([]config.Listener{tc.running})
		if (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestAnIdentityThatMatchesNothingIsAMistake: with its line and what to write instead.
func TestAnIdentityThatMatchesNothingIsAMistake(t *testing.T) {
	const (
		one   = `address: "127.0.0.1:1", tls: {certFile: c, keyFile: k, clientCAs: [{trustDomain: east.example, file: e}]}`
		roots = `address: "127.0.0.1:1", tls: {certFile: c, keyFile: k, clientCAs: [{file: ca}]}`
		at    = "7: views[0].match.identities[0]: "
	)
	for _, tc := range []struct{ listener, identity, want string }{
		{roots, "spiffe://west.example/ns/*/sa/relay", ""},
		{roots, "dns:*.example", ""},
		{one, "spiffe://*.example/**", ""},
		{roots, "relay.example", `"relay.example" is a bare name: write "dns:relay.example"`},
		{roots, "spiffe://*", `"spiffe://*" matches nothing, as the identities of clients have a path: write "spiffe://*/**"`},
		{one, "spiffe://west.example/**", `"spiffe://west.example/**" matches nobody: no listener has client CAs for its trust domain`},
		{one, "dns:relay.example", `"dns:relay.example" matches nobody: only certificates of tls.clientCAs without a trust domain`},
	} {
		in := listenerOf(tc.listener, "views: [{name: a, match: {identities: ["+strconv.Quote(tc.identity)+"]}}]\n")
		if tc.want != "" {
			wantMistakes(t, in, []string{at + tc.want})
		} else if _, err := parse("relay.yaml", []byte(in)); err != nil {
			t.Error(err)
		}
	}
}

func TestClientCAsNameTrustDomains(t *testing.T) {
	const views = "views: [{name: a, match: {identities: [\"spiffe://*/**\"]}}]\n"
	in := func(cas string) string {
		return listenerOf(`address: "127.0.0.1:1", tls: {certFile: c, keyFile: k, clientCAs: `+cas+`}`, views)
	}
	c, err := parse("/etc/relay.yaml", []byte(in("[{trustDomain: a.example, file: a.pem}, {trustDomain: b.example, file: a.pem}]")))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Downstream.Listeners[0].TLS.ClientCAs[0].File; got != "/etc/a.pem" {
		t.Errorf("a relative path is %q", got)
	}
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(in("[{trustDomain: a.example, file: a.pem}, {trustDomain: b.example, file: a.pem}]")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Check(path, sources()...); err == nil || !strings.Contains(err.Error(), "downstream.listeners[0].tls.clientCAs[1].file") {
		t.Errorf("files that are not there: %v", err)
	}
	for cas, want := range map[string]string{
		"[]":                                  "s: empty",
		"[{file: a}, {file: b}]":              `s[1].trustDomain: "" already has roots in clientCAs[0]`,
		"[{trustDomain: A.example, file: a}]": `s[0].trustDomain: "A.example" is not a trust domain`,
		"[{trustDomain: 'spiffe://a.example', file: a}]":         `s[0].trustDomain: "spiffe://a.example" is not a trust domain: write "a.example"`,
		"[{trustDomain: a.example}]":                             "s[0].file: missing",
		"[{trustDomain: a, file: a}, {trustDomain: a, file: b}]": `s[1].trustDomain: "a" already has roots in clientCAs[0]`,
	} {
		wantMistakes(t, in(cas), []string{"3: downstream.listeners[0].tls.clientCA" + want})
	}
}
