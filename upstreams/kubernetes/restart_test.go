package kubernetes

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	disk "meshrelay/state"
	"meshrelay/state/local"
)

// keeps runs an upstream of the server with a state directory, until end or the end of the test.
func (s *apiServer) keeps(dir, settings, more string) (w *world, end func()) {
	s.t.Helper()
	keeper, err := disk.Open(local.New(dir, slog.New(slog.DiscardHandler)), disk.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.keeper = keeper
	w = s.upstream(settings, more)
	var ends []func()
	for _, run := range []func(context.Context) error{w.manager.Run, w.aggregate.Run, w.journal.Run, keeper.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		ends = append(ends, func() {
			cancel()
			if err := <-ended; err != nil {
				s.t.Error(err)
			}
		})
	}
	end = sync.OnceFunc(func() {
		for _, end := range ends { // the keeper writes what the others leave
			end()
		}
	})
	s.t.Cleanup(end)
	return w, end
}

// answered waits until the server has told all that it has, and what is gone was judged.
func (w *world) answered() {
	w.t.Helper()
	w.until("all is answered", func() bool { return w.source.runs.Load() && w.source.feed.Synced() })
	w.synced()
}

// What is on disk is not decoded again, but for objects of which fields are left out.
func TestUnknownFieldsAreKnownAfterARestart_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), newAPIServer(t)
		s.entry("shop/a", "a.x", `{"spec":{"fresh":1}}`)
		s.entry("shop/b", "b.x")
		for range 3 {
			w, end := s.keeps(dir, "", "")
			w.synced()
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
			w.until("one has unknown fields", func() bool { return len(w.detail().UnknownFields) == 1 })
			end()
		}
		s.entry("shop/a", "a.x")
		w, _ := s.keeps(dir, "", "")
		w.answered()
		if k := w.detail().UnknownFields; len(k) > 0 {
			t.Errorf("unknown fields in %q", k)
		}
	})
}
