package sink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"meshrelay/config"
	"meshrelay/federation/merge"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func (w *world) engine() *engine {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	return w.set.engines["dr"]
}

// desired returns the digest of what is desired of an entry, the zero Digest for nothing.
func (w *world) desired(name string) plan.Digest {
	e := w.engine()
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.core.Wanted(key(name)); d != nil {
		return *d
	}
	return plan.Digest{}
}

func TestAChangeDuringAWriteIsNotLost(t *testing.T) {
	for name, change := range map[string]func(*world){
		"another content": func(w *world) { w.put("east", "db", "second.x") },
		"a deletion":      func(w *world) { w.remove("east", "db") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w *world) { w.spec.Prune = true })
				w.put("east", "other", "other.x")
				w.start().settled()
				var once atomic.Bool
				w.fault(func(http.ResponseWriter, *http.Request) bool {
					if once.CompareAndSwap(false, true) {
						before := w.desired("db")
						change(w)
						w.until("the change is read", func() bool { return w.desired("db") != before })
					}
					return false
				})
				w.put("east", "db", "first.x")
				w.until("the change is there", func() bool {
					o := w.object("db")
					return name == "a deletion" && o == nil && w.sent("DELETE") == 1 || o != nil && host(o) == "second.x"
				})
			})
		})
	}
}

func TestAConflictThatIsNoneOfVersionsIsToldAndTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		refuse := func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/n03") {
				fakekube.Fail(rw, http.StatusConflict, "Conflict") // of a webhook, or a quota
				return true
			}
			return false
		}
		w.fault(refuse)
		w.many(10)
		w.start().until("the others are there", func() bool { return w.objects() == 9 && w.status().TroublesByState["refused"] == 1 })
		w.fault(nil)
		w.settled()
		w.fault(refuse)
		w.put("east", "n03", "changed.x")
		w.until("it is told of a change", func() bool { return w.status().TroublesByState["refused"] == 1 })
	})
}

func TestAPauseThatAnObjectAsksForDoesNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fault(func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/n03") {
				rw.Header().Set("Retry-After", "3600")
				fakekube.Fail(rw, http.StatusForbidden, "Forbidden")
				return true
			}
			return false
		})
		w.many(10)
		w.start().until("the others are there", func() bool { return w.objects() == 9 && w.status().TroublesByState["refused"] == 1 })
	})
}

func TestAPauseIsBounded(t *testing.T) {
	e := &engine{}
	if !e.pause(apierrors.NewTooManyRequests("later", 1<<30)) {
		t.Fatal("no pause")
	}
	if time.Until(e.paused) > retryMost {
		t.Error(e.paused)
	}
}

func TestObjectsThatAnotherRelayHasWrittenAreNotPruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		w.stop()
		w.remove("east", "n03")
		w.deps.Relay = "r2"
		w.start().until("it is left", func() bool {
			s := w.status()
			return s.Todo["left"] == 1 && len(s.Examples) == 1 && s.Examples[0].Reason == plan.ReasonSources
		})
		if w.object("n03") == nil {
			t.Error("it is gone")
		}
	})
}

func TestTheTextsOfAnObjectAreBounded(t *testing.T) {
	e := &engine{spec: Spec{Sink: config.Sink{Name: "dr"}}, deps: &Deps{Relay: "r1"}}
	live := func(sources string) *plan.Live {
		long := strings.Repeat("x", 10<<10)
		return e.liveOf(&metav1.ObjectMeta{
			UID: types.UID(long), ResourceVersion: long, Labels: map[string]string{mirror.SinkLabel: long},
			Annotations:   map[string]string{sourcesAnnotation: sources, mirror.PathAnnotation: "r1"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long, Time: &metav1.Time{Time: time.Unix(1, 0)}, FieldsV1: &metav1.FieldsV1{}}},
		})
	}
	l, few := live(strings.Repeat("x", maxSources)), live("east")
	if n := len(l.UID) + len(l.Version) + len(l.Sink) + len(l.Manager); n != 4*maxText || (seen{l}).Size()-(seen{few}).Size() != maxSources-len("east") {
		t.Error(n, (seen{l}).Size())
	}
	if l := live(strings.Repeat("x", maxSources+1)); l.Sources != "" {
		t.Error("no bound for the upstreams")
	}
}

func TestObjectsWithTheLabelAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().settled()
		e := w.engine()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.discovered = false // no worker looks at them
		e.core.Want(key("desired"), &plan.Digest{})
		for i := range maxOwned + 1 {
			e.see(key(fmt.Sprint(i)), &plan.Live{UID: "u", Version: "1", Sink: "dr"}, false)
		}
		if _, owned := e.core.Counts(); owned != maxOwned {
			t.Error(owned)
		}
		e.see(key("desired"), &plan.Live{UID: "u", Version: "1", Sink: "dr"}, false)
		if _, owned := e.core.Counts(); owned != maxOwned+1 {
			t.Error("a desired one is not seen")
		}
		if lines, _ := e.kindProblems(); len(lines) != 1 || !strings.Contains(lines[0], "find out who") {
			t.Error(lines)
		}
	})
}

