package intake

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/internal/panics"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

const entryURL = "networking.istio.io/v1/ServiceEntry"

// machine is an intake that a test steps over events.
type machine struct {
	*Intake
	t     *testing.T
	store *mirror.Store
	now   time.Time
	u     config.Upstream
}

func newMachine(t *testing.T, relayed bool, p config.Provenance) *machine {
	t.Helper()
	u := config.Upstream{Name: "east", ClusterID: "east-1", Services: config.Services{Mode: config.ServicesOmit}, Guard: config.Guard{Percent: 100}}
	rules, err := records.NewRules(u, p, relayed)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, store: mirror.NewStore(), now: time.Unix(1_000_000, 0), u: u}
	m.Intake = New(u, m.store, rules, true)
	return m
}

// policy sets the guard and the staleness.
func (m *machine) policy(g config.Guard, s config.Staleness) {
	m.t.Helper()
	m.u.Guard, m.u.Staleness = g, s
	m.step(SetPolicy{m.u})
}

// limit sets the limits.
func (m *machine) limit(change func(*config.Limits)) {
	m.t.Helper()
	change(&m.u.Limits)
	m.step(SetPolicy{m.u})
}

// leaves returns how many deletions wait.
func (m *machine) leaves() int { n, _ := m.gate.Waiting(); return n }

func (m *machine) step(e Event) Output {
	m.t.Helper()
	out, err := m.Step(m.now, e)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func entry(name, host string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{host}})
}

// update is an update of the ServiceEntries.
func (m *machine) update(complete bool, resources ...fakexds.Resource) records.Update {
	m.t.Helper()
	scope, err := records.TypeScope(entryURL)
	if err != nil {
		m.t.Fatal(err)
	}
	return records.Update{Scope: scope, Complete: complete, Room: len(resources), Elements: each(func(yield func(records.Element) bool) {
		for _, r := range resources {
			raw, err := proto.Marshal(r.Any)
			if err != nil {
				m.t.Fatal(err)
			}
			if !yield(records.Element{Name: []byte(r.Name), Raw: raw}) {
				return
			}
		}
	})}
}

func each(f func(yield func(records.Element) bool)) func(int, records.Known) iter.Seq[records.Element] {
	return func(int, records.Known) iter.Seq[records.Element] { return f }
}

// holds demands that these ServiceEntries are served: "name=host".
func (m *machine) holds(want ...string) {
	m.t.Helper()
	got := []string{}
	for _, r := range m.store.List(federation.ServiceEntry, "") {
		se := &networking.ServiceEntry{}
		if err := r.Body().UnmarshalTo(se); err != nil {
			m.t.Fatal(err)
		}
		got = append(got, r.FullName()+"="+strings.Join(se.Hosts, ","))
	}
	if !slices.Equal(got, want) {
		m.t.Fatalf("served is %q, want %q", got, want)
	}
}

// overBad panics over what is called "bad", and counts.
func overBad(n *int) func(*mirror.Resource) {
	return func(r *mirror.Resource) {
		if r.Key().Name == "bad" {
			*n++
			panic("no good")
		}
	}
}

func TestPanicOverAResourceCostsThatResource_C7(t *testing.T) {
	for name, complete := range map[string]bool{"sotw": true, "delta": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, true, config.Provenance{})
			send := func(resources ...fakexds.Resource) error {
				out := m.step(Received{Updates: []records.Update{m.update(complete, resources...)}})
				return out.Err()
			}
			if err := send(entry("shop/a", "a1"), entry("shop/bad", "b1")); err != nil {
				t.Fatal(err)
			}
			tried := 0
			m.records.Fault = overBad(&tried)
			again := func(tries int) {
				t.Helper()
				err := send(entry("shop/a", "a2"), entry("shop/bad", "b2"), entry("shop/c", "c"))
				if err == nil || !strings.Contains(err.Error(), "shop/bad") || !strings.Contains(err.Error(), "internal error") {
					t.Errorf("the NACK is %v", err)
				}
				m.holds("shop/a=a2", "shop/bad=b1", "shop/c=c")
				if st := m.Status(m.now); tried != tries || st.Panics != uint64(tries) || st.RefusedTotal != 1 {
					t.Errorf("tried %d times, want %d; %d panics, refused %v", tried, tries, st.Panics, st.Refused)
				}
			}
			again(1)
			again(2)
			if err := send(entry("shop/a", "a2"), entry("shop/bad", "b3"), entry("shop/c", "c")); err == nil || tried != 3 {
				t.Errorf("other content is not tried: %v", err)
			}
			m.records.Fault = nil
			if err := send(entry("shop/a", "a2"), entry("shop/bad", "b4"), entry("shop/c", "c")); err != nil {
				t.Error(err)
			}
			m.holds("shop/a=a2", "shop/bad=b4", "shop/c=c")
		})
	}
}

