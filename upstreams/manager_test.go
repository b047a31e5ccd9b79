package upstreams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/xds"
)

// managed is a Manager that runs.
type managed struct {
	t         *testing.T
	cfg       *config.Config
	m         *upstreams.Manager
	aggregate *mirror.Aggregate
	journal   *events.Journal
}

func runManager(t *testing.T, keeper upstreams.Keeper, ups ...config.Upstream) *managed {
	t.Helper()
	_, node := xdsConfig()
	return runConfigured(t, keeper, &config.Config{Node: node, Upstreams: ups}, slog.New(slog.DiscardHandler))
}

func runConfigured(t *testing.T, keeper upstreams.Keeper, cfg *config.Config, log *slog.Logger) *managed {
	t.Helper()
	return runKinds(t, kinds(), keeper, cfg, log, func(*upstreams.Manager) {})
}

// runKinds runs a Manager with some kinds of sources. change is called before it runs.
func runKinds(t *testing.T, kinds []upstreams.Kind, keeper upstreams.Keeper, cfg *config.Config, log *slog.Logger, change func(*upstreams.Manager)) *managed {
	t.Helper()
	r := &managed{t: t, aggregate: mirror.NewAggregate(), cfg: cfg, journal: events.New()}
	var err error
	if r.m, err = upstreams.NewManager(r.cfg, kinds, r.aggregate, keeper, log); err != nil {
		t.Fatal(err)
	}
	r.m.Record(r.journal)
	change(r.m)
	ctx, cancel := context.WithCancel(t.Context())
	r.m.Restore(ctx)
	run := []func(context.Context) error{r.m.Run, r.aggregate.Run, r.journal.Run}
	ended := make(chan error, len(run))
	for _, f := range run {
		go func() { ended <- f(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range run {
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
	r.await("the manager runs", r.m.Runs)
	return r
}

// apply reloads with these upstreams.
func (r *managed) apply(ups ...config.Upstream) error {
	next := *r.cfg
	next.Upstreams = ups
	return r.m.Apply(&next)
}

func (r *managed) mustApply(ups ...config.Upstream) {
	r.t.Helper()
	if err := r.apply(ups...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *managed) await(what string, cond func() bool) {
	r.t.Helper()
	await.Until(r.t, what, cond, func() any { return fmt.Sprintf("served %q; status %+v", r.served(), r.m.Status()) })
}

// names returns the names of the upstreams, in order of priority.
func (r *managed) names() (names []string) {
	for _, st := range r.m.Status() {
		names = append(names, st.Name)
	}
	return names
}

// served returns what the merged view has: "name=host@source".
func (r *managed) served() string {
	var out []string
	for _, res := range r.aggregate.List(xdsEntryKind, "") {
		out = append(out, res.FullName()+"="+hostOf(r.t, res)+"@"+res.Source())
	}
	return strings.Join(out, " ")
}

func (r *managed) awaitServed(want string) {
	r.t.Helper()
	r.await("served is "+want, func() bool { return r.served() == want })
}

func xdsUpstream(name string, servers ...*fakexds.Server) config.Upstream {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr)
	}
	u, _ := xdsConfig(addresses...)
	u.Name, u.ClusterID = name, name
	return u
}

func fileUpstream(name, path string) config.Upstream {
	return config.Upstream{Name: name, ClusterID: name, Guard: config.Guard{Percent: 100}, Source: &file.Config{Path: path}}
}

// served starts a server that has these ServiceEntries.
func startServer(t *testing.T, resources ...fakexds.Resource) *fakexds.Server {
	t.Helper()
	s := start(t, &fakexds.Server{})
	s.Set(xdsEntryURL, resources...)
	return s
}

func TestAReloadAddsRemovesAndReordersWithoutTouchingOtherStreams(t *testing.T) {
	a := startServer(t, xdsEntry("ns/x", "a.example"), xdsEntry("ns/only-a", "only-a.example"))
	b := startServer(t, xdsEntry("ns/x", "b.example"))
	east, west := xdsUpstream("east", a), xdsUpstream("west", b)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(serviceEntry("f", "f.example")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runManager(t, nil, east)
	r.awaitServed("ns/only-a=only-a.example@east ns/x=a.example@east")

	r.mustApply(east, west) // added behind
	r.await("west has synced", func() bool { return r.m.Status()[1].Synced })
	r.awaitServed("ns/only-a=only-a.example@east ns/x=a.example@east")

	r.mustApply(west, east) // another order
	r.awaitServed("ns/only-a=only-a.example@east ns/x=b.example@west")
	if got := r.names(); !slices.Equal(got, []string{"west", "east"}) {
		t.Errorf("names %v", got)
	}

	r.mustApply(west, east, fileUpstream("local", dir))
	r.await("the file is served", func() bool { return strings.Contains(r.served(), "f.example@local") })

	r.mustApply(east, fileUpstream("local", dir)) // removed
	r.await("all that west gave is gone", func() bool { return !strings.Contains(r.served(), "@west") })
	if a.Streams() != 1 || b.Streams() != 1 {
		t.Errorf("%d and %d streams were opened, want one each", a.Streams(), b.Streams())
	}
}

func TestChangedRulesTakeEffectAtOnceAndOnlyOnTheirUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startServer(t, xdsEntry("ns/a1", "a1.example"), xdsEntry("ns/a2", "a2.example"))
		b := startServer(t, xdsEntry("ns/b", "b.example"))
		east, west := xdsUpstream("east", a), xdsUpstream("west", b)
		r := runManager(t, nil, east, west)
		r.awaitServed("ns/a1=a1.example@east ns/a2=a2.example@east ns/b=b.example@west")

		// The server can not be reached any more: the records are still imported anew.
		a.Stop()
		east.Import.Expression = `name != "a2"`
		r.mustApply(east, west)
		r.awaitServed("ns/a1=a1.example@east ns/b=b.example@west")
		east.Import.Expression, east.Rewrite.NamePrefix = "", "p-"
		r.mustApply(east, west)
		r.awaitServed("ns/b=b.example@west ns/p-a1=a1.example@east")
		if b.Streams() != 1 {
			t.Errorf("west was connected to %d times", b.Streams())
		}
	})
}

func TestPoliciesChangeWithoutANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startServer(t, entries("e", 40)...)
		east := xdsUpstream("east", a)
		r := runManager(t, nil, east)
		r.await("all is served", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 40 })
		east.Guard = config.Guard{Percent: 30, Count: 10}
		east.Limits.MaxResources = 5
		east.Required = true
		r.mustApply(east)
		a.Set(xdsEntryURL)
		a.Push(xdsEntryURL)
		r.await("the guard holds", func() bool { return r.m.Status()[0].Held != nil })
		if st := r.m.Status()[0]; !st.Required || a.Streams() != 1 {
			t.Errorf("status %+v, %d streams", st, a.Streams())
		}
		if err := errorOf(r.m.Order(t.Context(), "east", "release", intake.Order{All: true})); err != nil {
			t.Fatal(err)
		}
		r.await("all is gone", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 0 })
		a.Set(xdsEntryURL, entries("f", 10)...)
		a.Push(xdsEntryURL)
		r.await("the limit holds", func() bool {
			return r.aggregate.Counts()[xdsEntryKind] == 5 && r.m.Status()[0].OverLimit == 5
		})
	})
}

func TestABadReloadChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startServer(t, xdsEntry("ns/a", "a.example"))
		east := xdsUpstream("east", a)
		r := runManager(t, nil, east)
		r.awaitServed("ns/a=a.example@east")
		bad := xdsUpstream("west", a)
		sectionOf(bad).Plaintext, sectionOf(bad).TLS = false, &xds.TLS{CAFile: filepath.Join(t.TempDir(), "missing.pem")}
		changed := east
		changed.Rewrite.NamePrefix = "p-"
		err := r.apply(changed, bad)
		if err == nil || !strings.Contains(err.Error(), "west") || !strings.Contains(err.Error(), "missing.pem") {
			t.Fatalf("err = %v", err)
		}
		if got := r.served(); got != "ns/a=a.example@east" || len(r.names()) != 1 {
			t.Errorf("served %s by %v", got, r.names())
		}
	})
}

// memoryKeeper is a Keeper without a disk.
type memoryKeeper struct {
	saved    map[string]state.Saved
	at       map[uint64][]state.Record
	followed map[string]state.Source
	forgot   []string
	flushes  int
	fail     error
	served   atomic.Bool
}

func (k *memoryKeeper) Load(source string) state.Saved { return k.saved[source] }
func (k *memoryKeeper) Served() bool                   { return k.served.Load() }
func (k *memoryKeeper) MarkServed()                    { k.served.Store(true) }
func (k *memoryKeeper) Follow(source string, s state.Source) {
	if k.followed == nil {
		k.followed = map[string]state.Source{}
	}
	k.followed[source] = s
}

