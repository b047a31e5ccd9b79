package upstreams_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
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
	kept, err := s.Store.Apply(source, b)
	if kept.Wrote {
		s.writes.Add(1)
	}
	return kept, err
}

// quietSource tells all that it has, and is in contact then, without a change.
type quietSource struct{ resources []*mirror.Resource }

// Run implements upstreams.Source.
func (q quietSource) Run(ctx context.Context, feed upstreams.Feed) error {
	feed.Tell(intake.Received{Live: true, Updates: []intake.Update{{
		Scope: intake.KindScope(xdsEntryKind), Complete: true, Elements: intake.Resources(q.resources...),
	}}})
	<-ctx.Done()
	return nil
}

// TestAnIdleRelayWritesNoJournal_AndTheTimeOfAContactOnceAMinute: an hour in which nothing happens.
func TestAnIdleRelayWritesNoJournal_AndTheTimeOfAContactOnceAMinute(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{Store: local.New(dir, nil)}
		keeper := state.Open(store, state.Options{History: state.History{Revisions: 5}})
		journal := events.New(events.Limits{})
		keeper.FollowJournal(journal)
		quiet := upstreams.Kind{Config: &scriptedConfig{}, New: func(config.Upstream, upstreams.Env) (upstreams.Source, error) {
			return quietSource{entriesNamed([]string{"a", "b"})}, nil
		}}
		_, node := xdsConfig()
		cfg := &config.Config{Node: node, Upstreams: []config.Upstream{
			{Name: "scripted-east", ClusterID: "east", Guard: config.Guard{Percent: 100}, Source: &scriptedConfig{}},
		}}
		aggregate := mirror.NewAggregate()
		m, err := upstreams.NewManager(cfg, []upstreams.Kind{quiet}, aggregate, keeper, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		m.Record(journal)
		ctx, cancel := context.WithCancel(t.Context())
		m.Restore(ctx)
		parts := []func(context.Context) error{m.Run, aggregate.Run, journal.Run, keeper.Run}
		ended := make(chan error, len(parts))
		for _, run := range parts {
			go func() { ended <- run(ctx) }()
		}

		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := m.Status()[0]; st.State != upstreams.StateSynced {
			t.Fatalf("the upstream is %s", st.State)
		}
		path := filepath.Join(dir, "events.log")
		before, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(before, []byte(`"synced"`)) {
			t.Fatalf("the journal of the start: %v\n%s", err, before)
		}
		appends, writes := store.appends.Load(), store.writes.Load()
		const idle = time.Hour
		time.Sleep(idle)
		synctest.Wait()
		if n := store.appends.Load() - appends; n != 0 {
			t.Errorf("the journal was written %d times in an idle hour", n)
		}
		if n, most := store.writes.Load()-writes, int64(idle/time.Minute); n > most {
			t.Errorf("the state was written %d times in an idle hour, want %d at most: the time of the last contact", n, most)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the journal on the disk is another: %v\n%s", err, after)
		}
		cancel()
		for range parts {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
