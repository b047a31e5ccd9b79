package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is one that wants the Lease. Its clock is some time ahead, and it can be frozen.
type process struct {
	*Lease
	t      *testing.T
	server *fakekube.Server
	ahead  time.Duration
	end    func()
	ended  chan struct{}

	mu     sync.Mutex
	frozen time.Duration // before its next request of the method before, or before CHECK; empty: any request
	before string
	late   time.Duration // of each request
	check  error
	// promoted, unless nil, makes Check fail
	promoted *atomic.Bool
}

// RoundTrip sends a request of the process. The times that it writes are of its clock.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	p.freeze(r.Method)
	p.mu.Lock()
	late := p.late
	p.mu.Unlock()
	await.Pass(late)
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(body), `"holderIdentity":""`) && p.Writable(time.Now()) {
			p.t.Error("a process releases the Lease, and can write")
		}
		now := time.Now().UTC()
		text := strings.ReplaceAll(string(body), now.Format("2006-01-02T15:04:05"), now.Add(p.ahead).Format("2006-01-02T15:04:05"))
		r.Body = io.NopCloser(bytes.NewReader([]byte(text)))
	}
	resp, err := p.server.RoundTrip(r)
	p.freeze("ANSWER " + r.Method)
	return resp, err
}

// freeze lets time pass. A frozen process does not notice that its context ends.
func (p *process) freeze(at string) {
	p.mu.Lock()
	pause := time.Duration(0)
	if p.before == "" && at == strings.TrimPrefix(at, "ANSWER ") && at != "CHECK" || p.before == at {
		pause, p.frozen = p.frozen, 0
	}
	p.mu.Unlock()
	await.Pass(pause)
}

// until returns the end of what p has renewed last.
func (p *process) until() time.Time {
	p.Lease.mu.Lock()
	defer p.Lease.mu.Unlock()
	return p.core.end
}

func (p *process) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func start(t *testing.T, s *fakekube.Server, name string, ahead time.Duration) *process {
	p := &process{t: t, server: s, ahead: ahead, ended: make(chan struct{})}
	conn := apiserver.NewConn("https://kube", p)
	p.Lease = New(Options{
		Conn: func() *apiserver.Conn { return conn }, Namespace: "mesh", Name: "meshrelay-sink-dr", Identity: name, Logger: slog.New(slog.DiscardHandler),
		Terms: func() (t Terms) { return t }, Keep: func(_, _ Terms) error { return nil }, Begin: func() (bool, error) { return true, nil },
		Check: func(context.Context) error {
			p.freeze("CHECK")
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.promoted != nil && p.promoted.Load() {
				return errors.New("promoted")
			}
			return p.check
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(p.ended)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	p.end = sync.OnceFunc(func() { cancel(); <-p.ended })
	return p
}

// pass lets time pass, and returns who could write in that time. No two may at one time.
func pass(t *testing.T, d time.Duration, all ...*process) (who string) {
	t.Helper()
	for range d / (100 * time.Millisecond) {
		await.Settle(100 * time.Millisecond)
		now := ""
		for i, p := range all {
			if p.Writable(time.Now()) {
				now += fmt.Sprint(i)
			}
		}
		if len(now) > 1 {
			t.Fatalf("%s can write at one time", now)
		}
		if !strings.HasSuffix(who, now) {
			who += now
		}
	}
	return who
}

func TestTheClocksOfTwoHoldersMayDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := fakekube.New()
			a := start(t, s, "a", ahead)
			if who := pass(t, time.Second, a); who != "0" {
				t.Fatalf("%q can write", who)
			}
			b := start(t, s, "b", 0)
			if who := pass(t, time.Minute, a, b); who != "0" {
				t.Errorf("a holds the Lease, and %q can write", who)
			}
			if st := b.Status(); st.Held || !strings.HasPrefix(st.Holder, "a_") || st.Problem != "" {
				t.Errorf("%+v", st)
			}
			a.set(func() { a.frozen = time.Hour })
			if who := pass(t, time.Minute, a, b); who != "01" {
				t.Errorf("a is frozen, and %q can write", who)
			}
			b.end()
			a.end()
		})
	}
}