// broken is an update of the ServiceEntries that panics.
func (m *machine) broken() records.Update {
	u := m.update(true)
	u.Elements = each(func(func(records.Element) bool) { panic("no") })
	return u
}

// panics has a step panic, and goes on with another intake.
func (m *machine) panics(e Event) {
	m.t.Helper()
	if p := panics.Try(func() { m.step(e) }); p == nil {
		m.t.Error("the step does not panic")
	}
	m.Intake = m.Renewed(m.now)
}

// TestAPanicOverAResponseDeletesNothing: the next intake begins with what is served.
func TestAPanicOverAResponseDeletesNothing(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/a", "a"), entry("shop/b", "b"))}})
	m.panics(Received{Updates: []records.Update{m.broken()}})
	m.holds("shop/a=a", "shop/b=b")
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/b", "b2"))}})
	m.holds("shop/b=b2")
}

// TestWhatADiskHasAndPanicsIsSetAside: neither does it end the process, nor does it panic again and
// again.
func TestWhatADiskHasAndPanicsIsSetAside(t *testing.T) {
	before := newMachine(t, true, config.Provenance{})
	before.step(Received{Updates: []records.Update{before.update(true, entry("shop/a", "a"), entry("shop/bad", "b"))}})
	m := newMachine(t, true, config.Provenance{})
	tried := 0
	m.records.Fault = overBad(&tried)
	m.step(Restored{Saved: state.Saved{Meta: state.Meta{Synced: true, LastContact: m.now, Fingerprint: "other rules"}, Records: before.records.Kept()}})
	m.holds("shop/a=a")
	if st := m.Status(m.now); st.Panics != 1 || st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Resource, "shop/bad") {
		t.Errorf("status %+v", st)
	}
	if changes, _ := m.TakeChanges(m.now); !slices.ContainsFunc(changes, func(c state.Change) bool { return c.Key.Name == "bad" && c.Record == nil }) {
		t.Errorf("it stays on the disk: %v", changes)
	}
}

func TestPanicOverAnObjectOfAFileCostsThatObject(t *testing.T) {
	m := newMachine(t, false, config.Provenance{})
	tell := func(hosts ...string) records.Result {
		t.Helper()
		scope := records.KindScope(federation.ServiceEntry)
		return m.step(Received{Live: true, Updates: []records.Update{{Scope: scope, Complete: true, Elements: records.Resources(
			decoded(t, "shop/a", hosts[0], 0).Resource, decoded(t, "shop/bad", hosts[1], 0).Resource)}}}).Result
	}
	tell("a1", "b1")
	m.holds("shop/a=a1", "shop/bad=b1")
	tried := 0
	m.records.Fault = overBad(&tried)
	for range 2 {
		if out := tell("a2", "b2"); out.RefusedTotal != 1 || !strings.Contains(out.Refused[0].Reason, "internal error") {
			t.Errorf("refused %v", out.Refused)
		}
		m.holds("shop/a=a2", "shop/bad=b1")
	}
	if st := m.Status(m.now); tried != 2 || st.Panics != 2 || st.RefusedTotal != 1 {
		t.Errorf("tried %d times, status %+v", tried, st)
	}
}

// decoded returns an element with a ServiceEntry that the source has decoded. Its digest is of the host.
func decoded(t *testing.T, name, host string, size int) records.Element {
	t.Helper()
	r, err := mirror.Decode(federation.ServiceEntry, raw(t, entry(name, host)), "east")
	if err != nil {
		t.Fatal(err)
	}
	return records.Element{Name: []byte(name), Size: size, Digest: xxh3.HashString128(host), Resource: r}
}

