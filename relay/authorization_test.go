package relay

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/mirror"
)

// TestRulesWithOneSelectionShowTheSame: for random views and rules; and those that show different things of a small
// world never have one selection.
func TestRulesWithOneSelectionShowTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func(from ...string) (out []string) {
		for range r.IntN(3) {
			out = append(out, from[r.IntN(len(from))])
		}
		return out
	}
	var world []*mirror.Resource
	for kind, message := range map[string]proto.Message{"ServiceEntry": &networking.ServiceEntry{}, "DestinationRule": &networking.DestinationRule{}, "VirtualService": &networking.VirtualService{}} {
		body, err := anypb.New(message)
		if err != nil {
			t.Fatal(err)
		}
		for _, namespace := range []string{"a", "b", "c"} {
			for _, source := range []string{"east", "west"} {
				res, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: kind}, Namespace: namespace, Name: "x"}, Source: source, Body: body})
				if err != nil {
					t.Fatal(err)
				}
				world = append(world, res)
			}
		}
	}
	shownBy, shared := map[string]string{}, 0
	for range 3000 {
		v := config.View{
			Name: "v", Sources: some("east", "west"), Kinds: some("se", "dr", "serviceentries"),
			Namespaces: config.Globs{Include: some("a", "b", "?"), Exclude: some("c", "d")},
		}
		rule := config.AuthorizationRule{Name: "r", View: "v", Kinds: some("dr", "vs", "se"), Namespaces: config.Globs{Include: some("a", "b", "?"), Exclude: some("a", "c")}}
		cfg := &config.Config{Views: []config.View{v}, Authorization: []config.AuthorizationRule{rule}}
		views, err := viewsOf(cfg.Views)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := authorizationOf(cfg)
		if err != nil {
			t.Fatal(err)
		}
		shown := ""
		for _, res := range world {
			if (views[0].Accepts == nil || views[0].Accepts(res)) && (rules[0].Accepts == nil || rules[0].Accepts(res)) {
				shown += res.Source() + res.Key().String() + " "
			}
		}
		other, known := shownBy[rules[0].Selection]
		if known && other != shown {
			t.Fatalf("selection %s shows %q and %q", rules[0].Selection, shown, other)
		}
		if known {
			shared++
		}
		shownBy[rules[0].Selection] = shown
	}
	if shared < 100 {
		t.Errorf("only %d rules share", shared)
	}
	same := func(v config.View, r config.AuthorizationRule, w config.View, s config.AuthorizationRule) bool {
		return selectionOf(v, r) == selectionOf(w, s)
	}
	narrow := config.AuthorizationRule{Kinds: []string{"dr", "serviceentries"}}
	if !same(config.View{Kinds: []string{"se", "dr"}}, config.AuthorizationRule{}, config.View{}, narrow) ||
		!same(config.View{Kinds: []string{"se", "dr"}}, narrow, config.View{Kinds: []string{"se", "dr", "vs"}}, narrow) {
		t.Error("rules with the same effective selection do not share")
	}
}