func (k *memoryKeeper) Unfollow(source string)      { k.forgot = append(k.forgot, source) }
func (k *memoryKeeper) Flush(context.Context) error { k.flushes++; return k.fail }
func (k *memoryKeeper) History(string) ([]state.Revision, error) {
	return []state.Revision{{ID: 3}}, nil
}

func (k *memoryKeeper) At(_ string, revision uint64) ([]state.Record, error) {
	if k.at[revision] == nil {
		return nil, errors.New("there is no such revision")
	}
	return k.at[revision], nil
}

func TestWithEveryUpstreamDownWhatIsKeptIsServed(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	keeper := &memoryKeeper{saved: map[string]state.Saved{"east": savedOf(before, time.Now())}}
	u, _ := xdsConfig("127.0.0.1:1")
	r := runManager(t, keeper, u)
	r.await("the aggregate has synced", func() bool { return mirror.IsClosed(r.aggregate.Synced()) })
	r.awaitServed("ns/a=a.example@east")
	if st := r.m.Status()[0]; !st.Stale || st.Synced {
		t.Errorf("status %+v", st)
	}
	if keeper.followed["east"] == nil {
		t.Error("it is not kept any more")
	}
	r.mustApply(fileUpstream("local", t.TempDir()))
	if !slices.Equal(keeper.forgot, []string{"east"}) {
		t.Errorf("forgotten: %v", keeper.forgot)
	}
	r.awaitServed("")
}

// TestTheOldestRevisionDiffersFromNothing: what was before it is not kept, and that is told.
func TestTheOldestRevisionDiffersFromNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newXDSScript(t)
		before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
		keeper := &memoryKeeper{at: map[uint64][]state.Record{3: before.x.kept()}}
		u, _ := xdsConfig("127.0.0.1:1")
		r := runManager(t, keeper, u)
		for _, revision := range []uint64{0, 3} {
			d, err := r.m.Diff("east", revision)
			if err != nil || !d.Oldest || d.Revision.ID != 3 || len(d.Resources) != 2 {
				t.Fatalf("revision %d: %+v, %v", revision, d, err)
			}
			for _, one := range d.Resources {
				if one.Before != nil || one.After == nil {
					t.Errorf("it is no addition: %+v", one)
				}
			}
		}
		if _, err := r.m.Diff("east", 2); err == nil {
			t.Error("a revision that is not kept has a difference")
		}
	})
}

