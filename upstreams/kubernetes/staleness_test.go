package kubernetes

import (
	"bytes"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	keep "meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

const dropped = "  staleness: {staleAfter: 1s, expireAfter: 1s}\n"

// An API server that is away for longer than staleAfter is stale, and what it gave is served for as long
// as its rules let it.
func TestAnAPIServerThatIsAwayForLongIsStale_K4(t *testing.T) {
	answers := func(code int, reason string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, code, reason); return true }
	}
	all := []string{"ServiceEntry shop/a", "Sidecar shop/own"}
	for name, tc := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		rules string
		left  []string
	}{
		"errors":               {answers(500, "InternalError"), dropped, nil},
		"too many requests":    {answers(429, "TooManyRequests"), dropped, nil},
		"credentials":          {answers(401, "Unauthorized"), dropped, nil},
		"connections that end": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, dropped, nil},
		"expireAfter: never":   {answers(500, "InternalError"), "  staleness: {staleAfter: 1s}\n", all},
		"expireAfter":          {answers(500, "InternalError"), "  staleness: {staleAfter: 1s, expireAfter: 1500ms}\n", nil},
		"less than staleAfter": {answers(500, "InternalError"), "  staleness: {staleAfter: 1h, expireAfter: 1h}\n", all},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.Define("networking.istio.io", "Sidecar", "sidecars", "v1")
			s.entry("shop/a", "a.x")
			s.Put("networking.istio.io/sidecars", fakekube.Object("shop", "own", `{}`))
			w := s.mirrors("", tc.rules)
			w.synced()
			w.serves(all...)
			s.Set(func() { s.Fault = tc.fault })
			s.drop()
			w.until("it is out of contact", func() bool { return !w.status().InContact })
			if name != "less than staleAfter" {
				w.until("it is stale", func() bool { return w.status().Stale })
				w.serves(tc.left...)
				await.Pass(600 * time.Millisecond) // expireAfter is over
			}
			w.serves(tc.left...)
			st := w.status()
			expired := 0
			for _, n := range st.Expired {
				expired += n
			}
			if expired != len(all)-len(tc.left) {
				t.Errorf("%d have expired: %v", expired, st.Expired)
			}
			s.Set(func() { s.Fault = nil })
			s.drop()
			w.synced()
			w.serves(all...)
			if st := w.status(); st.Stale || len(st.Expired) > 0 || st.Held != nil {
				t.Errorf("it works again, and is stale %v, expired %v, held %v", st.Stale, st.Expired, st.Held)
			}
		})
	}
}

// A server that has nothing to tell is in contact.
func TestAnAPIServerThatAnswersIsNeverStale_K4(t *testing.T) {
	for name, happens := range map[string]func(s *apiServer){
		"nothing happens":   func(*apiServer) {},
		"watches end":       func(s *apiServer) { s.Set(func() { s.Stops++ }) },
		"nothing is served": func(s *apiServer) { s.Remove(entries, "shop/a") },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.pace = usual
			s.entry("shop/a", "a.x")
			w := s.mirrors("", "  staleness: {staleAfter: 30s, expireAfter: 30s}\n  guard: {percent: 100}\n")
			w.synced()
			for since := time.Duration(0); since < time.Minute; since += time.Second { // twice staleAfter
				for range 10 {
					happens(s)
					await.Pass(100 * time.Millisecond)
					if st := w.status(); st.Stale || !st.InContact || len(st.Expired) > 0 {
						t.Fatalf("after %v: stale %v, in contact %v, expired %v: %s", since, st.Stale, st.InContact, st.Expired, st.LastError)
					}
				}
			}
			if all := w.events(events.Stale); len(all) > 0 {
				t.Errorf("the journal tells %q", all)
			}
		})
	}
}

// What an API server gave before is served by a rollback, until the upstream is unfrozen.
func TestAnAPIServerIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		keeper, err := keep.Open(local.New(t.TempDir(), nil), keep.Options{FlushInterval: time.Hour, History: keep.History{Revisions: 5}})
		if err != nil {
			t.Fatal(err)
		}
		s.keeper = keeper
		(&world{t: t}).run(keeper.Run) // it ends behind the upstreams
		s.entry("shop/a", "before.x")
		s.entry("shop/gone", "gone.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/gone")
		revision := func(n int) keep.Revision {
			t.Helper()
			if err := keeper.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			all, err := w.manager.History("east")
			if err != nil || len(all) != n {
				t.Fatalf("%d revisions, want %d: %+v, %v", len(all), n, all, err)
			}
			return all[0]
		}
		order := func(verb string, o intake.Order) {
			t.Helper()
			if _, err := w.manager.Order(t.Context(), "east", verb, o); err != nil {
				t.Fatal(err)
			}
		}
		hosts := func(want string) {
			t.Helper()
			w.until("a has the host "+want, func() bool {
				r := w.aggregate.Get(mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "a"})
				return r != nil && bytes.Contains(r.Spec().Body.GetValue(), []byte(want))
			})
		}
		former := revision(1)
		s.entry("shop/a", "after.x")
		s.entry("shop/new", "new.x")
		s.Remove(entries, "shop/gone")
		hosts("after.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/new")
		if r := revision(2); r.Added != 1 || r.Changed != 1 || r.Removed != 1 {
			t.Errorf("the revision has %+v", r)
		}
		order("rollback", intake.Order{To: former.ID})
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/gone")
		hosts("before.x")

		// Neither changes nor a new list end that.
		s.entry("shop/late", "late.x")
		s.Compact()
		s.drop()
		w.until("all changes wait", func() bool { f := w.status().Frozen; return f != nil && f.Revision == former.ID && f.Waiting == 4 })
		w.until("it is in contact", func() bool { return w.status().InContact && w.status().State != upstreams.StateDisconnected })
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/gone")
		hosts("before.x")
		order("unfreeze", intake.Order{})
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/late", "ServiceEntry shop/new")
		hosts("after.x")
	})
}
