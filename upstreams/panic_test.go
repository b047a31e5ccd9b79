package upstreams_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/xds"
)

// fault panics at a seam of a source: a method of its Feed, an event that it tells, or a line of its log. Where the
// seam is "intake" and an event, the intake panics over that event, under its lock.
type fault struct {
	mu    sync.Mutex
	seam  string
	times int // how often it still panics
	did   int
}

func (f *fault) arm(seam string, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seam, f.times, f.did = seam, times, 0
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
	return s.Source.Run(ctx, faultyFeed{feed, s.fault})
}

func (s faulty) Describe(st *upstreams.Status) { s.Source.(upstreams.Describer).Describe(st) }

func (s faulty) Repeat(again bool) {
	s.at("Repeat")
	s.Source.(upstreams.Repeater).Repeat(again)
}

// bad is an event over which the intake panics.
type bad struct{ intake.Event }

type faultyFeed struct {
	upstreams.Feed
	*fault
}

func (f faultyFeed) Tell(e intake.Event) intake.Result {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "intake.")
	f.at(name)
	if f.is("intake " + name) {
		return f.Feed.Tell(bad{})
	}
	return f.Feed.Tell(e)
}

func (f faultyFeed) Synced() bool { f.at("Synced"); return f.Feed.Synced() }
func (f faultyFeed) Versions(scope string) map[string]string {
	f.at("Versions")
	return f.Feed.Versions(scope)
}