func TestOperatorsFreezeUnfreezeAndRollBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startServer(t, xdsEntry("ns/a", "a1.example"))
		before := newXDSScript(t)
		before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/a", "a0.example")))
		keeper := &memoryKeeper{at: map[uint64][]state.Record{3: before.x.kept()}}
		r := runManager(t, keeper, xdsUpstream("east", a))
		r.awaitServed("ns/a=a1.example@east")
		r.await("it has told all that it has", func() bool { return r.m.Status()[0].Synced })
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		push := func(host string) {
			a.Set(xdsEntryURL, xdsEntry("ns/a", host))
			a.Push(xdsEntryURL)
		}
		must(errorOf(r.m.Order(ctx, "east", "freeze", intake.Order{})))
		push("a2.example")
		r.await("something waits", func() bool { return r.m.Status()[0].Frozen.Waiting == 1 })
		must(errorOf(r.m.Order(ctx, "east", "unfreeze", intake.Order{})))
		r.awaitServed("ns/a=a2.example@east")
		must(errorOf(r.m.Order(ctx, "east", "rollback", intake.Order{To: 3})))
		r.awaitServed("ns/a=a0.example@east")
		if f := r.m.Status()[0].Frozen; f == nil || f.Revision != 3 || f.Waiting != 1 {
			t.Errorf("frozen: %+v", f)
		}
		must(errorOf(r.m.Order(ctx, "east", "unfreeze", intake.Order{})))
		r.awaitServed("ns/a=a2.example@east")
		if keeper.flushes < 5 {
			t.Errorf("%d flushes: a decision would not outlive a restart", keeper.flushes)
		}

		for what, err := range map[string]error{
			"freeze":   errorOf(r.m.Order(ctx, "esat", "freeze", intake.Order{})),
			"unfreeze": errorOf(r.m.Order(ctx, "esat", "unfreeze", intake.Order{})),
			"release":  errorOf(r.m.Order(ctx, "esat", "release", intake.Order{All: true})),
			"rollback": errorOf(r.m.Order(ctx, "esat", "rollback", intake.Order{To: 3})),
		} {
			if !errors.Is(err, intake.ErrUnknownUpstream) || !strings.Contains(err.Error(), `"esat"`) {
				t.Errorf("%s of an unknown upstream: %v", what, err)
			}
		}
		if err := errorOf(r.m.Order(ctx, "east", "rollback", intake.Order{To: 99})); !errors.Is(err, intake.ErrNotPossible) {
			t.Errorf("rollback to an unknown revision: %v", err)
		}
		if err := errorOf(r.m.Order(ctx, "east", "release", intake.Order{All: true})); !errors.Is(err, intake.ErrNotPossible) {
			t.Errorf("release of nothing: %v", err)
		}
		keeper.fail = errors.New("no space left on device")
		if err := errorOf(r.m.Order(ctx, "east", "freeze", intake.Order{})); !errors.Is(err, keeper.fail) || r.m.Status()[0].Frozen == nil {
			t.Errorf("a freeze that is not kept: %v", err)
		}
	})
}

func TestWithoutAStateThereIsNoHistory(t *testing.T) {
	r := runManager(t, nil, fileUpstream("local", t.TempDir()))
	if _, err := r.m.History("local"); !errors.Is(err, intake.ErrNotPossible) || !strings.Contains(err.Error(), "state.dir") {
		t.Errorf("history: %v", err)
	}
	if err := errorOf(r.m.Order(t.Context(), "local", "rollback", intake.Order{To: 1})); !errors.Is(err, intake.ErrNotPossible) {
		t.Errorf("rollback: %v", err)
	}
	r.await("the directory has been read", func() bool { return r.m.Status()[0].Synced })
	if err := errorOf(r.m.Order(t.Context(), "local", "freeze", intake.Order{})); err != nil {
		t.Errorf("freeze: %v", err)
	}
	if err := errorOf(r.m.Order(t.Context(), "local", "unfreeze", intake.Order{})); err != nil {
		t.Errorf("unfreeze: %v", err)
	}
}

func TestAnEmptiedDirectoryIsHeldAndAFrozenOneStays(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	for _, name := range strings.Fields("a b c d e f g h i j k l") {
		text.WriteString("---\n" + serviceEntry(name, name+".example"))
	}
	path := filepath.Join(dir, "all.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text.String())
	u := fileUpstream("local", dir)
	u.Guard = config.Guard{Percent: 30, Count: 10}
	r := runManager(t, nil, u)
	all := func() bool { return r.aggregate.Counts()[xdsEntryKind] == 12 }
	r.await("all is served", all)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.await("twelve are held", func() bool { h := r.m.Status()[0].Held; return h != nil && h.Removals == 12 })
	if !all() {
		t.Error("held, and gone")
	}
	write(text.String())
	r.await("none is held", func() bool { return r.m.Status()[0].Held == nil })
	if err := errorOf(r.m.Order(t.Context(), "local", "freeze", intake.Order{})); err != nil {
		t.Fatal(err)
	}
	write(serviceEntry("z", "z.example"))
	r.await("13 wait", func() bool { return r.m.Status()[0].Frozen.Waiting == 13 })
	if !all() {
		t.Error("frozen, and changed")
	}
}

// errorOf is for orders where only the error matters.
func errorOf(_ intake.Effect, err error) error { return err }
