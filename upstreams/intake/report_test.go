package intake

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// typesOf returns the events of a step in short.
func typesOf(all []events.Event) string {
	var out []string
	for _, e := range all {
		text := string(e.Type) + "/" + string(e.By)
		if e.Resources != nil {
			text += " " + e.Resources.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func entries(n int, host string) (out []fakexds.Resource) {
	for i := range n {
		out = append(out, entry(fmt.Sprintf("shop/s%d", i), host))
	}
	return out
}

// TestAStepTellsWhatHasChangedAndByWhom: the source, the guard, an operator, the config, the staleness.
func TestAStepTellsWhatHasChangedAndByWhom(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	guard := config.Guard{Percent: 30, Count: 3, HoldFor: config.OpenEnded(time.Minute)}
	m.policy(guard, config.Staleness{StaleAfter: config.Duration(time.Hour)})
	scope, err := records.TypeScope(entryURL)
	if err != nil {
		t.Fatal(err)
	}
	want := func(what, want string, e Event) []events.Event {
		t.Helper()
		out := m.step(e)
		if got := typesOf(out.Events); got != want {
			t.Fatalf("%s: %s, want %s", what, got, want)
		}
		return out.Events
	}
	all := func(resources ...fakexds.Resource) Event {
		return Received{Updates: []records.Update{m.update(true, resources...)}}
	}
	want("a stream", "", Opened{Scopes: []records.Scope{scope}, Address: "a:1"})
	want("the first answer", "synced/upstream, changed/upstream 10 added", all(entries(10, "a")...))
	want("the same", "", all(entries(10, "a")...))
	want("another", "changed/upstream 10 changed (10 service)", all(entries(10, "b")...))

	bad := fakexds.Resource{Name: "shop/bad", Any: entry("shop/bad", "x").Any}
	bad.Any.Value = []byte{0xff}
	refused := want("a wrong one", "refused/upstream", all(append(entries(10, "b"), bad)...))
	if refused[0].Reason == "" || !strings.Contains(refused[0].Text, "shop/bad") {
		t.Errorf("%+v", refused[0])
	}
	want("the same wrong one", "", all(append(entries(10, "b"), bad)...))
	want("it is good again, and gone", "", all(entries(10, "b")...))
	want("it is wrong again", "refused/upstream", all(append(entries(10, "b"), bad)...))

	want("most go", "", all(entries(2, "b")...))
	m.now = m.now.Add(2 * time.Second)
	held := want("which is held", "held/guard 8 removed", Tick{})
	if e := held[0]; e.Hold != m.namedHold().id || e.Command != "relay upstreams --held east" || e.Reason == "" {
		t.Errorf("%+v", e)
	}
	released := want("released", "released/operator, changed/operator 8 removed", Release{Order{All: true, Reason: "INC-1"}})
	for _, e := range released {
		if e.Reason != "INC-1" {
			t.Errorf("%+v", e)
		}
	}
	want("frozen", "frozen/operator", Freeze{})
	want("a change meanwhile", "", all(entries(3, "c")...))
	want("unfrozen", "unfrozen/operator, changed/operator 1 added, 2 changed (2 service)", Unfreeze{})

	m.now = m.now.Add(2 * time.Minute)
	want("many again", "changed/upstream 7 added", all(entries(10, "c")...))
	want("most go again", "", all(entries(3, "c")...))
	m.now = m.now.Add(2 * time.Second)
	want("which is held, too", "held/guard 7 removed", Tick{})
	frozen := want("frozen, which ends the hold", "frozen/operator", Freeze{})
	if !strings.HasSuffix(frozen[0].Text, "; 7 held deletions wait for the end of the freeze") {
		t.Errorf("%+v", frozen[0])
	}
	want("they are back", "", all(entries(10, "c")...))
	want("unfrozen again", "unfrozen/operator", Unfreeze{})

	want("lost", "lost/upstream", Closed{Reason: "reset"})
	want("lost again", "", Closed{Reason: "refused"})
	want("denied", "denied/upstream", Closed{Reason: "who are you", Denied: true})
	m.now = m.now.Add(14 * time.Second)
	want("another address", "", Opened{Scopes: []records.Scope{scope}, Address: "b:1"})
	back := want("regained", "regained/upstream, moved/upstream", all(entries(3, "c")...))
	if back[0].Text != "in contact again after 14s" || back[1].Text != "from a:1 to b:1" {
		t.Errorf("%+v", back)
	}
	want("the relay ends it", "", Closed{Planned: true})

	m.policy(guard, config.Staleness{StaleAfter: config.Duration(time.Minute), ExpireAfter: config.OpenEnded(time.Minute)})
	m.now = m.now.Add(2 * time.Minute)
	want("stale", "stale/staleness, expired/staleness, changed/staleness 10 removed", Tick{})
}

// TestAnUnchangedAnswerMakesNoEvent, and costs no allocation for it; a change costs few.
func TestAnUnchangedAnswerMakesNoEvent(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.step(Received{Updates: []records.Update{m.update(true, entries(10, "a")...)}})
	if n := testing.AllocsPerRun(100, func() {
		if all := m.reported(); all != nil {
			t.Error("an event without a change")
		}
	}); n > 0 {
		t.Errorf("%v allocations for no event", n)
	}
	key := m.store.List(federation.ServiceEntry, "")[0].Key()
	if n := testing.AllocsPerRun(100, func() {
		m.report.changes.Note(events.Modification, key)
		m.reported()
	}); n > 4 {
		t.Errorf("%v allocations for an event", n)
	}
}

// TestRefusedResourcesAreLookedAtWhenTheyChange, and not with each change of another one: there may be
// thousands.
func TestRefusedResourcesAreLookedAtWhenTheyChange(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	bad := fakexds.Resource{Name: "shop/bad", Any: entry("shop/bad", "x").Any}
	bad.Any.Value = []byte{0xff}
	step := func(complete bool, resources ...fakexds.Resource) string {
		return typesOf(m.step(Received{Updates: []records.Update{m.update(complete, resources...)}}).Events)
	}
	if got := step(true, bad); !strings.HasPrefix(got, "refused/upstream") {
		t.Fatal(got)
	}
	if got := step(false, entry("shop/s", "a")); strings.Contains(got, "refused") {
		t.Errorf("all were looked at: %s", got)
	}
	if got := step(false, entry("shop/bad", "a")); strings.Contains(got, "refused") {
		t.Errorf("it is good: %s", got)
	}
	if got := step(false, bad); !strings.HasPrefix(got, "refused/upstream") {
		t.Errorf("it is wrong again: %s", got)
	}
}

// TestEachTroubleOfAnOutageIsOneEvent: two addresses may fail in two ways, in turn and for days.
func TestEachTroubleOfAnOutageIsOneEvent(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.policy(config.Guard{Percent: 100}, config.Staleness{StaleAfter: config.Duration(time.Hour)})
	contact := func(address string) string {
		m.step(Opened{Scopes: []records.Scope{m.update(false).Scope}, Address: address})
		return typesOf(m.step(Received{Updates: []records.Update{m.update(true)}}).Events)
	}
	contact("a:1")
	for range 2 {
		var got []events.Event
		for range 10 {
			got = append(got, m.step(Closed{Reason: "refused"}).Events...)
			got = append(got, m.step(Closed{Reason: "who are you", Denied: true}).Events...)
		}
		if typesOf(got) != "lost/upstream, denied/upstream" {
			t.Errorf("an outage: %s", typesOf(got))
		}
		if got := contact("a:1"); got != "regained/upstream" {
			t.Errorf("its end: %s", got)
		}
	}
}

// TestASourceWithoutAddressesHasNotMoved: it may take the place of one that has them.
func TestASourceWithoutAddressesHasNotMoved(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	for _, address := range []string{"a:1", "", "b:1"} {
		m.step(Opened{Scopes: []records.Scope{m.update(false).Scope}, Address: address})
		if got := typesOf(m.step(Received{Updates: []records.Update{m.update(true)}}).Events); strings.Contains(got, "moved") {
			t.Errorf("at %q: %s", address, got)
		}
		m.step(Succeeded{Rules: m.records.Rules()})
	}
}

// TestAServiceThatItsEndpointsMakeWrongIsToldAtOnce, and not with the next answer, which may be days away.
func TestAServiceThatItsEndpointsMakeWrongIsToldAtOnce(t *testing.T) {
	u, service := discovered()
	m := machineOf(t, u)
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, service)}})
	m.records.Fault = func(*mirror.Resource) { panic("no good") }
	out := m.step(told(oneEndpoint, "outbound|80||web.example"))
	if got := typesOf(out.Events); got != "refused/upstream, synced/upstream" {
		t.Errorf("told: %q", got)
	}
}

