package upstreams_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// started is a Manager whose clients wait.
type started struct {
	*managed
	log      *lockedLog
	released chan error
}

type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// count returns how many lines have all of the words.
func (l *lockedLog) count(words ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

// short is a startupTimeout.
const short = time.Minute

// startWaiting runs a Manager, and has clients of some clusters wait.
func startWaiting(t *testing.T, keeper upstreams.Keeper, timeout time.Duration, cfg config.Config, held ...string) *started {
	t.Helper()
	_, node := xdsConfig()
	cfg.Node = node
	cfg.Downstream.StartupTimeout = config.Duration(timeout)
	for i := range cfg.Upstreams {
		if u := &cfg.Upstreams[i]; u.FirstSync == "" {
			u.FirstSync = config.FirstSyncAuto
		}
	}
	s := &started{log: &lockedLog{}, released: make(chan error, 1)}
	s.managed = runConfigured(t, keeper, &cfg, slog.New(slog.NewTextHandler(s.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { s.released <- s.m.AwaitFirstSync(ctx, func() []string { return held }) }()
	t.Cleanup(cancel)
	return s
}

// waits demands that clients wait for these upstreams, also when startupTimeout is over.
func (s *started) waits(names ...string) {
	s.t.Helper()
	await.Settle(2 * time.Minute)
	for _, name := range names {
		if n := s.log.count("clients are held until upstream has synced", "upstream="+name+" ", "relay serve-without "+name); n != 1 {
			s.t.Errorf("the log has %d lines about clients that are held for %s", n, name)
		}
	}
	var got []string
	for _, st := range s.m.Status() {
		if st.FirstSync != nil && st.FirstSync.Awaited {
			got = append(got, st.Name)
		}
	}
	if !slices.Equal(got, names) || len(s.released) > 0 {
		s.t.Fatalf("clients wait for %v, want %v; they are served: %v", got, names, len(s.released) > 0)
	}
}

func (s *started) serves() {
	s.t.Helper()
	if err := await.Value(s.t, "clients are served", s.released); err != nil {
		s.t.Fatal(err)
	}
}

// reason returns why clients wait for an upstream, or do not.
func (s *started) reason(name string) string {
	s.t.Helper()
	for _, st := range s.m.Status() {
		if st.Name == name && st.FirstSync != nil {
			return st.FirstSync.Reason
		}
	}
	return ""
}

// down is a server that does not run.
func down(name string) *fakexds.Server { return &fakexds.Server{Addr: name + ":15010"} }

// up starts such a server.
func up(t *testing.T, s *fakexds.Server) {
	t.Helper()
	start(t, s, s.Addr).Set(xdsEntryURL, xdsEntry("ns/west", "west.example"))
}

func upstreamsOf(ups ...config.Upstream) config.Config { return config.Config{Upstreams: ups} }

func TestANewReplicaHoldsClientsUntilEveryUpstreamHasSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east := startServer(t, xdsEntry("ns/east", "east.example"))
		west := down("west")
		keeper := &memoryKeeper{}
		s := startWaiting(t, keeper, short, upstreamsOf(xdsUpstream("east", east), xdsUpstream("west", west)))
		s.waits("west")
		if keeper.Served() {
			t.Error("the state says that clients were served")
		}
		up(t, west)
		s.serves()
		if !keeper.Served() {
			t.Error("the state does not say that clients were served")
		}
		if got := s.served(); got != "ns/east=east.example@east ns/west=west.example@west" {
			t.Errorf("clients are served %s", got)
		}
		if s.reason("west") != "" {
			t.Errorf("status %+v", s.m.Status()[1].FirstSync)
		}
	})
}

func TestAnUpstreamThatIsNewToAStateIsWaitedForNoLongerThanStartupTimeout(t *testing.T) {
	east, west := xdsUpstream("east", down("east")), xdsUpstream("west", down("west"))
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/east", "east.example")))
	for name, keeper := range map[string]*memoryKeeper{
		"state":    {saved: map[string]state.Saved{"east": savedOf(before, time.Now())}},
		"no state": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var k upstreams.Keeper
				if keeper != nil {
					keeper.served.Store(true)
					k = keeper
				}
				s := startWaiting(t, k, short, upstreamsOf(east, west))
				s.serves()
				want := upstreams.BecauseNew
				if keeper == nil {
					want = upstreams.BecauseNoState
				} else if s.reason("east") != "" {
					t.Errorf("what is on disk is waited for: %s", s.reason("east"))
				}
				if got := s.reason("west"); got != want || s.m.Status()[1].FirstSync.Awaited {
					t.Errorf("reason %q", got)
				}
				if s.log.count("serving without upstream", "upstream=west") != 1 {
					t.Error("it is not logged")
				}
			})
		})
	}
}