func TestAnObjectOfTwoSinksNamesTheRelaysOfBoth(t *testing.T) {
	base := entry(t, "dr1", "shop", "db", "db.x", nil)
	r, err := mirror.New(mirror.Spec{
		Key: base.Key(), Source: "dr1", Cluster: "dr1", Body: base.Body(), Labels: map[string]string{mirror.SinkLabel: "first"},
		Annotations: map[string]string{mirror.PathAnnotation: "a,b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{spec: Spec{Sink: config.Sink{Name: "dr"}}, deps: &Deps{Relay: "r1"}}
	b, _, err := e.bodyOf(wanted{Resource: r, sources: []string{"dr1"}}, "")
	if err != nil || b.Metadata.Annotations[mirror.PathAnnotation] != "a,b,r1" {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestNamesThatComeAndGoBeforeTheReleaseAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deps.Released = make(chan struct{})
		w.start().until("it runs", func() bool { return w.engine() != nil })
		e := w.engine()
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

// slowLease takes all the time of a request to tell that one may be sent.
type slowLease struct{ theLease }

func (l *slowLease) Writable(now time.Time) bool {
	if !l.held.Load() {
		return false
	}
	await.Pass(time.Until(now.Add(apiserver.WriteTimeout)))
	return true
}

func TestARequestEndsInTheTimeThatTheLeaseWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := &slowLease{}
		w.deps.Lease = func(lease.Options) Writer { return l }
		w.start().until("the cluster is read", func() bool { return w.status().State == "standby" })
		l.held.Store(true)
		err := w.engine().send(t.Context(), apiserver.Write{Method: http.MethodPost, Path: "/api/v1/namespaces", Type: apiserver.TypeJSON, Body: []byte(`{}`)}, nil)
		if !errors.Is(err, context.DeadlineExceeded) || w.wrote() != 0 {
			t.Error(err, w.wrote())
		}
	})
}

func TestACopyOfAnotherUpstreamDoesNotDeleteAnObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.spec.Prune = true
			w.aggregate.SetPolicies(nil, merge.Reject{})
		})
		w.many(20)
		w.start().settled()
		w.put("west", "n03", "hostile.x")
		w.until("it is left", func() bool {
			s := w.status()
			return s.Todo["left"] == 1 && len(s.Examples) == 1 && s.Examples[0].Reason == plan.ReasonCopies
		})
		if w.object("n03") == nil {
			t.Error("it is gone")
		}
		w.remove("west", "n03")
		w.settled()
	})
}

// The guard judges again after departures have come to rest. Until then its last verdict may be seconds old.
func TestADeletionThatWasLetPassIsNotCarriedOutWhenAnUpstreamMayHaveItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var again, asked atomic.Bool
		w := newWorld(t, func(w *world) {
			w.spec.Prune = true
			w.deps.Blocked = func() func(string, mirror.Key) string {
				return func(string, mirror.Key) string {
					if asked.Store(again.Load()); again.Load() {
						return "its content is refused"
					}
					return ""
				}
			}
		})
		w.many(20)
		w.start().settled()
		w.lease.held.Store(false)
		w.remove("east", "n03")
		w.until("it may go", func() bool { return w.status().Todo["delete"] == 1 })
		e := w.engine()
		rest := func(at time.Time) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.firstGone, e.lastGone = at, at
		}
		rest(time.Now().Add(time.Hour)) // more and more are coming
		again.Store(true)
		w.lease.held.Store(true)
		w.until("a worker has looked", func() bool { return asked.Load() || w.object("n03") == nil })
		w.until("it is done with it", func() bool { return !w.flies(key("n03")) })
		if w.object("n03") == nil {
			t.Fatal("an upstream may have it, and it is gone")
		}
		again.Store(false)
		w.until("it is gone", func() bool { return w.object("n03") == nil })
		rest(time.Time{})
		w.settled()
	})
}

func TestAFailureThatLastsIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().settled()
		e := w.engine()
		for range 3 {
			e.trouble("state", errors.New("the disk is full"))
			e.fails(key("db"), stateRefused, errors.New("a webhook"))
		}
		e.fails(key("db"), stateFailed, errors.New("no answer"))
		e.trouble("state", errors.New("it is not mounted"))
		w.mu.Lock()
		defer w.mu.Unlock()
		for line, n := range map[string]int{"the disk is full": 1, "it is not mounted": 1, "a webhook": 1, "no answer": 1} {
			if got := strings.Count(w.log.String(), line); got != n {
				t.Errorf("%s: %d lines", line, got)
			}
		}
	})
}
