package downstream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"meshrelay/mirror"
)

func TestAReloadMovesOrEndsTheStreamsOfARule(t *testing.T) {
	views := []View{viewOf("both", "shop", "bank"), viewOf("shop", "shop")}
	rule := func(name, view string, accounts ...string) AuthorizationRule {
		a := AuthorizationRule{Name: name, View: view}
		for _, one := range accounts {
			a.Identities = append(a.Identities, account("shop", one))
		}
		return a
	}
	g := startGuarded(t, true, views, []AuthorizationRule{rule("one", "both", "stays", "moves", "ends", "renamed")})
	g.put(se("shop", "a", "1"), se("bank", "b", "1"))
	streams := map[string]*deltaStream{}
	for _, name := range []string{"stays", "moves", "ends", "renamed"} {
		streams[name] = g.open(seV1, g.as("shop", name))
		if got := deltaNames(streams[name].next()); got != "bank/b shop/a" {
			t.Fatalf("%s gets %q", name, got)
		}
	}
	g.reauthorize(views, rule("one", "both", "stays"), rule("two", "shop", "moves"), rule("three", "both", "renamed"))
	if got := deltaNames(streams["moves"].next()); got != "-bank/b" {
		t.Errorf("the client with the narrower view gets %q", got)
	}
	end := streams["ends"].end()
	wantCode(t, end, codes.PermissionDenied)
	if !strings.Contains(end.Error(), "no rule of authorization lets this client in") {
		t.Errorf("the client without a rule is told %v", end)
	}
	g.put(se("shop", "a", "2"))
	for _, name := range []string{"stays", "moves", "renamed"} {
		if got := deltaNames(streams[name].next()); got != "shop/a" {
			t.Errorf("%s gets %q", name, got)
		}
	}
	// A reload can bring an authorization, and take it away.
	g.reauthorize(nil)
	if got := deltaNames(streams["moves"].next()); got != "bank/b" {
		t.Errorf("without an authorization the client gets %q", got)
	}
	g.reauthorize(views, rule("two", "shop", "moves"))
	if got := deltaNames(streams["moves"].next()); got != "-bank/b" {
		t.Errorf("with an authorization again the client gets %q", got)
	}
	wantCode(t, streams["stays"].end(), codes.PermissionDenied)
}

// TestAHeldClientIsJudgedAgainBeforeItIsServed: it never gets what its first rule would have shown.
func TestAHeldClientIsJudgedAgainBeforeItIsServed(t *testing.T) {
	views := []View{viewOf("both", "shop", "bank"), viewOf("shop", "shop")}
	rule := AuthorizationRule{Name: "r", Identities: []string{account("shop", "moves"), account("shop", "ends")}, View: "both"}
	g := startGuarded(t, false, views, []AuthorizationRule{rule})
	g.store.Put(se("shop", "a", "1"))
	g.store.Put(se("bank", "b", "1"))
	moves, ends := g.open(seV1, g.as("shop", "moves")), g.open(seV1, g.as("shop", "ends"))
	g.eventually(t, "both wait", func() bool { return len(g.server.Clients()) == 2 })
	rule.Identities, rule.View = rule.Identities[:1], "shop"
	g.reauthorize(views, rule)
	g.store.SetSynced()
	if got := deltaNames(moves.next()); got != "shop/a" {
		t.Errorf("the client with another view gets %q", got)
	}
	r := <-ends.recvd
	if wantCode(t, r.err, codes.PermissionDenied); r.msg != nil {
		t.Errorf("the client without a rule gets %v", r.msg)
	}
}

// TestAFirstSyncEndsWithTheRuleThatPlannedIt: the rest of a long answer is not sent after a reload that narrows
// what the client may read, or refuses it. A reload that changes nothing for it lets it go on.
func TestAFirstSyncEndsWithTheRuleThatPlannedIt(t *testing.T) {
	const n = 12_000
	views := []View{viewOf("shop", "shop"), viewOf("bank", "bank")}
	rule := AuthorizationRule{Name: "r", Listeners: []string{plain}, View: "shop", Selection: "shop"}
	all := many(n, "s-%05d", func(int) string { return strings.Repeat("x", 1000) })
	for name, tc := range map[string]struct {
		next AuthorizationRule
		want codes.Code
	}{
		"another view": {AuthorizationRule{Name: "r", Listeners: []string{plain}, View: "bank", Selection: "bank"}, codes.Unavailable},
		"no rule":      {AuthorizationRule{Name: "r", Listeners: []string{verifying}, View: "shop", Selection: "shop"}, codes.PermissionDenied},
		"another name": {AuthorizationRule{Name: "s", Listeners: []string{plain}, View: "shop", Selection: "shop"}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGuarded(t, true, views, []AuthorizationRule{rule})
			g.addr = g.addrs[1]
			g.put(all...)
			s := g.stalledDelta(seV1)
			const underWay = 2 // the transport takes one part more than it can send
			g.eventually(t, "the second part is on its way", func() bool {
				c := g.server.Clients()
				return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes == underWay && g.server.connections()[0].sending.Load()
			})
			g.reauthorize(views, tc.next)
			got, parts := 0, 0
			for {
				resp, err := s.Recv()
				if err != nil {
					wantCode(t, err, tc.want)
					break
				}
				parts++
				if got += len(resp.Resources); got == n {
					break
				}
			}
			if tc.want == codes.OK && got != n || tc.want != codes.OK && parts > underWay {
				t.Errorf("the client got %d resources in %d parts", got, parts)
			}
		})
	}
}