// TestWhatIsStillHeldAfterAReleaseIsReportedWithItsID: who was told that deletions are released has to learn
// that others wait, and under which ID.
func TestWhatIsStillHeldAfterAReleaseIsReportedWithItsID(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.policy(config.Guard{Percent: 30, Count: 3, HoldFor: config.OpenEnded(time.Minute)}, config.Staleness{})
	scope, err := records.TypeScope(entryURL)
	if err != nil {
		t.Fatal(err)
	}
	m.step(Opened{Scopes: []records.Scope{scope}})
	m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), entry("blog/a", "b"), entry("blog/b", "b"))...)}})
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/s0", "a"))}})
	m.now = m.now.Add(2 * time.Second)
	first := m.step(Tick{}).Events
	if got := typesOf(first); got != "held/guard 9 removed" {
		t.Fatal(got)
	}
	blog, err := ParsePart("*/blog")
	if err != nil {
		t.Fatal(err)
	}
	part := m.step(Release{Order{Only: []Part{blog}}}).Events
	if got := typesOf(part); got != "released/operator, held/guard 7 removed, changed/operator 2 removed" {
		t.Fatal(got)
	}
	if id := part[1].Hold; part[0].Hold != first[0].Hold || id == first[0].Hold || id != m.namedHold().id {
		t.Errorf("holds %s and %s after %s, now %s", part[0].Hold, id, first[0].Hold, m.namedHold().id)
	}
	if got := typesOf(m.step(Release{Order{All: true}}).Events); got != "released/operator, changed/operator 7 removed" {
		t.Error(got)
	}
}

