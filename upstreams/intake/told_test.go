package intake

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	extensions "istio.io/api/extensions/v1alpha1"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// A file source tells all that it has at once. A kind of which nothing is left need not be named.
func TestAKindThatASourceWithoutAStreamTellsNoMoreIsGone(t *testing.T) {
	m := newMachine(t, false, config.Provenance{})
	body, err := anypb.New(&extensions.WasmPlugin{Url: "oci://a"})
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: federation.WasmPlugin, Namespace: "shop", Name: "p"}, Source: "east", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	tell := func(unsure bool, all ...*mirror.Resource) {
		t.Helper()
		e := Received{Live: true, Unsure: unsure}
		for _, r := range all {
			e.Updates = append(e.Updates, records.Update{Scope: records.KindScope(r.Kind()), Complete: true, Elements: records.Resources(r)})
		}
		m.step(e)
	}
	serves := func(entries, extensions int) {
		t.Helper()
		if n, made := len(m.store.List(federation.ServiceEntry, "")), len(m.store.List(federation.TrafficExtension, "")); n != entries || made != extensions {
			t.Errorf("%d ServiceEntries and %d TrafficExtensions are served, want %d and %d", n, made, entries, extensions)
		}
	}
	tell(false, plugin, given(t, "shop/a"))
	serves(1, 1)
	tell(true, plugin) // it has told the ServiceEntry itself: that it can not read a file does not bring that back
	tell(true, plugin)
	serves(0, 1) // and nobody but the WasmPlugin tells of its TrafficExtension
	m.limit(func(l *config.Limits) { l.MaxResources = 2 })
	tell(false, given(t, "shop/a")) // in the room of what is gone
	serves(1, 0)
	tell(false)
	serves(0, 0)
}

// A source that is asked to repeat has repeated a type by one complete answer. Other answers come in parts, and after a push, so
// that each name counts.
func TestATypeIsRepeatedByACompleteAnswerOrByAllOfItsNames_C4_C14(t *testing.T) {
	a, b := entry("shop/a", "a"), entry("shop/b", "b")
	began := func(more ...fakexds.Resource) *machine {
		m := newMachine(t, true, config.Provenance{})
		m.stream()
		m.part(true, true, append(more, a, b)...)
		return m
	}
	owes := func(m *machine, want int) {
		t.Helper()
		if n := len(m.records.Owed()); n != want {
			t.Errorf("%d types are still to be repeated, want %d", n, want)
		}
		m.holds("shop/a=a", "shop/b=b")
	}
	m := began(entry("shop/gone", "c"))
	m.part(true, false, a)
	m.records.Repeat(false)
	m.part(true, true, b) // the rest of the answer
	owes(m, 0)
	m.records.Repeat(false)
	m.part(true, false, a)
	owes(m, 1)
	m.part(true, true, b)
	owes(m, 0)

	m = began()
	m.records.Repeat(false)
	m.part(false, false, a)
	owes(m, 1)
	m.records.Repeat(true) // a slow server is asked again
	m.part(false, true, b)
	owes(m, 0)

	m = machineOf(t, config.Upstream{Services: config.Services{Mode: config.ServicesAsIs}, Guard: config.Guard{Profile: config.ProfileRegistry, Percent: 100}})
	m.stream()
	m.part(true, true, a, b)
	gone := m.update(false)
	gone.Removed = slices.Values([][]byte{[]byte("shop/b")})
	m.step(Received{Updates: []records.Update{gone}})
	m.records.Repeat(false)
	m.part(false, true, a)
	if n := len(m.records.Owed()); n > 0 || len(m.store.List(federation.ServiceEntry, "")) != 2 {
		t.Errorf("%d types are awaited for a service that the registry has told to be gone, and that is kept", n)
	}
}

// TestWhatTheAnswerThatEndsAHoldChanges_IsToldAsOfTheUpstream: only the deletions are of the guard.
func TestWhatTheAnswerThatEndsAHoldChanges_IsToldAsOfTheUpstream(t *testing.T) {
	m, _ := newHolding(t, entry("shop/a", "one.example"))
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/a", "one.example"))}})
	m.now = m.now.Add(10 * time.Minute)
	if out := m.step(Tick{}); !out.Repeat {
		t.Fatal("it is not asked to repeat")
	}
	out := m.step(Received{Updates: []records.Update{m.update(true, entry("shop/a", "two.example"))}})
	got := ""
	for _, e := range out.Events {
		if got += fmt.Sprint(e.Type, " by ", e.By, "; "); e.Resources != nil {
			got += e.Resources.String() + "; "
		}
	}
	want := "changed by upstream; 1 changed (1 service); carried-out by guard; changed by guard; 8 removed; "
	if got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

// TestWhatIsFirstServedByAnUnfreezeWithoutContact_Expires: the source was never in contact, and nothing was served while frozen.
func TestWhatIsFirstServedByAnUnfreezeWithoutContact_Expires(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.policy(m.u.Guard, config.Staleness{StaleAfter: config.Duration(time.Minute), ExpireAfter: config.OpenEnded(5 * time.Minute)})
	m.step(Freeze{})
	m.open(entryURL, "networking.istio.io/v1/Gateway")
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/a", "a"))}})
	m.step(Closed{})
	m.step(Unfreeze{Order{Force: true}})
	m.holds("shop/a=a")
	m.now = m.now.Add(5 * time.Minute)
	m.step(Tick{})
	m.holds()
}