// TestNoPartOfAnAnswerFollowsTheReloadThatEndsTheStream, however late the stream notices its end.
func TestNoPartOfAnAnswerFollowsTheReloadThatEndsTheStream(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a"))
	c := r.toNobody()
	c.ctx, c.cancel = context.WithCancelCause(t.Context())
	round, err := c.plan()
	if err != nil || round == nil {
		t.Fatal(round, err)
	}
	c.moveTo(nil, nil, errNotTrusted)
	if _, ok, err := c.respond(round, time.Now()); ok || !errors.Is(err, errNotTrusted) {
		t.Errorf("%t %v", ok, err)
	}
}

// TestDebugNeedsARuleThatAllowsIt: in addition to the listener, and to a view without limits.
func TestDebugNeedsARuleThatAllowsIt(t *testing.T) {
	rule := func(name string, debug bool, accepts func(*mirror.Resource) bool) AuthorizationRule {
		return AuthorizationRule{Name: name, Identities: []string{account("shop", name)}, View: "all", Debug: debug, Accepts: accepts}
	}
	g := startGuarded(t, true, []View{{Name: "all"}, viewOf("limited", "shop")}, []AuthorizationRule{
		rule("may", true, nil), rule("silent", false, nil), rule("narrowed", true, onlyKind(kindSE)),
		{Name: "limited", Identities: []string{account("shop", "limited")}, View: "limited", Debug: true},
		{Name: "plain", Listeners: []string{plain}, View: "all", Debug: true},
	}, func(c *Config, d *Deps) {
		d.Debug = everything{}
		c.Listeners[0].Debug, c.Listeners[1].Debug = DebugVerified, DebugOff
	})
	ask := func(typeURL string, opts ...grpc.DialOption) string {
		s := g.sotw(opts...)
		n := node()
		n.Id = "client"
		s.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: typeURL, ResourceNames: []string{"configz"}})
		return string(s.next().Resources[0].Value)
	}
	for name, want := range map[string]string{"may": "bank/secret", "silent": debugNotAllowed, "narrowed": debugNotAllowed, "limited": debugNotAllowed, "plain": debugNotAllowed} {
		opts := []grpc.DialOption{g.as("shop", name)}
		if g.addr = g.addrs[0]; name == "plain" {
			g.addr, opts = g.addrs[1], nil
		}
		if got := ask(debugType, opts...); got != want {
			t.Errorf("%s is answered %s", name, got)
		}
		var w Whoami
		if err := json.Unmarshal([]byte(ask(WhoamiType, opts...)), &w); err != nil || w.Rule != name || w.Debug != (want == "bank/secret") {
			t.Errorf("%s is told %+v, %v", name, w, err)
		}
	}
}

// slowly is a Debugger whose documents wait for go.
type slowly struct {
	everything
	begun, proceed chan struct{}
}

func (s slowly) Handle(name string) ([]byte, error) {
	s.begun <- struct{}{}
	<-s.proceed
	return s.everything.Handle(name)
}

// TestADebugDocumentIsNotSentAfterTheReloadThatForbidsIt: it was begun before.
func TestADebugDocumentIsNotSentAfterTheReloadThatForbidsIt(t *testing.T) {
	rule := AuthorizationRule{Name: "a", Identities: []string{account("shop", "a")}, Debug: true}
	d := slowly{begun: make(chan struct{}), proceed: make(chan struct{})}
	g := startGuarded(t, true, nil, []AuthorizationRule{rule}, func(c *Config, deps *Deps) {
		deps.Debug = d
		c.Listeners[0].Debug = DebugVerified
	})
	s := g.sotw(g.as("shop", "a"))
	n := node()
	n.Id = "client"
	s.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: debugType, ResourceNames: []string{"configz"}})
	<-d.begun
	rule.Debug = false
	g.reauthorize(nil, rule)
	close(d.proceed)
	wantCode(t, s.end(), codes.Unavailable)
}
