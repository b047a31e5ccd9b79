package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/object"
)

// between calls functions before and after the first selection of a key that is.
type between struct {
	*mirror.Aggregate
	is            func(mirror.Key) bool
	before, after func(mirror.Key)
	once          atomic.Bool
}

func (b *between) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	if !b.is(key) || !b.once.CompareAndSwap(false, true) {
		return b.Aggregate.Select(key, cluster, accept)
	}
	if b.before != nil {
		b.before(key)
	}
	r := b.Aggregate.Select(key, cluster, accept)
	if b.after != nil {
		b.after(key)
	}
	return r
}

// flies reports whether a worker has begun with a key.
func (w *world) flies(key mirror.Key) bool {
	e := w.engine()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flying[key] != nil
}

func (w *world) marked(keys ...mirror.Key) bool {
	e := w.engine()
	e.marks.Lock()
	defer e.marks.Unlock()
	for _, k := range keys {
		if _, is := e.marks.keys[k]; !is {
			return false
		}
	}
	return true
}

func TestAChangeWhileARequestIsMadeIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put("east", "other", "other.x")
		w.deps.Resources = &between{Aggregate: w.aggregate, is: func(k mirror.Key) bool { return k == key("db") && w.flies(k) }, after: func(mirror.Key) {
			before := w.desired("db")
			w.put("east", "db", "second.x")
			w.until("the change is read", func() bool { return w.desired("db") != before })
		}}
		w.start().settled()
		w.put("east", "db", "first.x")
		w.until("the change is there", func() bool { return host(w.object("db")) == "second.x" })
	})
}

func TestADepartureIsNotLostWhenAllIsToBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		e, g := w.engine(), w.stopReading()
		e.changed(key("n05"))
		<-g.stopped
		w.remove("east", "n03")
		w.until("it is marked", func() bool { return w.marked(key("n03")) })
		e.readAll()
		close(g.opens)
		w.until("it is gone", func() bool { return w.object("n03") == nil })
	})
}

func TestADeletionWhileItsObjectIsCreatedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put("east", "other", "other.x")
		w.start().settled()
		e := w.engine()
		var once atomic.Bool
		w.fault(func(rw http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/db") || !once.CompareAndSwap(false, true) {
				return false
			}
			answer := &discard{}
			w.ServeHTTP(answer, r)
			w.Remove(entries, "shop/db")
			w.edit(http.MethodPut, "kubectl-edit", "other", func(o map[string]any) { at(o, "metadata", "labels").(map[string]any)["a"] = "b" })
			version := at(w.object("other"), "metadata", "resourceVersion")
			w.until("the events are there", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.core.Live(key("other")).Version == version
			})
			rw.WriteHeader(answer.code)
			_, _ = rw.Write(answer.body.Bytes())
			return true
		})
		w.put("east", "db", "db.x")
		w.until("it is there again", func() bool { return once.Load() && w.object("db") != nil })
	})
}

func TestATroubleEndsWithWhatItIsAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(3)
		w.start().settled()
		var refused atomic.Bool
		w.fault(func(rw http.ResponseWriter, _ *http.Request) bool {
			w.remove("east", "db")
			w.until("it is not desired", func() bool { return w.desired("db") == plan.Digest{} })
			fakekube.Fail(rw, http.StatusUnprocessableEntity, "Invalid")
			refused.Store(true)
			return true
		})
		w.put("east", "db", "db.x")
		w.until("it was refused", refused.Load)
		w.settled()
	})
}

func TestAnObjectIsNotAppliedBeforeItsChangeIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(3)
		var armed atomic.Bool
		done := make(chan struct{})
		w.deps.Resources = &between{Aggregate: w.aggregate, is: func(k mirror.Key) bool { return armed.Load() && k != key("n02") }, before: func(k mirror.Key) {
			other := "n00"
			if k == key(other) {
				other = "n01"
			}
			go func() {
				defer close(done)
				if a := w.engine().applied(key(other)); a.State == "applied" && host(w.object(other)) != "changed.x" {
					t.Error(a, w.object(other))
				}
			}()
			letRun(done)
		}}
		w.start().settled()
		g := w.stopReading()
		w.engine().changed(key("n02"))
		<-g.stopped
		w.put("east", "n00", "changed.x")
		w.put("east", "n01", "changed.x")
		w.until("they are marked", func() bool { return w.marked(key("n00"), key("n01")) })
		armed.Store(true)
		close(g.opens)
		<-done
	})
}

// late calls a function when it was asked for the first time to catch up.
type late struct {
	*mirror.Aggregate
	once func()
}

func (l late) CaughtUp(ctx context.Context) error {
	err := l.Aggregate.CaughtUp(ctx)
	l.once()
	return err
}