func (f faultyFeed) Holds(scope, name string, digest xxh3.Uint128, size int) bool {
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

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// origin is what an upstream is read from: put creates or changes a ServiceEntry of the namespace ns.
type origin struct {
	upstream config.Upstream
	put      func(name, host string)
	seams    []string
}

// origins returns an origin of each kind, with the seams of its sources. Holds is missing: a panic over an object of an
// API server costs that list only.
var origins = map[string]func(t *testing.T) origin{
	"xds": func(t *testing.T) origin {
		s := startServer(t)
		var all []fakexds.Resource
		return origin{xdsUpstream("east", s), func(name, host string) {
			all = append(all, xdsEntry("ns/"+name, host))
			s.Set(xdsEntryURL, all...)
			s.Push(xdsEntryURL)
		}, []string{"Run", "Opened", "Received", "Synced", "intake Opened", "intake Received", "log stream open", "log upstream answers", "log response"}}
	},
	"xds delta": func(t *testing.T) origin {
		s := startServer(t)
		u := xdsUpstream("east", s)
		sectionOf(u).Protocol = "delta"
		var all []fakexds.Resource
		return origin{u, func(name, host string) {
			all = append(all, xdsEntry("ns/"+name, host))
			s.Set(xdsEntryURL, all...)
			s.Push(xdsEntryURL)
		}, []string{"Versions", "Received", "intake Received"}}
	},
	"xds with endpoints": func(t *testing.T) origin {
		s := startServer(t)
		u := xdsUpstream("east", s)
		discovers(&u)
		var all []fakexds.Resource
		s.Set(xdsEntryAlpha, service("web", "web.example"))
		s.Set(edsTypeURL, edsOf(webCluster, "10.0.0.1"))
		return origin{u, func(name, host string) {
			all = append(all, xdsEntry("ns/"+name, host))
			s.Set(xdsEntryURL, all...)
			s.Push(xdsEntryURL)
		}, []string{"Endpoints", "intake Endpoints", "log endpoints changed", "log endpoint response", "log endpoint stream answered"}}
	},
	"file": func(t *testing.T) origin {
		dir := t.TempDir()
		return origin{fileUpstream("east", dir), func(name, host string) {
			text := strings.Replace(serviceEntry(name, host), "namespace: shop", "namespace: ns", 1)
			if err := os.WriteFile(filepath.Join(dir, "."+name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "."+name), filepath.Join(dir, name+".yaml")); err != nil {
				t.Fatal(err)
			}
		}, []string{"Run", "Received", "intake Received", "log files read"}}
	},
	"kubernetes": func(t *testing.T) origin {
		s := fakekube.New()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		server := s.Start(t)
		fakekube.WriteKubeconfig(t, path, server, "t")
		cfg, err := config.Parse("relay.yaml", fmt.Appendf(nil, "upstreams: [{name: east, kubernetes: {kubeconfig: %q}, guard: {percent: 100}}]\ndownstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n", path), &kubernetes.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return origin{cfg.Upstreams[0], func(name, host string) {
			s.Put("networking.istio.io/serviceentries", fakekube.Object("ns", name, fmt.Sprintf(`{"hosts":[%q]}`, host)))
		}, []string{
			"Run", "Identity", "Identified", "Opened", "Received", "Synced",
			"intake Opened", "intake Received", "intake Identified", "log API server address changed", "log objects requested", "log objects listed",
		}}
	},
}

// TestAPanicOfASourceFailsItsUpstreamOnly: at each seam of each kind, while it starts and when it is at work. It shows
// the cause, deletes nothing, begins anew, and is up to date again. The log has the stack once.
func TestAPanicOfASourceFailsItsUpstreamOnly(t *testing.T) {
	for kind, origin := range origins {
		for _, seam := range origin(t).seams {
			for _, when := range []string{"at the start", "at work"} {
				t.Run(kind+"/"+seam+"/"+when, func(t *testing.T) {
					t.Parallel()
					panicsAt(t, origin(t), seam, when == "at the start")
				})
			}
		}
	}
}

func panicsAt(t *testing.T, o origin, seam string, atStart bool) {
	const times = 2
	f, log, journal := &fault{}, &lockedBuffer{}, events.New(events.Limits{})
	kinds := []upstreams.Kind{withFault(xds.Kind(), f), withFault(file.Kind(), f), withFault(kubernetes.Kind(), f)}
	others := startServer(t, xdsEntry("ns/other", "other.example"))
	o.put("a", "a.example")
	cfg := &config.Config{Upstreams: []config.Upstream{o.upstream, xdsUpstream("west", others)}}
	_, cfg.Node = xdsConfig()
	r := runKinds(t, kinds, cfg, slog.New(slog.NewTextHandler(log, nil)), journal, func() {
		if atStart {
			f.arm(seam, times)
		}
	})
	if !atStart {
		r.await("east is served", func() bool {
			return strings.Contains(r.served(), "ns/a=a.example@east") && r.m.Status()[0].State == upstreams.StateSynced
		})
		f.arm(seam, times)
		o.put("b", "b.example")
		if f.done() == 0 {
			r.await("the change is served, or panics", func() bool { return f.done() > 0 || strings.Contains(r.served(), "ns/b=b.example@east") })
		}
		if f.done() == 0 {
			t.Skip("a change does not pass this seam")
		}
	}
	shown := false
	r.await("east has panicked and is up to date", func() bool {
		st := r.m.Status()[0]
		shown = shown || st.State == upstreams.StateFailed && strings.Contains(st.LastError, "internal error of the relay")
		return f.done() == times && st.State == upstreams.StateSynced && strings.Contains(r.served(), "ns/a=a.example@east")
	})
	if !shown {
		t.Error("its status has not told of it")
	}
	o.put("c", "c.example")
	r.await("east follows changes", func() bool { return strings.Contains(r.served(), "ns/c=c.example@east") })
	if !strings.Contains(r.served(), "ns/other=other.example@west") || others.Streams() != 1 {
		t.Errorf("served: %s; west has had %d streams", r.served(), others.Streams())
	}
	for _, e := range journal.Read(events.Query{}).Events {
		if e.Resources != nil && e.Type == events.Changed && e.Resources.Removed > 0 {
			t.Errorf("it has removed resources: %+v", e)
		}
	}
	if n := strings.Count(log.String(), "stack="); n != 1 {
		t.Errorf("the log has %d stacks:\n%s", n, log)
	}
	// Two goroutines of one run may panic at the same time.
	if n := strings.Count(log.String(), `msg="source failed"`); n < 1 || n > times {
		t.Errorf("the log has %d failures, want 1 to %d:\n%s", n, times, log)
	}
}

// TestAFailureDoesNotEndAFreezeNorAHold: the intake that has panicked hands both on.
func TestAFailureDoesNotEndAFreezeNorAHold(t *testing.T) {
	f := &fault{}
	s := startServer(t, entries("e", 10)...)
	u := xdsUpstream("east", s)
	u.Guard = config.Guard{Percent: 30, Count: 1}
	_, node := xdsConfig()
	r := runKinds(t, []upstreams.Kind{withFault(xds.Kind(), f)}, &config.Config{Node: node, Upstreams: []config.Upstream{u}}, slog.New(slog.DiscardHandler), nil, func() {})
	r.await("all is served", func() bool { return r.aggregate.Counts()[xdsEntryKind] == 10 })
	s.Set(xdsEntryURL, entries("e", 2)...)
	s.Push(xdsEntryURL)
	r.await("eight are held", func() bool { h := r.m.Status()[0].Held; return h != nil && h.Removals == 8 })
	f.arm("intake Received", 1)
	s.Push(xdsEntryURL)
	r.await("it is held again", func() bool { h := r.m.Status()[0].Held; return f.done() == 1 && h != nil && h.Removals == 8 })
	if n := r.aggregate.Counts()[xdsEntryKind]; n != 10 {
		t.Errorf("%d are served", n)
	}
	if err := errorOf(r.m.Order(t.Context(), "east", "freeze", intake.Order{})); err != nil {
		t.Fatal(err)
	}
	f.arm("intake Received", 1)
	s.Set(xdsEntryURL, entries("other", 3)...)
	s.Push(xdsEntryURL)
	r.await("what it has now waits", func() bool {
		st := r.m.Status()[0]
		return f.done() == 1 && st.State == upstreams.StateSynced && st.Frozen != nil && st.Frozen.Waiting == 13
	})
	if n := r.aggregate.Counts()[xdsEntryKind]; n != 10 {
		t.Errorf("%d are served while it is frozen", n)
	}
}

// runKinds is runConfigured with other kinds and a journal. before is called before the upstreams run.
func runKinds(t *testing.T, kinds []upstreams.Kind, cfg *config.Config, log *slog.Logger, journal *events.Journal, before func()) *managed {
	t.Helper()
	r := &managed{t: t, aggregate: mirror.NewAggregate(), cfg: cfg}
	var err error
	if r.m, err = upstreams.NewManager(cfg, kinds, r.aggregate, nil, log); err != nil {
		t.Fatal(err)
	}
	run := []func(context.Context) error{r.m.Run, r.aggregate.Run}
	if journal != nil {
		r.m.Record(journal, nil)
		run = append(run, journal.Run)
	}
	before()
	ctx, cancel := context.WithCancel(t.Context())
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
