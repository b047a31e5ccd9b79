package intake

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

// After a restart, what is authored is told before what is derived. That stays until it is told, too.
func TestWhatIsDerivedOutlivesARestartInItsOwnScope(t *testing.T) {
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	authored, derived := given(t, "shop/authored"), given(t, "shop/derived")
	complete := func(s records.Scope, all ...*mirror.Resource) records.Update {
		return records.Update{Scope: s, Complete: true, Elements: records.Resources(all...)}
	}
	scopes := []records.Scope{records.KindScope(kind), records.DerivedScope(kind)}
	before := newMachine(t, false, config.Provenance{})
	before.step(Opened{Scopes: scopes})
	before.step(Received{Updates: []records.Update{complete(scopes[0], authored), complete(scopes[1], derived)}})
	before.step(Identified{Identity: "one"})
	changes, meta := before.TakeChanges(before.now)
	var saved []state.Record
	for _, c := range changes {
		saved = append(saved, *c.Record)
	}
	if meta.Identity != "one" || len(saved) != 2 {
		t.Fatalf("%d records, identity %q", len(saved), meta.Identity)
	}

	m := newMachine(t, false, config.Provenance{})
	m.step(Restored{Saved: state.Saved{Meta: meta, Records: saved}})
	if m.Identity() != "one" {
		t.Errorf("identity %q", m.Identity())
	}
	serves := func(want ...string) {
		t.Helper()
		var names []string
		for _, r := range m.store.List(kind, "") {
			names = append(names, r.FullName())
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("serves %q, want %q", names, want)
		}
	}
	serves("shop/authored", "shop/derived")
	m.step(Opened{Scopes: scopes})
	m.step(Received{Updates: []records.Update{complete(scopes[0])}})
	m.now = m.now.Add(2 * time.Second)
	m.step(Tick{})
	serves("shop/authored", "shop/derived")                                                        // deletions wait for the whole answer
	m.step(Received{Updates: []records.Update{{Scope: scopes[1], Elements: records.Resources()}}}) // nothing new
	serves("shop/derived")
	m.step(Received{Updates: []records.Update{complete(scopes[1])}})
	m.now = m.now.Add(2 * time.Second)
	m.step(Tick{})
	serves()
}

// TestAResourceOfTwoScopesIsWrittenFromTheOneThatIsServed: with the hash and the type of that, so that nothing has to be sent
// again after a restart.
func TestAResourceOfTwoScopesIsWrittenFromTheOneThatIsServed(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	scope, err := records.TypeScope("networking.istio.io/v1beta1/ServiceEntry")
	if err != nil {
		t.Fatal(err)
	}
	for _, served := range []bool{true, false} {
		u := m.update(true, entry("shop/a", fmt.Sprint(served)))
		if !served {
			u.Scope = scope
		}
		m.step(Received{Updates: []records.Update{u}})
	}
	m.TakeChanges(m.now)
	m.MarkAll()
	changes, _ := m.TakeChanges(m.now)
	if r := changes[0].Record; len(changes) != 1 || r.TypeURL != entryURL || r.Hash == [16]byte{} {
		t.Errorf("written is %+v", r)
	}
}