func TestADepartureDuringAJudgementIsJudgedWithThoseAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.spec.Prune = true })
		w.many(20)
		w.deps.Resources = late{w.aggregate, sync.OnceFunc(func() {
			w.remove("east", "n04")
			w.until("it is marked", func() bool { return w.marked(key("n04")) || w.desired("n04") == plan.Digest{} })
		})}
		w.start().settled()
		e := w.engine()
		waiting := func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return !e.lastGone.IsZero()
		}
		w.remove("east", "n03")
		w.until("it is not desired", waiting)
		e.mu.Lock()
		e.lastGone = e.lastGone.Add(-quiet)
		e.mu.Unlock()
		e.judge(t.Context(), time.Now())
		if !waiting() {
			t.Error("the other one does not wait for more")
		}
	})
}

func TestAFailedSinkKeepsNoMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().settled()
		e := w.engine()
		e.contain(func() { panic("a bug") })
		<-e.ended
		for i := range 100 {
			e.changed(key(fmt.Sprint(i)))
		}
		e.marks.Lock()
		defer e.marks.Unlock()
		if len(e.marks.keys) != 0 {
			t.Errorf("%d keys", len(e.marks.keys))
		}
	})
}

func TestAFreezeStopsRequestsThatWaitForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(3)
		w.start().settled()
		waits, goes := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		w.Set(func() {
			w.Fault = func(rw http.ResponseWriter, r *http.Request) bool {
				if w.note(rw, r); strings.HasSuffix(r.URL.Path, "/kube-system") && w.flies(key("db")) && once.CompareAndSwap(false, true) {
					close(waits)
					<-goes
				}
				return false
			}
		})
		tries := 0
		w.until("a worker asks who the cluster is", func() bool {
			w.engine().cluster.Broken()
			tries++
			w.put("east", "db", fmt.Sprintf("db%d.x", tries)) // again if the answer to another was enough
			select {
			case <-waits:
				return true
			default:
				return false
			}
		})
		before := w.wrote()
		if _, err := w.order("freeze", ""); err != nil {
			t.Error(err)
		}
		close(goes)
		w.until("the worker has ended", func() bool { return !w.flies(key("db")) })
		if n := w.wrote() - before; n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestAPauseThatAWebhookAsksForConcernsItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fault(func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/n03") {
				rw.Header().Set("Retry-After", "3600")
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(http.StatusTooManyRequests)
				_, _ = fmt.Fprintf(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":429,"message":"admission webhook \"a.b\" denied the request: later","details":{"retryAfterSeconds":3600}}`, metav1.StatusReasonTooManyRequests)
				return true
			}
			return false
		})
		w.many(10)
		w.start().until("the others are there", func() bool { return w.objects() == 9 && w.status().TroublesByState["refused"] == 1 })
	})
}

func TestTheStateIsWrittenAfterItsDirectoryIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deps.Dir = filepath.Join(t.TempDir(), "later")
		w.start().settled()
		if _, err := w.order("freeze", ""); err == nil {
			t.Fatal("no error")
		}
		changed := w.spec
		changed.View = "else"
		first := w.engine()
		w.set.Apply([]Spec{changed})
		w.until("it has started again", func() bool { e := w.engine(); return e != nil && e != first })
		if err := os.Mkdir(w.deps.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.until("the state is there", func() bool {
			k, err := load(w.deps.Dir, "dr")
			return err == nil && cmp.Or(k.Lease.Frozen, k.Pending) != (lease.Note{})
		})
	})
}

func TestPausesOfDriftsDoNotDependOnTheNumberOfDriftedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().settled()
		e := w.engine()
		e.mu.Lock()
		defer e.mu.Unlock()
		for range 3 {
			for i := range 10_000 {
				e.drifted(key(fmt.Sprint(i)), "argocd", "changed")
			}
		}
		for i := range 10_000 {
			if p := e.driftPause(key(fmt.Sprint(i))); p != backoff(3) {
				t.Fatal(i, p)
			}
		}
	})
}

func TestAListWithTooManyObjectsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().settled()
		e := w.engine()
		e.mu.Lock()
		other := mirror.Kind{Group: "a.b", Kind: "C"}
		for i := range maxOwned {
			e.core.See(mirror.Key{Kind: other, Name: fmt.Sprint(i)}, &plan.Live{Sink: "dr"})
		}
		f := e.kinds[key("").Kind]
		e.mu.Unlock()
		o := &object.Object{}
		o.Name, o.Namespace, o.Labels = "above", "shop", map[string]string{mirror.SinkLabel: "dr"}
		f.Prepare(o)
		f.Replace([]*object.Object{o})
		e.mu.Lock()
		defer e.mu.Unlock()
		if lines, _ := e.kindProblems(); len(lines) != 1 || !strings.Contains(lines[0], "find out who") {
			t.Error(lines)
		}
	})
}

func TestAPauseDoesNotDependOnTheWallClock(t *testing.T) {
	e := &engine{}
	e.pause(apierrors.NewTooManyRequests("later", 5))
	if e.paused == e.paused.Round(0) { //nolint:revive,staticcheck // the second one has no reading of the monotonic clock
		t.Error(e.paused)
	}
}

func TestTwoWritersForAMomentDoNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var other *Set
		w := newWorld(t, func(w *world) {
			w.spec.Prune = true
			deps := w.deps
			deps.Dir = t.TempDir()
			other = New(deps)
			w.aggregate.RegisterHandler(func(c mirror.Change) { other.Changed(c.Key) })
		})
		w.many(30)
		w.start()
		other.Apply([]Spec{w.spec})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = other.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		settled := func() {
			t.Helper()
			since := time.Now()
			w.until("both are complete", func() bool {
				two := append(w.set.Status("dr"), other.Status("dr")...)
				return len(two) == 2 && two[0].Complete.After(since) && two[1].Complete.After(since)
			})
		}
		settled()
		for i := range 10 {
			w.put("east", fmt.Sprintf("n%02d", i), "changed.x")
		}
		w.remove("east", "n10")
		w.remove("east", "n11")
		w.until("it is as desired", func() bool { return w.objects() == 28 && host(w.object("n09")) == "changed.x" })
		settled()
		before := w.wrote()
		settled()
		if n := w.wrote() - before; n != 0 || w.objects() != 28 || w.object("n10") != nil || host(w.object("n12")) != "a.x" {
			t.Error(n, w.objects())
		}
	})
}

func TestAClusterThatIsNotFollowedIsNotComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(3)
		w.start().settled()
		e, later := w.engine(), time.Now().Add(time.Hour)
		e.mu.Lock()
		f := e.kinds[key("").Kind]
		e.mu.Unlock()
		f.Failed(errors.New("no answer"))
		e.judge(t.Context(), later)
		if !w.status().Complete.Before(later) {
			t.Error("nobody knows what the cluster has")
		}
		f.Failed(nil)
		e.judge(t.Context(), later)
		if w.status().Complete.Before(later) {
			t.Error(w.status())
		}
	})
}

func TestAShorterPauseDoesNotEndALongerOne(t *testing.T) {
	e := &engine{}
	e.pause(apierrors.NewTooManyRequests("later", 60))
	e.pause(apierrors.NewTooManyRequests("later", 1))
	if time.Until(e.paused) < 50*time.Second {
		t.Error(e.paused)
	}
}

func TestAPauseThatTheCreationOfANamespaceAsksForIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.spec.CreateNamespaces = true })
		w.start().settled()
		w.fault(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				rw.Header().Set("Retry-After", "9")
				fakekube.Fail(rw, http.StatusTooManyRequests, "TooManyRequests")
				return true
			}
			return false
		})
		w.stores["east"].Put(entry(t, "east", "other", "db", "db.x", nil))
		e := w.engine()
		w.until("it pauses", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return time.Until(e.paused) > 5*time.Second
		})
	})
}

// TestARestoredClusterHasEverythingAgain: what an etcd of before has is older than what the sink saw, and no echo of it.
func TestARestoredClusterHasEverythingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.spec.Prune = true
		w.put("east", "changed", "one.x")
		w.put("east", "same", "one.x")
		w.put("east", "gone", "one.x")
		w.start().settled()
		restore := w.Backup()
		w.put("east", "changed", "two.x")
		w.put("east", "late", "one.x")
		w.remove("east", "gone")
		w.until("all is there", func() bool {
			return host(w.object("changed")) == "two.x" && w.object("late") != nil && w.object("gone") == nil
		})
		w.settled()
		restore()
		lists, down := w.Asked("GET", "serviceentries?"), true
		w.Set(func() {
			w.Fault = func(rw http.ResponseWriter, r *http.Request) bool {
				w.note(rw, r)
				if down {
					fakekube.Fail(rw, http.StatusServiceUnavailable, "InternalError")
				}
				return down
			}
		})
		await.Settle(10 * time.Second)
		w.Set(func() { down = false })
		w.until("it is listed anew", func() bool { return w.Asked("GET", "serviceentries?") > lists })
		w.until("all is there again", func() bool {
			return host(w.object("changed")) == "two.x" && w.object("late") != nil && w.object("gone") == nil
		})
		w.settled()
	})
}