// TestWhatHoldsMayBeUnchanged: Holds is true of an element that may come as unchanged, and of nothing else. One that comes so all
// the same has the source list again.
func TestWhatHoldsMayBeUnchanged(t *testing.T) {
	m := newMachine(t, false, config.Provenance{})
	scope := records.KindScope(federation.ServiceEntry)
	step := func(el records.Element) records.Result {
		t.Helper()
		return m.step(Received{Live: true, Updates: []records.Update{{Scope: scope, Complete: true, Elements: each(func(yield func(records.Element) bool) { yield(el) })}}}).Result
	}
	tell := func(host string, size int) (was bool) {
		t.Helper()
		el := decoded(t, "shop/a", host, size)
		was = m.records.Holds(scope, "shop/a", el.Digest, size)
		before, unchanged := len(m.store.List(federation.ServiceEntry, "")), el
		if host == "bad" {
			el.Resource, el.Err = nil, errors.New("it is bad")
		} else {
			unchanged.Resource = nil
			if out := step(unchanged); out.Relist == was || (out.RefusedTotal == 0) != was || len(m.store.List(federation.ServiceEntry, "")) != before {
				t.Errorf("%s: held is %t, and it came as unchanged: %+v", host, was, out)
			}
		}
		if out := step(el); out.Relist {
			t.Errorf("%s: %+v", host, out)
		}
		return was
	}
	for _, tc := range []struct {
		host string
		want bool
	}{{"a", false}, {"a", true}, {"b", false}, {"b", true}, {"bad", false}, {"bad", false}, {"b", false}} {
		if was := tell(tc.host, 100); was != tc.want {
			t.Errorf("%s is held: %t", tc.host, was)
		}
	}
	for _, other := range []bool{m.records.Holds(records.Scope{Name: "x"}, "shop/a", xxh3.HashString128("b"), 100), m.records.Holds(scope, "shop/b", xxh3.HashString128("b"), 100)} {
		if other {
			t.Error("another scope or name is held")
		}
	}
	m.limit(func(l *config.Limits) { l.MaxResourceBytes = 50 })
	if m.records.Holds(scope, "shop/a", xxh3.HashString128("b"), 100) {
		t.Error("what is too large by now is not looked at again")
	}
}

// TestWhatLacksFieldsIsDecodedOnceByTheNextSource: only the decoder can tell of the fields. It is no change.
func TestWhatLacksFieldsIsDecodedOnceByTheNextSource(t *testing.T) {
	m := newMachine(t, false, config.Provenance{})
	tell := func(want ...string) {
		t.Helper()
		var all []records.Element
		var again []string
		scope := records.KindScope(federation.ServiceEntry)
		for _, name := range []string{"shop/a", "shop/b"} {
			el := decoded(t, name, "a.x", 100)
			if el.Lacks = name == "shop/b"; m.records.Holds(scope, name, el.Digest, el.Size) {
				el = records.Element{Name: el.Name, Size: el.Size, Digest: el.Digest}
			} else {
				again = append(again, name)
			}
			all = append(all, el)
		}
		out := m.step(Received{Live: true, Updates: []records.Update{{Scope: scope, Complete: true, Elements: each(slices.Values(all))}}})
		if !slices.Equal(again, want) || out.RefusedTotal > 0 {
			t.Errorf("decoded %q, want %q, refused: %v", again, want, out.Refused)
		}
		if len(want) < 2 && out.Changed > 0 {
			t.Errorf("%d have changed", out.Changed)
		}
	}
	tell("shop/a", "shop/b")
	tell()
	key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "b"}
	since := m.Trace(key)[0].Since
	m.now = m.now.Add(time.Hour)
	m.adopt(m.records.Kept(), true)
	tell("shop/b")
	tell()
	if at := m.Trace(key)[0].Since; !at.Equal(since) {
		t.Errorf("it came at %v, and then at %v", since, at)
	}
}

