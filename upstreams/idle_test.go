package upstreams_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// countingStore is the store of relays, and counts what it writes.
type countingStore struct {
	state.Store
	appends, writes atomic.Int64
}

func (s *countingStore) AppendJournal(lines []byte) error {
	s.appends.Add(1)
	return s.Store.AppendJournal(lines)
}

func (s *countingStore) Apply(source string, b state.Batch) (state.Kept, error) {
	before := s.Info().Size
	kept, err := s.Store.Apply(source, b)
	if s.Info().Size != before {
		s.writes.Add(1)
	}
	return kept, err
}

// quietSource tells all that it has, and is in contact then, without a change.
type quietSource struct {
	upstreams.Plain
	resources []*mirror.Resource
}

// Run implements upstreams.Source.
func (q quietSource) Run(ctx context.Context, feed upstreams.Feed) error {
	feed.Tell(intake.Received{Live: true, Updates: []records.Update{{
		Scope: records.KindScope(xdsEntryKind), Complete: true, Elements: records.Resources(q.resources...),
	}}})
	<-ctx.Done()
	return nil
}

// quietRelay is a relay with a state directory, whose only source is quiet.
type quietRelay struct {
	store  *countingStore
	m      *upstreams.Manager
	keeper *state.Keeper
	end    func() // in the order of relays: what is written last is what the parts before left
}

