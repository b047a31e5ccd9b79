package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// world has writers of one sink, and the command promote. All may be slow, frozen and killed.
type world struct {
	t      *testing.T
	server *fakekube.Server

	mu       sync.Mutex
	random   *rand.Rand
	promoted bool   // promote has said so
	writes   int    // of the sink
	wrong    string // a write that came too late
	log      []string
}

func (w *world) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.random.Int64N(int64(d)))
}

func (w *world) oneIn(n int) bool { return w.upTo(time.Duration(n)) == 0 }

// actor is a process. Its requests reach the server after a while, and so do their answers.
type actor struct {
	*world
	name   string
	ctx    context.Context // ends when the process is killed
	freeze int             // one in so many requests waits for long
}

var errKilled = errors.New("killed")

// RoundTrip implements http.RoundTripper.
func (a *actor) RoundTrip(r *http.Request) (*http.Response, error) {
	object := r.Method == http.MethodPatch
	writes := object
	slow := a.upTo(300 * time.Millisecond)
	if a.oneIn(4) {
		slow = a.upTo(4 * time.Second)
	}
	if !writes && a.oneIn(a.freeze) { // a process that is frozen before a request sends it all the same
		slow = a.upTo(40 * time.Second)
	}
	if deadline, ok := r.Context().Deadline(); writes && ok {
		// The request of a writer ends in time, as the contract wants it. Try the last moment often.
		if end := time.Until(deadline); slow > end || a.oneIn(4) {
			slow = end - 1
		}
	}
	await.Pass(slow)
	if a.ctx.Err() != nil {
		return nil, errKilled
	}
	a.mu.Lock()
	a.log = append(a.log, fmt.Sprintf("%v %s %s %s", time.Now().Format("04:05.000"), a.name, r.Method, r.URL.Path))
	if writes {
		a.writes++
		if a.promoted {
			a.wrong = a.name + " writes, and promote has said that nobody does"
		}
	}
	a.mu.Unlock()
	resp, err := a.server.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	late := a.upTo(200 * time.Millisecond)
	if !writes && a.oneIn(a.freeze) {
		late = a.upTo(15 * time.Second)
	}
	await.Pass(late)
	if a.ctx.Err() != nil {
		return nil, errKilled
	}
	if cause := r.Context().Err(); cause != nil && a.oneIn(2) { // else the process was frozen, and the answer is there
		return nil, cause
	}
	return resp, err
}

// write writes objects of the sink while it may, until ctx ends.
func (a *actor) write(ctx context.Context) {
	conn := connOf(a)
	l := lease.New(lease.Options{
		Conn: func() *apiserver.Conn { return conn }, Namespace: namespace, Name: ObjectName("dr"), Identity: a.name, Logger: slog.New(slog.DiscardHandler),
		Check: func(context.Context) error { return nil }, Terms: func() (t lease.Terms) { return t }, Keep: func(_, _ lease.Terms) error { return nil }, Begin: func() (bool, error) { return true, nil },
	})
	var all sync.WaitGroup
	all.Go(func() { _ = l.Run(ctx) }) // it may be killed before the release
	for i := 0; ctx.Err() == nil; i++ {
		if now := time.Now(); l.Writable(now) {
			ctx, cancel := context.WithDeadline(ctx, now.Add(apiserver.WriteTimeout))
			_ = apply(ctx, conn, "ServiceEntry", fmt.Sprint("a", i%3), "meshrelay-sink-dr", strings.Replace(labels, `"1"`, fmt.Sprintf(`"%d"`, i), 1), `{"hosts":["a.example"]}`)
			cancel()
		}
		mirror.Sleep(ctx, a.upTo(2*time.Second))
	}
	all.Wait()
}

// play promotes while processes write, and returns the world after it.
func play(t *testing.T, seed uint64) *world {
	w := &world{t: t, server: newServer(), random: rand.New(rand.NewPCG(seed, 1))}
	for i := range 3 {
		if err := apply(t.Context(), connOf(w.server), "ServiceEntry", fmt.Sprint("a", i), "meshrelay-sink-dr", labels, `{"hosts":["a.example"]}`); err != nil {
			t.Fatal(err)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			for ctx.Err() == nil { // a process that is killed or ends starts again
				life, cancel := context.WithTimeout(ctx, 5*time.Second+w.upTo(60*time.Second))
				alive, kill := context.WithCancel(context.Background())
				if w.oneIn(2) {
					context.AfterFunc(life, kill)
				}
				a := &actor{world: w, name: fmt.Sprint("writer", i), ctx: alive, freeze: 12}
				a.write(life)
				kill()
				cancel()
				mirror.Sleep(ctx, w.upTo(5*time.Second))
			}
		})
	}
	await.Pass(5*time.Second + w.upTo(20*time.Second))
	for tries := 0; ; tries++ {
		life, kill := context.WithCancel(ctx)
		if tries < 4 && w.oneIn(2) {
			life, kill = context.WithTimeout(ctx, w.upTo(60*time.Second))
		}
		a := &actor{world: w, name: "promote", ctx: life, freeze: 30}
		o := options(t, connOf(a))
		o.Tell = func(string, ...any) {}
		err := Promote(life, o)
		kill()
		if err == nil || tries > 20 {
			w.mu.Lock()
			if w.promoted = true; err != nil {
				w.wrong = err.Error()
			}
			w.mu.Unlock()
			break
		}
	}
	await.Pass(60 * time.Second)
	end()
	all.Wait()
	return w
}

// TestNothingIsWrittenAfterPromoteHasEnded: whoever is slow, frozen, killed, or ends.
func TestNothingIsWrittenAfterPromoteHasEnded(t *testing.T) {
	seeds, writes := uint64(200), 0
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			w := play(t, seed)
			if w.wrong != "" {
				t.Fatalf("seed %d: %s\n%s", seed, w.wrong, strings.Join(w.log, "\n"))
			}
			writes += w.writes
		})
	}
	if writes < int(seeds) {
		t.Errorf("%d writes in %d worlds: the sinks did not write", writes, seeds)
	}
}
