package upstreams_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes"
)

// fault panics at a seam of a source: a method of its Feed, an event that it tells, or a line of its log. Where the
// seam is "intake" and an event, the intake panics over that event, under its lock.
type fault struct {
	mu    sync.Mutex
	seam  string
	times int // how often it still panics
	did   int
	// seen, unless nil, is closed when a test has seen that the source has failed as often as it will. The source that
	// begins then waits for it.
	seen chan struct{}
}

func (f *fault) arm(seam string, times int, seen chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seam, f.times, f.did, f.seen = seam, times, 0, seen
}

// awaited returns what a source waits for that begins now.
func (f *fault) awaited() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.times > 0 {
		return nil
	}
	return f.seen
}

func (f *fault) done() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.did
}

// is reports whether to panic at a seam.
func (f *fault) is(seam string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seam != f.seam || f.times == 0 {
		return false
	}
	f.times--
	f.did++
	return true
}

func (f *fault) at(seam string) {
	if f.is(seam) {
		panic("injected at " + seam)
	}
}

// faulty is a source with a fault.
type faulty struct {
	upstreams.Source
	*fault
}

func (s faulty) Run(ctx context.Context, feed upstreams.Feed) error {
	s.at("Run")
	if seen := s.awaited(); seen != nil {
		select {
		case <-seen:
		case <-ctx.Done():
		}
	}
	return s.Source.Run(ctx, faultyFeed{feed, s.fault})
}

func (s faulty) Repeat() (repeats bool) {
	s.at("Repeat")
	return s.Source.Repeat()
}

// bad is an event over which the intake panics.
type bad struct{ intake.Event }

type faultyFeed struct {
	upstreams.Feed
	*fault
}

func (f faultyFeed) Tell(e intake.Event) records.Result {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "intake.")
	f.at(name)
	if f.is("intake " + name) {
		return f.Feed.Tell(bad{})
	}
	return f.Feed.Tell(e)
}

func (f faultyFeed) Synced() bool { f.at("Synced"); return f.Feed.Synced() }
func (f faultyFeed) Versions(scope records.Scope) map[string]string {
	f.at("Versions")
	return f.Feed.Versions(scope)
}

func (f faultyFeed) Holds(scope records.Scope, name string, digest xxh3.Uint128, size int) bool {
	f.at("Holds")
	return f.Feed.Holds(scope, name, digest, size)
}
func (f faultyFeed) Identity() string { f.at("Identity"); return f.Feed.Identity() }

// faultyLog is a log that panics over a line "log MESSAGE".
type faultyLog struct {
	slog.Handler
	*fault
}

func (l faultyLog) Enabled(context.Context, slog.Level) bool { return true }
func (l faultyLog) WithAttrs(a []slog.Attr) slog.Handler {
	return faultyLog{l.Handler.WithAttrs(a), l.fault}
}
func (l faultyLog) Handle(ctx context.Context, r slog.Record) error {
	l.at("log " + r.Message)
	return l.Handler.Handle(ctx, r)
}

// withFault returns a kind whose sources have a fault, where their upstream is called east.
func withFault(k upstreams.Kind, f *fault) upstreams.Kind {
	make := k.New
	k.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		if u.Name != "east" {
			return make(u, env)
		}
		env.Log = slog.New(faultyLog{env.Log.Handler(), f})
		s, err := make(u, env)
		return faulty{s, f}, err
	}
	return k
}

// origin is what an upstream is read from: put creates or changes a ServiceEntry of the namespace ns.
type origin struct {
	upstream config.Upstream
	put      func(name, host string)
}

