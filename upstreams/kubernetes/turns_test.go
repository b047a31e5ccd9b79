package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// The agent of a request names its upstream, so that one server can be all clusters.
func TestFoundClustersListAFewAtATime_K8(t *testing.T) {
	const all, atOnce = 24, 3
	s := newAPIServer(t)
	s.pace = usual // so many quick ones would be busy with nothing else
	s.pace.look = 20 * time.Millisecond
	s.entry("shop/a", "a.x")
	var mu sync.Mutex
	listing, released := map[string]bool{}, make(chan struct{})
	s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "serviceentries") {
			mu.Lock()
			listing[r.UserAgent()] = true
			mu.Unlock()
			select {
			case <-released:
			case <-r.Context().Done():
			}
		}
		return false
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(listing)
	}
	turns := newTurns(atOnce, time.Hour)
	kind := Kind()
	kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		source := New(u, env)
		source.pace, source.turns = s.pace, turns
		return source, nil
	}
	w := &world{apiServer: s, t: t, aggregate: mirror.NewAggregate(), path: s.kubeconfig("t")}
	cfg := w.config("", "")
	one := cfg.Upstreams[0]
	cfg.Upstreams = nil
	for i := range all {
		one.Name, one.ClusterID = fmt.Sprint("c", i), fmt.Sprint("c", i)
		cfg.Upstreams = append(cfg.Upstreams, one)
	}
	var err error
	w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.run(w.manager.Run, w.aggregate.Run)
	w.eventually("all others wait for their turn", func() bool { return turns.waiting() == all-atOnce && count() == atOnce })
	close(released)
	w.eventually("all have synced", func() bool {
		for _, st := range w.manager.Status() {
			if st.State != upstreams.StateSynced {
				return false
			}
		}
		return turns.waiting() == 0 && len(turns.slots) == 0
	})
	if n := count(); n != all {
		t.Errorf("%d of %d have listed", n, all)
	}
}

func TestOnlyFoundClustersWaitForATurn(t *testing.T) {
	kind := Kind()
	for _, found := range []*Access{nil, NewAccess("x")} {
		source, err := kind.New(config.Upstream{Name: "a", Source: &Config{Found: found}}, envOf())
		if err != nil || (source.(*Source).turns != nil) != (found != nil) {
			t.Errorf("found %v: %v", found != nil, err)
		}
	}
}

func TestATurnEndsByItselfAndNobodyWaitsForOneThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, turnTime)
		began := time.Now()
		first := turns.take(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		turns.take(ctx)() // it has ended, and frees nothing
		second := turns.take(t.Context())
		if took := time.Since(began); took != turnTime {
			t.Errorf("after %s", took)
		}
		first()
		if len(turns.slots) != 1 {
			t.Error("a turn that is over has ended another one")
		}
		second()
		second()
		if len(turns.slots) != 0 || turns.waiting() != 0 {
			t.Errorf("%d turns, %d wait", len(turns.slots), turns.waiting())
		}
	})
}