// TestAHoldIsToldBeforeItsRelease, also when an operator is faster than the gathering of the deletions, and
// is refused. It tells since when it holds.
func TestAHoldIsToldBeforeItsRelease(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.policy(config.Guard{Percent: 30, Count: 3, HoldFor: config.OpenEnded(time.Minute)}, config.Staleness{})
	scope, err := records.TypeScope(entryURL)
	if err != nil {
		t.Fatal(err)
	}
	m.step(Opened{Scopes: []records.Scope{scope}})
	m.step(Received{Updates: []records.Update{m.update(true, entries(10, "a")...)}})
	m.step(Received{Updates: []records.Update{m.update(true)}})
	m.now = m.now.Add(time.Second / 2)
	if out := m.step(Release{Order{All: true, DryRun: true}}); len(out.Events) > 0 {
		t.Errorf("a dry run tells %s", typesOf(out.Events))
	}
	out, err := m.Step(m.now, Release{Order{Hold: "another"}})
	if got := typesOf(out.Events); err == nil || got != "held/guard 10 removed" {
		t.Fatalf("a release of another hold: %v, told: %s", err, got)
	}
	if since := m.now.Add(-time.Second / 2).UTC().Format(time.RFC3339); !strings.Contains(out.Events[0].Text, "held since "+since+", for 1m0s") {
		t.Errorf("%s, want since %s", out.Events[0].Text, since)
	}
	m.now = m.now.Add(time.Second)
	if got := typesOf(m.step(Tick{}).Events); got != "" {
		t.Errorf("told again: %s", got)
	}
	if got := typesOf(m.step(Release{Order{All: true}}).Events); got != "released/operator, changed/operator 10 removed" {
		t.Error(got)
	}
}