// startQuiet starts one in a bubble. An unreachable source tells nothing.
func startQuiet(t *testing.T, dir string, rules config.Staleness, reachable bool) *quietRelay {
	t.Helper()
	store := &countingStore{Store: local.New(dir, nil)}
	keeper, err := state.Open(store, state.Options{History: state.History{Revisions: 5}})
	if err != nil {
		t.Fatal(err)
	}
	journal := events.New()
	keeper.FollowJournal(journal)
	quiet := upstreams.Kind{Config: &scriptedConfig{}, New: func(config.Upstream, upstreams.Env) (upstreams.Source, error) {
		if !reachable {
			return silentSource{}, nil
		}
		return quietSource{resources: entriesNamed([]string{"a", "b"})}, nil
	}}
	_, node := xdsConfig()
	cfg := &config.Config{Node: node, Upstreams: []config.Upstream{
		{Name: "scripted-east", ClusterID: "east", Guard: config.Guard{Percent: 100}, Staleness: rules, Source: &scriptedConfig{}},
	}}
	aggregate := mirror.NewAggregate()
	m, err := upstreams.NewManager(cfg, []upstreams.Kind{quiet}, aggregate, keeper, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Record(journal)
	m.Restore(t.Context())
	var ends []func()
	for _, run := range []func(context.Context) error{aggregate.Run, m.Run, journal.Run, keeper.Run} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		ends = append(ends, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	return &quietRelay{store: store, m: m, keeper: keeper, end: func() {
		for _, end := range ends {
			end()
		}
	}}
}

// silentSource can not be reached.
type silentSource struct{ upstreams.Plain }

// Run implements upstreams.Source.
func (silentSource) Run(ctx context.Context, _ upstreams.Feed) error {
	<-ctx.Done()
	return nil
}

// filesOf returns the contents of all files in a directory, by name. The lock is none of them: it is empty.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// TestAnIdleRelayWritesNothing: two idle hours, in which a relay without rules about staleness writes no
// byte. It is killed then. What it says of the last contact afterwards is true, and a relay that ends in
// order knows it exactly.
func TestAnIdleRelayWritesNothing(t *testing.T) {
	dir, killed := t.TempDir(), filepath.Join(t.TempDir(), "killed")
	synctest.Test(t, func(t *testing.T) {
		r := startQuiet(t, dir, config.Staleness{StaleAfter: config.Duration(5 * time.Minute)}, true)
		await.Settle(2 * time.Minute)
		if st := r.m.Status()[0]; st.State != upstreams.StateSynced {
			t.Fatalf("the upstream is %s", st.State)
		}
		before := filesOf(t, dir)
		if !strings.Contains(before["events.log"], `"synced"`) || len(before) < 3 {
			t.Fatalf("the files of the start: %q", before)
		}
		appends, writes := r.store.appends.Load(), r.store.writes.Load()
		began := time.Now()
		await.Settle(2 * time.Hour)
		if n := r.store.appends.Load() - appends; n != 0 {
			t.Errorf("the journal was written %d times", n)
		}
		if n := r.store.writes.Load() - writes; n != 0 {
			t.Errorf("the state was written %d times", n)
		}
		if after := filesOf(t, dir); !maps.Equal(before, after) {
			t.Errorf("the files are others: %q", after)
		}
		if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		r.end()
		await.Pass(time.Hour)

		exact := startQuiet(t, dir, config.Staleness{StaleAfter: config.Duration(5 * time.Minute)}, false)
		synctest.Wait()
		if st := exact.m.Status()[0]; !st.Stale || st.StaleLater || time.Since(st.StaleSince) != time.Hour {
			t.Errorf("after an end in order: stale %v since %v, later %v", st.Stale, st.StaleSince, st.StaleLater)
		}
		exact.end()
		for range 2 { // a second kill makes it no more exact
			atLeast := startQuiet(t, killed, config.Staleness{StaleAfter: config.Duration(5 * time.Minute)}, false)
			await.Settle(time.Minute)
			if st := atLeast.m.Status()[0]; !st.Stale || !st.StaleLater || st.StaleSince.After(began) {
				t.Errorf("after a kill: stale %v since %v, later %v", st.Stale, st.StaleSince, st.StaleLater)
			}
			atLeast.end()
		}
		back := startQuiet(t, killed, config.Staleness{StaleAfter: config.Duration(5 * time.Minute)}, true)
		await.Settle(time.Minute)
		if st := back.m.Status()[0]; st.Stale || st.StaleLater {
			t.Errorf("back in contact: stale %v since %v, later %v", st.Stale, st.StaleSince, st.StaleLater)
		}
		back.end()
	})
}

// TestWhereARuleCountsFromTheLastContact_AKillLosesAMinuteOfIt: with expireAfter the time is written once a minute, so that a kill makes nothing younger, and little older.
func TestWhereARuleCountsFromTheLastContact_AKillLosesAMinuteOfIt(t *testing.T) {
	for name, tc := range map[string]struct {
		rules config.Staleness
		gone  bool // an hour after the kill
	}{
		"expireAfter, over":     {config.Staleness{StaleAfter: config.Duration(5 * time.Minute), ExpireAfter: config.OpenEnded(time.Hour)}, true},
		"expireAfter, not over": {config.Staleness{StaleAfter: config.Duration(5 * time.Minute), ExpireAfter: config.OpenEnded(2 * time.Hour)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, killed := t.TempDir(), filepath.Join(t.TempDir(), "killed")
			synctest.Test(t, func(t *testing.T) {
				r := startQuiet(t, dir, tc.rules, true)
				await.Settle(2 * time.Minute)
				writes := r.store.writes.Load()
				const idle = time.Hour
				await.Settle(idle)
				// A minute, or a tenth of the rule, which is half a minute here; flushes come once a second.
				if n := r.store.writes.Load() - writes; n < int64(idle/time.Minute)-2 || n > int64(idle/(30*time.Second)) {
					t.Errorf("the state was written %d times in %v", n, idle)
				}
				if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				last := time.Now()
				r.end()
				await.Pass(time.Hour)
				again := startQuiet(t, killed, tc.rules, false)
				synctest.Wait()
				st := again.m.Status()[0]
				if old := last.Sub(st.StaleSince); !st.Stale || old < 0 || old > time.Minute {
					t.Errorf("stale since %v, %v before the kill", st.StaleSince, old)
				}
				if gone := len(st.Expired) > 0 || st.Resources[xdsEntryKind.String()] == 0; gone != tc.gone {
					t.Errorf("gone: %v, resources %v", gone, st.Resources)
				}
				again.end()
			})
		})
	}
}