// TestAFrozenProcessCanNotWriteWhenItWakes has a process freeze before each of the requests of a renewal, for times
// in which nobody has taken the Lease yet, and in which somebody has.
func TestAFrozenProcessCanNotWriteWhenItWakes(t *testing.T) {
	for _, before := range []string{"CHECK", http.MethodGet, http.MethodPut} {
		for _, frozen := range []time.Duration{9 * time.Second, 14 * time.Second, 16 * time.Second, 18 * time.Second, 40 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				s := fakekube.New()
				a := start(t, s, "a", 0)
				pass(t, time.Second, a)
				b := start(t, s, "b", 0)
				pass(t, 10*time.Second, a, b)
				a.set(func() { a.frozen, a.before = frozen, before })
				pass(t, retry, a, b)
				end := a.until()
				for woke := time.Now().Add(frozen); time.Now().Before(woke); {
					pass(t, 100*time.Millisecond, a, b)
					if a.until().Equal(end) && time.Until(end) < apiserver.WriteTimeout && a.Writable(time.Now()) {
						t.Fatal("a can write, and its Lease was not renewed")
					}
				}
				if held := b.Status().Held; held && frozen < Duration-2*retry || !held && frozen > Duration+retry {
					t.Errorf("frozen for %v before %s: b holds the Lease: %v", frozen, before, b.Status().Held)
				}
				if pass(t, 30*time.Second, a, b); a.Status().Held == b.Status().Held {
					t.Error("not one process holds the Lease")
				}
				a.end()
				b.end()
			})
		}
	}
}

// TestATermBeginsBeforeItsRequest: others count from when the server has the renewal, and not its answer.
func TestATermBeginsBeforeItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		a := start(t, s, "a", 0)
		pass(t, time.Second, a)
		b := start(t, s, "b", 0)
		pass(t, 10*time.Second, a, b)
		a.set(func() { a.frozen, a.before = 9*time.Second, "ANSWER PUT" })
		for frozen := time.Duration(1); frozen > 0; a.set(func() { frozen = a.frozen }) {
			pass(t, 100*time.Millisecond, a, b)
		}
		pass(t, 9200*time.Millisecond, a, b) // it wakes, and is frozen again before it can renew
		a.set(func() { a.frozen, a.before = time.Minute, "" })
		if who := pass(t, 30*time.Second, a, b); who != "1" && who != "01" {
			t.Errorf("%q can write", who)
		}
		b.end()
		a.end()
	})
}

func TestNobodyWritesWhileTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		a, b := start(t, s, "a", 0), start(t, s, "b", time.Minute)
		pass(t, 10*time.Second, a, b)
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
				fakekube.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
				return true
			}
		})
		pass(t, Duration-apiserver.WriteTimeout, a, b)
		if who := pass(t, time.Minute, a, b); who != "" || a.Status().Held || b.Status().Held || a.Status().Problem == "" {
			t.Errorf("%q can write, %+v", who, a.Status())
		}
		s.Set(func() { s.Fault = nil })
		if who := pass(t, Duration+5*time.Second, a, b); who != "0" && who != "1" {
			t.Errorf("%q can write", who)
		}
		if p := a.Status().Problem + b.Status().Problem; p != "" {
			t.Error(p)
		}
		for _, p := range []*process{a, b} { // answers take longer than an attempt, or a large part of it
			p.set(func() { p.late = 3 * time.Second })
		}
		pass(t, 20*time.Second, a, b)
		if who := pass(t, time.Minute, a, b); len(who) != 1 {
			t.Errorf("%q can write while answers take 3 s", who)
		}
		for _, p := range []*process{a, b} {
			p.set(func() { p.late = 0 })
		}
		a.end()
		b.end()
	})
}

func TestACheckThatFailsReleasesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		a := start(t, s, "a", 0)
		pass(t, time.Second, a)
		a.set(func() { a.check = errors.New("promoted") })
		pass(t, retry, a)
		if who := pass(t, 5*time.Second, a); who != "" || a.Status().Held || a.Status().Holder != "" || !strings.Contains(a.Status().Problem, "promoted") {
			t.Errorf("%q can write, %+v", who, a.Status())
		}
		version := func() (n int) { s.Set(func() { n = s.Version }); return n }
		before := version()
		pass(t, time.Minute, a)
		if version() != before {
			t.Error("a process that must not write has changed the Lease")
		}
		a.set(func() { a.check = nil })
		if who := pass(t, 2*retry, a); who != "0" || a.Status().Problem != "" {
			t.Errorf("%q can write, %+v", who, a.Status())
		}
		a.end()
	})
}

