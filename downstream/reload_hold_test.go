package downstream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/views"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/push"
)

// glance is how long a test looks at what must not happen.
const glance = 50 * time.Millisecond

// merged waits until the Aggregate has a resource.
func (r *relay) merged(res *mirror.Resource) {
	r.t.Helper()
	r.eventually(r.t, res.FullName()+" is merged", func() bool { return r.server.views.resources.Get(res.Key()).Equal(res) })
}

// push brings the views to everything, and tells when that is done.
func (r *relay) push() (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		r.server.Push(&push.Request{Full: true, Start: time.Now()})
	}()
	return done
}

func (r *relay) waits(what string, done <-chan struct{}) {
	r.t.Helper()
	if await.Settle(glance); mirror.IsClosed(done) {
		r.t.Errorf("%s, in the middle of a reload", what)
	}
}

// TestNobodyIsSentWhatIsNeitherBeforeNorAfterAReload: not who was there before, and not who
// comes meanwhile.
func TestNobodyIsSentWhatIsNeitherBeforeNorAfterAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
		r.put(se("shop", "x", "1"), se("bank", "z", "1"))
		before := r.deltaBy("before", seV1)
		before.next()
		var pushed chan struct{}
		var meanwhile *deltaStream
		err := r.server.Reload(t.Context(), []views.View{namespaces("w", "", "bank")}, Limits{}, func(held context.Context) error {
			if until, ok := held.Deadline(); !ok || time.Until(until) > longestHold {
				t.Errorf("clients may have to wait until %v", until)
			}
			between := se("shop", "between", "1")
			r.store.Put(between)
			r.merged(between)
			pushed = r.push()
			meanwhile = r.deltaBy("meanwhile", seV1)
			r.waits("a push is done", pushed)
			if n := len(r.server.Clients()); n != 1 {
				t.Errorf("%d clients have a view, want the one that had it before", n)
			}
			after := se("bank", "after", "1")
			r.store.Put(after)
			r.merged(after)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-pushed
		if got := deltaNames(before.next()) + " " + deltaNames(before.next()); got != "bank/after bank/z -shop/x" {
			t.Errorf("who was there before was sent %q", got)
		}
		if got := deltaNames(meanwhile.next()); got != "bank/after bank/z" {
			t.Errorf("who came meanwhile was sent %q", got)
		}
	})
}

// TestNobodyEntersByRulesOfBefore: whoever was about to get a view when a hold began chooses again after it.
func TestNobodyEntersByRulesOfBefore(t *testing.T) {
	s := startInMemory(t, true).server
	ctx, cancel := context.WithCancel(t.Context())
	before, err := s.settled(ctx)
	if err != nil {
		t.Fatal(err)
	}
	enters := func() bool {
		done, _ := (&conn{server: s, closed: true}).enter(before, &view{}, nil, &views.Client{})
		return done
	}
	rules := s.hold()
	cancel()
	if _, err := s.settled(ctx); err == nil || enters() {
		t.Errorf("enters: %v, settled: %v", enters(), err)
	}
	if s.free(rules); enters() {
		t.Error("it enters by what was before the hold")
	}
}

func TestAReloadWhoseChangeFailsLeavesTheViews(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	r.put(se("shop", "x", "1"))
	d := r.deltaBy("a", seV1)
	d.next()
	bad := errors.New("no such CA file")
	err := r.server.Reload(t.Context(), []views.View{namespaces("w", "", "bank")}, Limits{Limits: admit.Limits{MaxStreams: 7}}, func(context.Context) error { return bad })
	if !errors.Is(err, bad) || r.server.limits.Load().MaxStreams == 7 {
		t.Errorf("%v, and the limits are %+v", err, r.server.limits.Load())
	}
	r.put(se("bank", "z", "1"), se("shop", "y", "1"))
	if got := deltaNames(d.next()); got != "shop/y" {
		t.Errorf("got %q", got)
	}
}

// TestAReloadThatTakesLongLetsClientsGo: they are served what there is, and the views are
// replaced when it is done.
func TestAReloadThatTakesLongLetsClientsGo(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	r.put(se("shop", "x", "1"), se("bank", "z", "1"))
	d := r.deltaBy("a", seV1)
	d.next()
	ctx, tooLong := context.WithCancel(t.Context())
	err := r.server.Reload(ctx, []views.View{namespaces("w", "", "bank")}, Limits{}, func(held context.Context) error {
		r.store.Put(se("shop", "y", "1"))
		tooLong()
		<-held.Done()
		if got := deltaNames(d.next()); got != "shop/y" {
			t.Errorf("in the middle of the reload: %q", got)
		}
		if got := deltaNames(r.deltaBy("b", seV1).next()); got != "shop/x shop/y" {
			t.Errorf("a new client was sent %q", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := deltaNames(d.next()) + " " + deltaNames(d.next()); got != "bank/z -shop/x -shop/y" {
		t.Errorf("after it: %q", got)
	}
}

// TestAServerDoesNotOpenInTheMiddleOfAReload: what clients are sent first is of one config.
func TestAServerDoesNotOpenInTheMiddleOfAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, false, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
		r.put(se("shop", "x", "1"), se("bank", "z", "1"))
		d := r.deltaBy("a", seV1)
		r.eventually(t, "the client is there", func() bool { return len(r.server.Clients()) == 1 })
		err := r.server.Reload(t.Context(), []views.View{namespaces("w", "", "bank")}, Limits{}, func(context.Context) error {
			r.store.SetSynced()
			synced := r.server.views.resources.(*mirror.Aggregate).Synced()
			r.eventually(t, "the sources have synced", func() bool { return mirror.IsClosed(synced) })
			r.waits("the server has opened", r.server.Released())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := deltaNames(d.next()); got != "bank/z" {
			t.Errorf("got %q", got)
		}
	})
}