// origins has an origin of each kind, and the seams that its sources pass when they start only, and with each change too.
// Holds is missing: a panic over an object of an API server costs that list only.
var origins = map[string]struct {
	start          func(t *testing.T) origin
	atStart, often []string
}{
	"xds": {func(t *testing.T) origin {
		s := startServer(t)
		return origin{xdsUpstream("east", s), putsTo(s)}
	}, []string{"Run", "Opened", "Synced", "intake Opened", "log stream open", "log upstream answers"}, []string{"Received", "intake Received", "log response"}},
	"xds delta": {func(t *testing.T) origin {
		s := startServer(t)
		u := xdsUpstream("east", s)
		sectionOf(u).Protocol = "delta"
		return origin{u, putsTo(s)}
	}, []string{"Versions"}, []string{"Received", "intake Received"}},
	"xds with endpoints": {func(t *testing.T) origin {
		s := startServer(t)
		u := xdsUpstream("east", s)
		discovers(&u)
		s.Set(xdsEntryAlpha, service("web", "web.example"))
		put, puts := putsTo(s), 0
		return origin{u, func(name, host string) {
			put(name, host)
			puts++
			s.Set(edsTypeURL, edsOf(webCluster, fmt.Sprint("10.0.0.", puts)))
			s.PushNames(edsTypeURL, webCluster)
		}}
	}, []string{"log endpoint stream answered"}, []string{"Endpoints", "intake Endpoints", "log endpoints changed", "log endpoint response"}},
	"file": {func(t *testing.T) origin {
		dir := t.TempDir()
		return origin{fileUpstream("east", dir), func(name, host string) {
			text := strings.Replace(serviceEntry(name, host), "namespace: shop", "namespace: ns", 1)
			fakekube.ReplaceFile(t, filepath.Join(dir, name+".yaml"), []byte(text))
		}}
	}, []string{"Run"}, []string{"Received", "intake Received", "log files read"}},
	"kubernetes": {func(t *testing.T) origin {
		s := fakekube.New()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		server := s.Start(t)
		fakekube.WriteKubeconfig(t, path, server, "t")
		cfg, err := config.Parse("relay.yaml", fmt.Appendf(nil, "upstreams: [{name: east, kubernetes: {cluster: {kubeconfig: %q}}, guard: {percent: 100}}]\ndownstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n", path), &kubernetes.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return origin{cfg.Upstreams[0], func(name, host string) {
			s.Put("networking.istio.io/serviceentries", fakekube.Object("ns", name, fmt.Sprintf(`{"hosts":[%q]}`, host)))
		}}
	}, []string{
		"Run", "Identity", "Identified", "Opened", "Synced",
		"intake Opened", "intake Identified", "log API server address changed", "log objects requested", "log objects listed",
	}, []string{"Received", "intake Received"}},
}

// putsTo returns what adds a ServiceEntry to those of a server, and pushes them.
func putsTo(s *fakexds.Server) func(name, host string) {
	var all []fakexds.Resource
	return func(name, host string) {
		all = append(all, xdsEntry("ns/"+name, host))
		s.Set(xdsEntryURL, all...)
		s.Push(xdsEntryURL)
	}
}

// TestAPanicOfASourceFailsItsUpstreamOnly: at each seam of each kind, while it starts and when it is at work. It shows
// the cause, deletes nothing, begins anew, and is up to date again. The log has the stack once.
func TestAPanicOfASourceFailsItsUpstreamOnly(t *testing.T) {
	for kind, o := range origins {
		for _, seam := range slices.Concat(o.atStart, o.often) {
			t.Run(kind+"/"+seam+"/at the start", func(t *testing.T) { panicsAt(t, o.start(t), seam, true) })
		}
		for _, seam := range o.often {
			t.Run(kind+"/"+seam+"/at work", func(t *testing.T) { panicsAt(t, o.start(t), seam, false) })
		}
	}
}

func panicsAt(t *testing.T, o origin, seam string, atStart bool) {
	t.Parallel()
	const times = 2
	f, log := &fault{}, &lockedLog{}
	seen := make(chan struct{})
	others := startServer(t, xdsEntry("ns/other", "other.example"))
	o.put("a", "a.example")
	cfg := &config.Config{Upstreams: []config.Upstream{o.upstream, xdsUpstream("west", others)}}
	_, cfg.Node = xdsConfig()
	r := runFaulty(t, f, cfg, slog.New(slog.NewTextHandler(log, nil)), func() {
		if atStart {
			f.arm(seam, times, seen)
		}
	})
	if !atStart {
		r.await("east is served", func() bool {
			return strings.Contains(r.served(), "ns/a=a.example@east") && r.m.Status()[0].State == upstreams.StateSynced
		})
		f.arm(seam, times, seen)
		o.put("b", "b.example")
	}
	r.await("east has panicked, and its status tells of it", func() bool {
		st := r.m.Status()[0]
		return f.done() == times && st.State == upstreams.StateFailed && strings.Contains(st.LastError, "internal error of the relay")
	})
	close(seen)
	r.await("east is up to date", func() bool {
		return r.m.Status()[0].State == upstreams.StateSynced && strings.Contains(r.served(), "ns/a=a.example@east")
	})
	o.put("c", "c.example")
	r.await("east follows changes", func() bool { return strings.Contains(r.served(), "ns/c=c.example@east") })
	r.await("west is served", func() bool { return strings.Contains(r.served(), "ns/other=other.example@west") })
	if n := others.Streams(); n != 1 {
		t.Errorf("west has had %d streams", n)
	}
	for _, e := range r.journal.Read(events.Query{}).Events {
		if e.Resources != nil && e.Type == events.Changed && e.Resources.Removed > 0 {
			t.Errorf("it has removed resources: %+v", e)
		}
	}
	if n := log.count("stack="); n != 1 {
		t.Errorf("the log has %d lines with a stack:\n%s", n, log)
	}
	// Two goroutines of one run may panic at the same time.
	if n := log.count(`msg="source failed"`); n < 1 || n > times {
		t.Errorf("the log has %d failures, want 1 to %d:\n%s", n, times, log)
	}
}

// TestAFailureDoesNotEndAFreezeNorAHold: the intake that has panicked hands both on.
func TestAFailureDoesNotEndAFreezeNorAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fault{}
		s := startServer(t, entries("e", 10)...)
		u := xdsUpstream("east", s)
		u.Guard = config.Guard{Percent: 30, Count: 1}
		_, node := xdsConfig()
		r := runFaulty(t, f, &config.Config{Node: node, Upstreams: []config.Upstream{u}}, slog.New(slog.DiscardHandler), func() {})
		r.await("all is served", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 10 })
		s.Set(xdsEntryURL, entries("e", 2)...)
		s.Push(xdsEntryURL)
		r.await("eight are held", func() bool { h := r.m.Status()[0].Held; return h != nil && h.Removals == 8 })
		f.arm("intake Received", 1, nil)
		s.Push(xdsEntryURL)
		r.await("it is held again", func() bool { h := r.m.Status()[0].Held; return f.done() == 1 && h != nil && h.Removals == 8 })
		if n := r.aggregate.Counts()[xdsEntryKind]; n != 10 {
			t.Errorf("%d are served", n)
		}
		if err := errorOf(r.m.Order(t.Context(), "east", "freeze", intake.Order{})); err != nil {
			t.Fatal(err)
		}
		f.arm("intake Received", 1, nil)
		s.Set(xdsEntryURL, entries("other", 3)...)
		s.Push(xdsEntryURL)
		r.await("what it has now waits", func() bool {
			st := r.m.Status()[0]
			return f.done() == 1 && st.State == upstreams.StateSynced && st.Frozen != nil && st.Frozen.Waiting == 13
		})
		if n := r.aggregate.Counts()[xdsEntryKind]; n != 10 {
			t.Errorf("%d are served while it is frozen", n)
		}
	})
}

// runFaulty runs a Manager whose sources have a fault, and whose pauses after failures are short. before is called before
// it runs.
func runFaulty(t *testing.T, f *fault, cfg *config.Config, log *slog.Logger, before func()) *managed {
	t.Helper()
	kinds := append(kinds(), kubernetes.Kind())
	for i := range kinds {
		kinds[i] = withFault(kinds[i], f)
	}
	return runKinds(t, kinds, nil, cfg, log, func(m *upstreams.Manager) {
		m.PauseFor(time.Millisecond)
		before()
	})
}