// TestTheCheckFollowsAnAcquisition: it may begin to fail while a process acquires the Lease.
func TestTheCheckFollowsAnAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		var promoted atomic.Bool
		started := make(chan struct{})
		s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
			<-started
			if r.Method == http.MethodPost {
				promoted.Store(true)
			}
			return false
		}
		p := start(t, s, "a", 0)
		p.set(func() { p.promoted = &promoted })
		close(started)
		if who := pass(t, 10*time.Second, p); who != "" || p.Status().Holder != "" {
			t.Errorf("%q can write, %+v", who, p.Status())
		}
		p.end()
	})
}

func TestAHolderWhoEndsLetsTheNextOneHoldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		a := start(t, s, "a", 0)
		pass(t, time.Second, a)
		b := start(t, s, "b", 0)
		pass(t, 5*time.Second, a, b)
		a.end()
		if a.Writable(time.Now()) {
			t.Error("a can write after its end")
		}
		if who := pass(t, retry+time.Second, a, b); who != "1" {
			t.Errorf("%q can write", who)
		}
		b.end()
		if st := b.Status(); st.Held || st.Holder != "" {
			t.Errorf("%+v", st)
		}
	})
}

func TestAStolenLeaseIsNotWrittenWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		a := start(t, s, "same", 0)
		pass(t, time.Second, a)
		s.Put("coordination.k8s.io/leases", map[string]any{"metadata": map[string]any{"namespace": "mesh", "name": "meshrelay-sink-dr", "labels": map[string]any{"a": "b"}}, "spec": map[string]any{"holderIdentity": "thief"}})
		pass(t, retry, a)
		if who := pass(t, 12*time.Second, a); who != "" || a.Status().Holder != "thief" {
			t.Errorf("%q can write, %+v", who, a.Status())
		}
		pass(t, 8*time.Second, a)
		var o map[string]any
		s.Set(func() { o = s.Objects["coordination.k8s.io/leases"]["mesh/meshrelay-sink-dr"] })
		if !a.Status().Held || fmt.Sprint(o["metadata"].(map[string]any)["labels"]) != "map[a:b]" {
			t.Errorf("a dead thief keeps the Lease, or what others wrote is lost: %v", o)
		}
		s.Remove("coordination.k8s.io/leases", "mesh/meshrelay-sink-dr")
		if pass(t, 5*time.Second, a); !a.Status().Held {
			t.Error("a deleted Lease is not made again")
		}
		other := start(t, s, "same", 0) // two processes may have one name by mistake
		if who := pass(t, 30*time.Second, a, other); who != "0" {
			t.Errorf("%q can write", who)
		}
		other.end()
		a.end()
	})
}

func TestARefusedLeaseTellsWhatIsMissing(t *testing.T) {
	for want, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"check with: kubectl auth can-i get leases.coordination.k8s.io/meshrelay-sink-dr -n mesh": func(w http.ResponseWriter, _ *http.Request) bool {
			fakekube.Fail(w, http.StatusForbidden, "Forbidden")
			return true
		},
		"check with: kubectl auth can-i create leases.coordination.k8s.io -n mesh": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				fakekube.Fail(w, http.StatusForbidden, "Forbidden")
			}
			return r.Method == http.MethodPost
		},
		"create the namespace mesh": func(w http.ResponseWriter, r *http.Request) bool {
			fakekube.Fail(w, http.StatusNotFound, "NotFound")
			return true
		},
		"renew the credentials": func(w http.ResponseWriter, r *http.Request) bool {
			fakekube.Fail(w, http.StatusUnauthorized, "Unauthorized")
			return true
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := fakekube.New()
			s.Fault = fault
			a := start(t, s, "a", 0)
			if who := pass(t, time.Second, a); who != "" || !strings.Contains(a.Status().Problem, want) {
				t.Errorf("%q can write, %s, want %s", who, a.Status().Problem, want)
			}
			s.Set(func() { s.Fault = nil })
			a.end()
		})
	}
}