func raw(t *testing.T, r fakexds.Resource) []byte {
	t.Helper()
	b, err := proto.Marshal(r.Any)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatCountsTowardsTheLimitsIsWhatIsHeld(t *testing.T) {
	m := newMachine(t, true, config.Provenance{Relay: "r"})
	for i := range 100 {
		version := []string{"1", "1000000000000000000"}[i%2]
		m.step(Received{Updates: []records.Update{m.update(true, fakexds.MCP("ns/a", &networking.ServiceEntry{Hosts: []string{"a.example"}}, func(r *mcp.Resource) { r.Metadata.Version = version }))}})
	}
	if m.records.Size() == 0 {
		t.Error("nothing counts")
	}
}

// TestTheVersionOfRulesIsThatOfTheSettingsInUse: another build may know more settings.
func TestTheVersionOfRulesIsThatOfTheSettingsInUse(t *testing.T) {
	version := func(u config.Upstream) string {
		t.Helper()
		u.Name, u.Services.Mode = "east", config.ServicesOmit
		rules, err := records.NewRules(u, config.Provenance{}, true)
		if err != nil {
			t.Fatal(err)
		}
		return rules.Version()
	}
	plain := version(config.Upstream{})
	if !strings.HasPrefix(plain, "v4-") {
		t.Errorf("the version is %q", plain)
	}
	if got := version(config.Upstream{Rewrite: config.Rewrite{Namespaces: map[string]string{}}, Import: config.Import{Kinds: []string{}}, Required: true}); got != plain {
		t.Errorf("settings that do nothing make another version: %q, %q", got, plain)
	}
	for what, u := range map[string]config.Upstream{
		"a prefix":   {Rewrite: config.Rewrite{NamePrefix: "p-"}},
		"a kind":     {Import: config.Import{Kinds: []string{"vs"}}},
		"a cluster":  {ClusterID: "west"},
		"a revision": {Generated: config.GeneratedKeep},
	} {
		if version(u) == plain {
			t.Errorf("%s makes no other version", what)
		}
	}
}

// TestAnOrderThatIsRefusedChangesNothing: nor does a dry run.
func TestAnOrderThatIsRefusedChangesNothing(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	for _, e := range []Event{Unfreeze{}, Release{Order{All: true}}} {
		if _, err := m.Step(m.now, e); !errors.Is(err, ErrNotPossible) {
			t.Errorf("%T: %v", e, err)
		}
	}
	m.step(Freeze{Order{DryRun: true}})
	if m.Status(m.now).Frozen != nil {
		t.Error("frozen by a trial")
	}
}

// Records without content take memory, too: their names, their versions, and why they are left out.
func TestNamesWithoutContentCountTowardsTheLimits(t *testing.T) {
	wrong := errors.New(strings.Repeat("wrong ", 50))
	for what, err := range map[string]error{"left out": &records.LeftOutError{Detail: strings.Repeat("x", 5000)}, "refused": wrong} {
		m := newMachine(t, false, config.Provenance{})
		m.limit(func(l *config.Limits) { l.MaxBytes = 40_000 })
		if !m.records.Keep(5000) {
			t.Fatal("an empty intake has no room")
		}
		sc := records.KindScope(federation.ServiceEntry)
		refused := 0
		for i := range 1000 {
			name := fmt.Sprintf("shop/%0200d", i)
			out := m.step(Received{Updates: []records.Update{{Scope: sc, Elements: each(func(yield func(records.Element) bool) {
				yield(records.Element{Name: []byte(name), Version: bytes.Repeat([]byte("1"), 500), Size: 10, Digest: xxh3.HashString128(name), Err: err})
			})}}})
			refused += out.RefusedTotal
			if n := m.records.Size(); n > 40_000+40_000/8+1400 { // refused names, and one record
				t.Fatalf("%s: %d bytes are kept", what, n)
			}
		}
		if n := len(m.records.Versions(sc)); n == 0 || n > 40 || refused < 960 {
			t.Errorf("%s: %d records, %d refused", what, n, refused)
		}
		if st := m.Status(m.now); st.RefusedTotal < 900 || m.records.Size() > 40_000+5000 {
			t.Errorf("%s: %d are refused, %d bytes are kept", what, st.RefusedTotal, m.records.Size())
		}
		if fits := m.records.Keep(20_000); fits {
			t.Errorf("%s: the source may keep as much as there is", what)
		}
		m.records.Keep(-20_000)
		m.step(Received{Updates: []records.Update{{Scope: sc, Complete: true, Elements: records.Resources()}}})
		if n := m.records.Size(); n != 5000 {
			t.Errorf("%s: %d bytes of nothing", what, n)
		}
		if !m.records.Keep(20_000) || !m.records.Keep(-25_000) || m.records.Size() != 0 {
			t.Errorf("%s: %d bytes of nothing", what, m.records.Size())
		}
	}
}

// TestANameWhoseOnlyContentIsRefusedIsKnown: the source has it, though nothing is served of it.
func TestANameWhoseOnlyContentIsRefusedIsKnown(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	tried := 0
	m.records.Fault = overBad(&tried)
	m.step(Received{Updates: []records.Update{m.update(true, entry("shop/a", "a"), entry("shop/bad", "b"))}})
	refuses := m.records.Refuses()
	for name, want := range map[string]bool{"a": false, "bad": true, "other": false} {
		if got := refuses(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name}); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// given is a ServiceEntry as the source has it.
func given(t *testing.T, name string) *mirror.Resource {
	t.Helper()
	r, err := mirror.Decode(federation.ServiceEntry, raw(t, entry(name, "db.shop.svc.cluster.local")), "east")
	if err != nil {
		t.Fatal(err)
	}
	return r
}
