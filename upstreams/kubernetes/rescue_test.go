package kubernetes

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"meshrelay/internal/loglimit"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
)

// rescued are kinds of a server, with an object each.
var rescued = map[string]string{"Gateway": "gateways", "Sidecar": "sidecars", "WorkloadGroup": "workloadgroups"}

// refusing returns a server that refuses to serve some paths, and an upstream of it whose targets wait
// for an hour after a failure.
func refusing(t *testing.T, refuses func(path string) bool) (s *apiServer, w *world, works func()) {
	s = newAPIServer(t)
	s.pace.retry, s.pace.retryMost = time.Hour, time.Hour
	s.pace.grace = time.Hour // an outage is never so long that something may have been restored
	s.entry("shop/a", "a.x")
	for kind, plural := range rescued {
		s.Define("networking.istio.io", kind, plural, "v1")
	}
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !refuses(r.URL.Path) {
			return false
		}
		fakekube.Fail(w, 503, "ServiceUnavailable")
		return true
	}
	w = s.mirrors("", "")
	return s, w, func() { s.Set(func() { s.Fault = nil }) }
}

// A reflector waits for up to a minute after several failures; here it is an hour.
func TestTargetsThatWaitGoOnWhenOneOfThemWorksAgain_K8(t *testing.T) {
	_, w, works := refusing(t, func(path string) bool { return strings.HasPrefix(path, "/apis/networking.istio.io/") })
	w.eventually("all wait", func() bool {
		waiting, _ := w.source.waiting(time.Now())
		return len(waiting) > len(rescued)
	})
	works()
	w.synced()
	w.serves("ServiceEntry shop/a")
}

// The watch goes on from where it was: nothing is listed for a server that was away for a moment.
func TestAWatchThatWaitsGoesOnWithoutAList_K8(t *testing.T) {
	s, w, works := refusing(t, func(string) bool { return false })
	w.synced()
	s.entry("shop/b", "b.x") // over the watch, which has lasted, for a reflector
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	lists := s.Asked("serviceentries", "sendInitialEvents") + s.Asked("serviceentries", "limit=500")
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "serviceentries") {
				return false
			}
			fakekube.Fail(w, 429, "TooManyRequests")
			return true
		}
		s.Stops++
	})
	target := w.source.ledger.of(serviceEntry)[0]
	w.eventually("it waits", func() bool { _, waits := target.waits(); return waits })
	works()
	s.entry("shop/c", "c.x")
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/c")
	if n := s.Asked("serviceentries", "sendInitialEvents") + s.Asked("serviceentries", "limit=500"); n != lists {
		t.Errorf("it was listed %d times", n-lists)
	}
}

// waitingTargets returns a source with targets that wait in states, since a minute before now.
func waitingTargets(t *testing.T, states ...TargetState) (s *Source, all []*target, hurried func() string) {
	t.Helper()
	s = &Source{st: newStatus(), pace: usual, log: slog.New(slog.DiscardHandler), complaints: loglimit.New(20, time.Second)}
	s.rescues.bound(usual.rescue)
	woken := make([]int, len(states))
	for i, state := range states {
		one := &target{served: served{kind: mirror.Kind{Kind: fmt.Sprint(i)}}}
		one.shown = state
		one.begin(func() { woken[i]++ })
		one.since = time.Unix(1000-int64(len(states)-i), 0)
		s.st.targets[one.kind] = []*target{one}
		all = append(all, one)
	}
	return s, all, func() string {
		defer clear(woken)
		return fmt.Sprint(woken)
	}
}

func TestAScoutIsTheOneThatMayBeReadAndHasWaitedLongest_K8(t *testing.T) {
	s, all, hurried := waitingTargets(t, Denied, Unserved, Failing, Following)
	now := time.Unix(1000, 0)
	expect := func(at time.Time, works bool, want string) {
		t.Helper()
		if got := s.rescue(at); got != works {
			t.Errorf("it works again: %v", got)
		}
		if got := hurried(); got != want {
			t.Errorf("hurried: %s, want %s", got, want)
		}
	}
	expect(now.Add(-time.Second), false, "[0 0 0 0]") // they wait for a second or two
	expect(now.Add(time.Second), false, "[0 0 1 0]")
	all[2].since = now.Add(time.Second) // it has failed again
	expect(now.Add(2*time.Second), false, "[0 0 0 1]")
	s.following(all[2], 1)
	all[2].end = nil
	expect(now.Add(3*time.Second), true, "[1 1 0 1]")
	expect(now.Add(4*time.Second), false, "[0 0 0 1]")
}

func TestRescuesAreBounded_K8(t *testing.T) {
	for name, works := range map[string]bool{"scouts of a kind that fails for ever": false, "a kind that works now and then": true} {
		t.Run(name, func(t *testing.T) {
			s, all, _ := waitingTargets(t, Failing, Failing)
			rescues := 0
			all[0].end = func() { rescues++ }
			all[1].since = time.Unix(999, 0)
			for second := range 600 {
				if works {
					s.rescues.works.Store(true)
				}
				s.rescue(time.Unix(2000+int64(second), 0))
			}
			// Of each of the two sorts a few at once, and then one each ten seconds.
			if most := 2 * (rescueBurst + 600/10); rescues < 60 || rescues > most {
				t.Errorf("%d in ten minutes, want at most %d", rescues, most)
			}
		})
	}
}

func TestADiscoveryThatWorksAgainRescuesToo_K8(t *testing.T) {
	s, _, hurried := waitingTargets(t, Failing, Failing)
	s.trouble(troubleDiscovery, errSilent)
	s.trouble(troubleDiscovery, nil)
	if works := s.rescue(time.Unix(2000, 0)); !works || hurried() != "[1 1]" {
		t.Error("they wait still")
	}
}