func TestWhatMayWaitForThisRelayIsWaitedForNoLongerThanStartupTimeout(t *testing.T) {
	west := xdsUpstream("west", down("west"))
	sotw := xdsUpstream("west", down("west"))
	sectionOf(sotw).Protocol = "sotw"
	for _, tc := range []struct {
		name  string
		west  config.Upstream
		holds bool // it runs, and is a relay that holds its clients
		views []config.View
		held  []string
		want  string // nothing: they wait beyond the timeout
	}{
		{"a relay that holds", west, true, nil, nil, upstreams.BecauseHolds},
		{"a relay that holds, over SotW", sotw, true, nil, nil, upstreams.BecauseHolds},
		{"the cluster of a held client", west, false, nil, []string{"north", "west"}, upstreams.BecauseClient},
		{"the cluster of a view", west, false, []config.View{{Name: "w", ClusterID: "west"}}, nil, upstreams.BecauseView},
		{"a pattern of a view", west, false, []config.View{{Name: "w", Match: config.Match{ClusterIDs: []string{"we?t"}}}}, nil, upstreams.BecauseView},
		{"other clusters", west, false, []config.View{{Name: "e", ClusterID: "east"}, {Name: "all", Match: config.Match{ClusterIDs: []string{"*"}}}}, []string{"east"}, ""},
		{"a file", fileUpstream("west", filepath.Join(t.TempDir(), "none")), false, nil, []string{"west"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.holds {
					holding := start(t, &fakexds.Server{Relay: true, Name: "far", Holds: true}, down("west").Addr)
					for _, url := range allTypes() {
						holding.Withhold(url, true)
					}
				}
				cfg := upstreamsOf(tc.west)
				cfg.Views = tc.views
				s := startWaiting(t, &memoryKeeper{}, short, cfg, tc.held...)
				if tc.want == "" {
					s.waits("west")
					return
				}
				s.serves()
				if got := s.reason("west"); got != tc.want {
					t.Errorf("reason %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestWaitAndOptionalSayItOutright(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait, optional := xdsUpstream("west", down("west")), xdsUpstream("west", down("west"))
		wait.FirstSync, optional.FirstSync = config.FirstSyncWait, config.FirstSyncOptional
		for _, keeper := range []upstreams.Keeper{nil, &memoryKeeper{}} {
			s := startWaiting(t, keeper, time.Hour, upstreamsOf(optional))
			s.serves()
			if got := s.reason("west"); got != upstreams.BecauseOptional {
				t.Errorf("reason %q", got)
			}
			startWaiting(t, keeper, short, upstreamsOf(wait), "west").waits("west")
		}
	})
}

func TestServeWithoutLetsClientsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east := startServer(t, xdsEntry("ns/east", "east.example"))
		west := down("west")
		north := down("north")
		optional := xdsUpstream("south", north)
		optional.FirstSync = config.FirstSyncOptional
		keeper := &memoryKeeper{}
		s := startWaiting(t, keeper, short, upstreamsOf(xdsUpstream("east", east), xdsUpstream("west", west), xdsUpstream("north", north), optional))
		s.waits("west", "north")
		refused := func(name, because string) {
			t.Helper()
			if _, err := s.m.Order(t.Context(), name, "serve-without", intake.Order{}); err == nil || !errors.Is(err, intake.ErrNotPossible) && !errors.Is(err, intake.ErrUnknownUpstream) || !strings.Contains(err.Error(), because) {
				t.Errorf("%s: %v, want %q", name, err, because)
			}
		}
		refused("nowhere", `unknown upstream "nowhere"`)
		refused("east", "has synced or is served from disk; they wait for west, north")
		refused("south", "firstSync is optional; they wait for west, north")
		for _, name := range []string{"west", "north"} {
			if _, err := s.m.Order(t.Context(), name, "serve-without", intake.Order{}); err != nil {
				t.Fatal(err)
			}
		}
		s.serves()
		refused("west", "clients are served already, without upstream west")
		refused("east", "clients are served, and nobody waits for upstream east")
		if got := s.reason("west"); got != upstreams.BecauseOperator {
			t.Errorf("reason %q", got)
		}
		without := func(name string) bool {
			_, meta := keeper.followed[name].TakeChanges()
			return !meta.ServeWithout.IsZero()
		}
		if !without("west") || !without("north") || without("east") || keeper.flushes != 2 {
			t.Errorf("west %v, north %v, east %v; %d flushes", without("west"), without("north"), without("east"), keeper.flushes)
		}
		up(t, west)
		s.await("west has synced, and it is forgotten that clients did not wait", func() bool { return s.m.Status()[1].Synced && !without("west") })
		if s.reason("west") != "" || !without("north") {
			t.Errorf("west: %q; north is kept: %v", s.reason("west"), without("north"))
		}
	})
}

func TestServeWithoutIsRememberedByARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := xdsUpstream("north", down("north"))
		wait.FirstSync = config.FirstSyncWait
		since := state.Meta{ServeWithout: time.Now().Add(-time.Hour)}
		keeper := &memoryKeeper{saved: map[string]state.Saved{"west": {Meta: since}, "north": {Meta: since}}}
		s := startWaiting(t, keeper, time.Hour, upstreamsOf(xdsUpstream("west", down("west")), wait))
		s.serves()
		if _, meta := keeper.followed["west"].TakeChanges(); !meta.ServeWithout.Equal(since.ServeWithout) {
			t.Errorf("kept is %+v", meta)
		}
	})
}

func TestServeWithoutSaysWhenItWouldBeForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &memoryKeeper{fail: errors.New("disk full")}
		s := startWaiting(t, keeper, short, upstreamsOf(xdsUpstream("west", down("west"))))
		s.waits("west")
		if _, err := s.m.Order(t.Context(), "west", "serve-without", intake.Order{}); err == nil || !strings.Contains(err.Error(), "disk full") || !strings.Contains(err.Error(), "forgotten by a restart") {
			t.Errorf("error %v", err)
		}
		s.serves()
	})
}

func TestAReloadThatAddsAnUpstreamHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east := startServer(t, xdsEntry("ns/east", "east.example"))
		auto := func(name string) config.Upstream {
			u := xdsUpstream(name, down(name))
			u.FirstSync = config.FirstSyncAuto
			return u
		}
		s := startWaiting(t, &memoryKeeper{}, short, upstreamsOf(xdsUpstream("east", east), auto("west")))
		s.waits("west")
		first := s.cfg.Upstreams
		s.mustApply(first[0], first[1], auto("north"))
		if got := s.reason("north"); got != upstreams.BecauseAdded {
			t.Errorf("reason %q", got)
		}
		wait := auto("south")
		wait.FirstSync = config.FirstSyncWait // by this setting it is waited for
		s.mustApply(first[0], first[1], auto("north"), wait)
		s.waits("west", "south")
		// A changed firstSync counts, and what is removed is not waited for.
		wait.FirstSync = config.FirstSyncOptional
		s.mustApply(first[0], first[1], auto("north"), wait)
		s.waits("west")
		s.mustApply(first[0], auto("north"), wait)
		s.serves()
		// Once clients are served, nothing holds them again.
		wait.Name = "later"
		wait.FirstSync = config.FirstSyncWait
		s.mustApply(first[0], wait)
		if f := s.m.Status()[1].FirstSync; f != nil {
			t.Errorf("clients are said to wait: %+v", f)
		}
	})
}

func TestTheMarkIsSetOnceClientsAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east := startServer(t, xdsEntry("ns/east", "east.example"))
		keeper := &memoryKeeper{}
		s := startWaiting(t, keeper, time.Hour, upstreamsOf(xdsUpstream("east", east)))
		s.serves()
		if !keeper.Served() {
			t.Error("it is not")
		}
	})
}

func TestARelayOfThisOnesNameIsAFailureOfTheUpstream(t *testing.T) {
	for _, protocol := range []string{"auto", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				same := start(t, &fakexds.Server{Relay: true, Name: "hub"})
				same.Set(xdsEntryURL, xdsEntry("ns/a", "a.example").WithVersion("1"))
				u := xdsUpstream("mirror", same)
				sectionOf(u).Protocol = protocol
				cfg := upstreamsOf(u)
				cfg.Provenance = config.Provenance{Relay: "hub"}
				s := startWaiting(t, &memoryKeeper{}, short, cfg)
				s.await("the failure is told", func() bool {
					st := s.m.Status()[0]
					return st.State == upstreams.StateFailed && strings.Contains(st.LastError, "provenance.relay") && strings.Contains(st.LastError, `"hub"`)
				})
				s.serves() // there is nothing to be had of it
				if got := s.reason("mirror"); got != upstreams.BecauseSameName {
					t.Errorf("reason %q", got)
				}
				s.await("it is tried again", func() bool { return same.Streams() >= 3 })
				if n := s.log.count("level=ERROR", "this relay's own name"); n != 1 {
					t.Errorf("it is logged %d times", n)
				}
				if st := s.m.Status()[0]; s.served() != "" || st.Synced || st.State != upstreams.StateFailed {
					t.Errorf("served %q; status %+v", s.served(), st)
				}
				same.Stop()
				renamed := start(t, &fakexds.Server{Relay: true, Name: "hub-2"}, same.Addr)
				renamed.Set(xdsEntryURL, xdsEntry("ns/a", "a.example").WithVersion("1"))
				s.awaitServed("ns/a=a.example@mirror")
				s.await("it is as any other", func() bool { st := s.m.Status()[0]; return st.State == upstreams.StateSynced && st.LastError == "" })
			})
		})
	}
}
