package cliview

import (
	"bytes"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// TestNamesThatKubernetesRefusesAreQuoted in every table and sentence, in such a way that a shell takes them.
func TestNamesThatKubernetesRefusesAreQuoted(t *testing.T) {
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	odd := mirror.Key{Kind: kind, Namespace: "Public NS", Name: "consumers:cn.example.Service::.DEFAULT-GROUP.public"}
	const ns, name, full = "'Public NS'", "'consumers:cn.example.Service::.DEFAULT-GROUP.public'", "'Public NS/consumers:cn.example.Service::.DEFAULT-GROUP.public'"
	change := view.Change{Action: "add", Kind: kind.String(), Namespace: odd.Namespace, Name: odd.Name}
	changes := view.Changes{Changes: []view.Change{change}, Added: 1}
	claims := []conflicts.Claim{{Namespace: odd.Namespace, Name: odd.Name, Source: "east"}}
	var told bytes.Buffer
	log := NewEvents(&told, false)
	event := events.Event{Type: events.Changed, Resources: &events.Resources{Added: 1, Names: []events.Name{{Mark: '+', Key: odd}}}}
	if err := log.Print([]events.Event{event}); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		text string
		want []string
	}{
		"left out": {LeftOut([]records.LeftOut{{Upstream: "east", Kind: kind.String(), Namespace: odd.Namespace, Name: odd.Name}}), []string{ns, name}},
		"held":     {Held([]intake.HeldUpstream{{Upstream: "east", Deletions: []intake.HeldDeletion{{Kind: kind.String(), Namespace: odd.Namespace, Name: odd.Name}}}}, testNow), []string{ns, name}},
		"conflicts": {
			Conflicts(admin.Conflicts{
				Keys: []conflicts.KeyConflict{{Key: odd}}, Hosts: []conflicts.HostConflict{{Host: "a", Claims: claims}},
			}, testNow), []string{ns, name, full + " from east"},
		},
		"plan":    {Plan(changes, 60_000, changes.Changes), []string{ns, name, full}},
		"diff":    {Diff(changes, "a", "b", 0), []string{ns, name}},
		"history": {History([]state.Revision{{Added: 1, Keys: []string{"+" + odd.String()}}}, testNow), []string{"+se " + full}},
		"events":  {told.String(), []string{"+se " + full}},
		"explain": {
			Explain(admin.Explanation{
				Key: odd, Outcome: admin.Served, Source: "east", Also: []mirror.Key{odd}, Group: []mirror.Key{odd},
				Sources: []admin.SourceCopy{{Upstream: "east", Original: odd}},
			}, false, testNow),
			[]string{"networking.istio.io/ServiceEntry " + full + " is served", "hosts: " + full, "relay explain networking.istio.io/ServiceEntry consumers:cn.example.Service::.DEFAULT-GROUP.public -n " + ns, "   " + full},
		},
		"elsewhere": {Elsewhere(admin.Explanation{Elsewhere: []mirror.Key{{Kind: kind, Namespace: "a", Name: "$(id)"}}}), []string{"'a/$(id)' exists: relay explain networking.istio.io/ServiceEntry '$(id)' -n a"}},
	} {
		for _, want := range tc.want {
			if !strings.Contains(Plain(tc.text), want) {
				t.Errorf("%s has no %s:\n%s", what, want, Plain(tc.text))
			}
		}
	}
}
