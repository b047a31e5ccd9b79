package upstreams_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// slowDisk is a disk that has one upstream only when it is told to.
type slowDisk struct {
	memoryKeeper
	slow string
	has  chan struct{}
}

func (d *slowDisk) Load(source string) state.Saved {
	if source == d.slow {
		<-d.has
	}
	return d.memoryKeeper.Load(source)
}

func TestWhatIsRestoredIsMergedWhileClientsAndOrdersWaitForTheRest(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	saved := savedOf(before, time.Now())
	disk := &slowDisk{memoryKeeper: memoryKeeper{saved: map[string]state.Saved{"east": saved, "west": {Meta: saved.Meta}}}, slow: "west", has: make(chan struct{})}
	east, node := xdsConfig("127.0.0.1:1")
	west := east
	west.Name = "west"
	aggregate := mirror.NewAggregate()
	m, err := upstreams.NewManager(&config.Config{Node: node, Upstreams: []config.Upstream{east, west}}, kinds(), aggregate, disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	merged := make(chan struct{})
	aggregate.RegisterHandler(func(c mirror.Change) {
		if c.Old == nil && c.New != nil {
			close(merged)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended, served, ordered := make(chan error, 2), make(chan error, 1), make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	go func() { ended <- aggregate.Run(ctx) }()
	<-merged
	go func() { served <- m.AwaitFirstSync(ctx, func() []string { return nil }) }()
	go func() { ordered <- errorOf(m.Order(ctx, "west", "freeze", intake.Order{})) }()
	select {
	case <-m.Restored():
		t.Error("all is restored, and one upstream is not")
	case err := <-served:
		t.Errorf("clients are served before all is restored: %v", err)
	case err := <-ordered:
		t.Errorf("an upstream that is not restored takes an order: %v", err)
	default:
	}
	for _, st := range m.Status() {
		if st.Name == "west" && (st.FirstSync == nil || !st.FirstSync.Awaited || !strings.Contains(st.FirstSync.Reason, "is being read")) {
			t.Errorf("while west is read from disk its status is %+v", st.FirstSync)
		}
	}
	close(disk.has)
	for what, done := range map[string]chan error{"serve": served, "freeze": ordered} {
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if disk.followed["east"] == nil || disk.followed["west"] == nil {
		t.Errorf("kept are %v", disk.followed)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestARestoreThatIsInterruptedLeavesTheDiskAsItIs(t *testing.T) {
	disk := &memoryKeeper{saved: map[string]state.Saved{}}
	east, node := xdsConfig("127.0.0.1:1")
	m, err := upstreams.NewManager(&config.Config{Node: node, Upstreams: []config.Upstream{east}}, kinds(), mirror.NewAggregate(), disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Run(ctx); err != nil {
		t.Error(err)
	}
	if len(disk.followed) > 0 {
		t.Errorf("%v would be written, and were never read", disk.followed)
	}
}

func TestAnOrderIsRefusedThatARestoreWouldLose(t *testing.T) {
	disk := &memoryKeeper{saved: map[string]state.Saved{}}
	east, node := xdsConfig("127.0.0.1:1")
	m, err := upstreams.NewManager(&config.Config{Node: node, Upstreams: []config.Upstream{east}}, kinds(), mirror.NewAggregate(), disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if err := errorOf(m.Order(t.Context(), "east", "freeze", intake.Order{})); !errors.Is(err, intake.ErrNotPossible) {
			t.Errorf("a freeze %s: %v", when, err)
		}
		if _, err := m.Order(t.Context(), "east", "serve-without", intake.Order{}); !errors.Is(err, intake.ErrNotPossible) {
			t.Errorf("clients are to be served without it %s: %v", when, err)
		}
	}
	refused("before the restore, which would overwrite it")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Restore(ctx)
	refused("after an interrupted restore, which nobody writes")
	m.Restore(t.Context())
	if err := errorOf(m.Order(t.Context(), "east", "freeze", intake.Order{})); err != nil {
		t.Errorf("a freeze after the restore: %v", err)
	}
}

// tornDisk is a disk that has served. One upstream on it can not be read any more.
type tornDisk struct {
	memoryKeeper
	torn string
}

func (d *tornDisk) Load(source string) state.Saved {
	if source == d.torn {
		d.served.Store(false)
		return state.Saved{}
	}
	return d.memoryKeeper.Load(source)
}

// Else they would be served without all that it had, after startupTimeout.
func TestClientsWaitForAnUpstreamThatTheDiskHasAndCanNotBeRead(t *testing.T) {
	since := state.Meta{Synced: true, LastContact: time.Now()}
	disk := &tornDisk{memoryKeeper: memoryKeeper{saved: map[string]state.Saved{"east": {Meta: since}}}, torn: "west"}
	disk.served.Store(true)
	east, node := xdsConfig("127.0.0.1:1")
	west := east
	west.Name = "west"
	cfg := &config.Config{Node: node, Upstreams: []config.Upstream{east, west}}
	m, err := upstreams.NewManager(cfg, kinds(), mirror.NewAggregate(), disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Restore(t.Context())
	for _, st := range m.Status() {
		if awaited := st.FirstSync != nil && st.FirstSync.Awaited && st.FirstSync.Until.IsZero(); awaited != (st.Name == "west") {
			t.Errorf("%s: %+v", st.Name, st.FirstSync)
		}
	}
}
