package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

func TestReadyIs503WithTheReasonsUntilReady(t *testing.T) {
	f := newFixture(t, Config{})
	for _, tc := range []struct {
		r    Readiness
		code int
		body string
	}{
		{Readiness{Reasons: []string{"upstream east: connecting", "upstream\nwest: x"}}, 503, "not ready\n- upstream east: connecting\n- upstream west: x\n"},
		{Readiness{Ready: true}, 200, "ready\n"},
		{Readiness{Ready: true, Reasons: []string{"upstream west: disconnected"}}, 200, "ready, degraded\n- upstream west: disconnected\n"},
	} {
		f.ready = tc.r
		code, body, _ := f.do(t, request{path: "/ready"})
		if code != tc.code || body != tc.body {
			t.Errorf("%d %q, want %d %q", code, body, tc.code, tc.body)
		}
	}
	code, body, _ := f.do(t, request{path: "/ready", accept: "application/json"})
	if want := "{\n  \"ready\": true,\n  \"reasons\": [\n    \"upstream west: disconnected\"\n  ]\n}\n"; code != 200 || body != want {
		t.Errorf("%d %s", code, body)
	}
}

func TestReadinessFollowsTheSources(t *testing.T) {
	since := created
	synced := upstreams.Status{Name: "east", State: upstreams.StateSynced, Status: intake.Status{Synced: true}}
	for name, tc := range map[string]struct {
		released bool
		source   upstreams.Status
		want     Readiness
	}{
		"all well": {true, synced, Readiness{Ready: true}},
		"merging":  {false, synced, Readiness{Reasons: []string{"merging the resources of the upstreams"}}},
		"not yet connected": {
			false, upstreams.Status{Name: "west", State: upstreams.StateConnecting, Since: since, Address: "w:1", LastError: "no route"},
			Readiness{Reasons: []string{"upstream west: connecting since 2024-02-03T04:05:06Z (w:1): no route"}},
		},
		"half answered": {
			false, upstreams.Status{Name: "west", State: upstreams.StateSyncing, Status: intake.Status{Pending: []string{"a/v1/B", "a/v1/C"}}},
			Readiness{Reasons: []string{"upstream west: syncing; types without an answer: 2, such as a/v1/B"}},
		},
		"silent about kinds": {
			false, upstreams.Status{Name: "west", State: upstreams.StateSyncing, Silence: "answers 6 kinds", Status: intake.Status{Pending: []string{"a/v1/B"}}},
			Readiness{Reasons: []string{"upstream west: syncing; answers 6 kinds"}},
		},
		"lost, after the start": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true}, LastError: "reset", Resources: map[string]int{"a/B": 2}},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected: reset; its resources are still served"}},
		},
		"no endpoints": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true}, Endpoints: &upstreams.EndpointsStatus{LastError: "w:1: refused"}},
			Readiness{Ready: true, Reasons: []string{"upstream west: the endpoints of its services may be old: w:1: refused"}},
		},
		"credentials that can do less": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true}, Kept: "those of before stay"},
			Readiness{Ready: true, Reasons: []string{"upstream west: those of before stay"}},
		},
		"no endpoints at all": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true}, Endpoints: &upstreams.EndpointsStatus{None: "the server gives none"}},
			Readiness{Ready: true, Reasons: []string{"upstream west: the server gives none"}},
		},
		"all of a kind is left out": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Summary: records.Summary{AllLeftOut: map[string]string{"a/B": "generated"}}}},
			Readiness{Ready: true, Reasons: []string{`upstream west: all of a/B are left out, reason generated: set import, or generated: keep, or import.kinds without that kind; see "relay upstreams west"`}},
		},
		"stale, and kept": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true, Stale: true, StaleSince: since}, Resources: map[string]int{"a/B": 2}},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected; stale since 2024-02-03T04:05:06Z, its resources are still served"}},
		},
		"stale, and expired": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true, Stale: true, Expired: map[string]int{"a/B": 2, "a/C": 3}}},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected; stale; resources expired and not served: 5"}},
		},
		"stale, and required": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true, Stale: true}, Required: true, Resources: map[string]int{"a/B": 2}},
			Readiness{Reasons: []string{"upstream west: disconnected; required, so the relay is not ready; stale, its resources are still served"}},
		},
		"never synced, and required": {
			true, upstreams.Status{Name: "west", State: upstreams.StateConnecting, Required: true},
			Readiness{Reasons: []string{"upstream west: connecting; required, so the relay is not ready"}},
		},
		"lost, and required": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true}, Required: true, Resources: map[string]int{"a/B": 2}},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected; its resources are still served"}},
		},
		"held": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Held: &intake.Held{Since: since, Clock: intake.ClockRunning, Until: since.Add(time.Minute), Removals: 40, Of: 100}}},
			Readiness{Ready: true, Reasons: []string{`upstream west: held since 2024-02-03T04:05:06Z: deletion of 40 of 100 resources, until 2024-02-03T04:06:06Z; see "relay upstreams --held west"`}},
		},
		"held for ever": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Held: &intake.Held{Since: since, Removals: 1, Of: 2}}},
			Readiness{Ready: true, Reasons: []string{`upstream west: held since 2024-02-03T04:05:06Z: deletion of 1 of 2 resources, without end; see "relay upstreams --held west"`}},
		},
		"frozen": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: since}, Waiting: 3}}},
			Readiness{Ready: true, Notes: []string{`upstream west: frozen since 2024-02-03T04:05:06Z, resources changed there: 3; unfreeze it with "relay unfreeze west"`}},
		},
		"rolled back": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: since, Revision: 17}}}},
			Readiness{Ready: true, Notes: []string{`upstream west: frozen since 2024-02-03T04:05:06Z at revision 17; unfreeze it with "relay unfreeze west"`}},
		},
		"never synced, and served as it was kept": {
			true, upstreams.Status{Name: "west", State: upstreams.StateConnecting, Address: "w:2", LastError: "w:2: refused", Status: intake.Status{Pending: []string{"a/v1/B"}}, Resources: map[string]int{"a/B": 1}},
			Readiness{Ready: true, Reasons: []string{"upstream west: connecting (w:2): refused; its resources are still served"}},
		},
		"half answered, for the first time": {
			false, upstreams.Status{Name: "west", State: upstreams.StateSyncing, Status: intake.Status{Pending: []string{"a/v1/B"}}, Resources: map[string]int{"a/C": 1}},
			Readiness{Reasons: []string{"upstream west: syncing; types without an answer: 1, such as a/v1/B"}},
		},
		"lost, and it gave nothing": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true}, LastError: "reset"},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected: reset"}},
		},
		"stale, and it gave nothing": {
			true, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, Status: intake.Status{Synced: true, Stale: true, StaleSince: since}},
			Readiness{Ready: true, Reasons: []string{"upstream west: disconnected; stale since 2024-02-03T04:05:06Z, it has no resources that are served"}},
		},
		"stale, and one expired": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Stale: true, Expired: map[string]int{"a/C": 1}}, Resources: map[string]int{"a/B": 1}},
			Readiness{Ready: true, Reasons: []string{"upstream west: stale; resources expired and not served: 1"}},
		},
		"frozen, and one waits": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: since}, Waiting: 1}}},
			Readiness{Ready: true, Notes: []string{`upstream west: frozen since 2024-02-03T04:05:06Z, resources changed there: 1; unfreeze it with "relay unfreeze west"`}},
		},
		"one too many": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Summary: records.Summary{OverLimit: 1, RefusedTotal: 1}}},
			Readiness{Ready: true, Reasons: []string{"upstream west: resources refused for its limits: 1; raise limits, or import less; resources or files refused: 1, the last good content is still served"}},
		},
		"too much": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Summary: records.Summary{OverLimit: 3}}},
			Readiness{Ready: true, Reasons: []string{"upstream west: resources refused for its limits: 3; raise limits, or import less"}},
		},
		"bad content": {
			true, upstreams.Status{Name: "west", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Summary: records.Summary{RefusedTotal: 2, Refused: []records.Refusal{{Resource: "a.yaml:3", Reason: "no kind"}}}}},
			Readiness{Ready: true, Reasons: []string{"upstream west: resources or files refused: 2, the last good content is still served: a.yaml:3: no kind"}},
		},
	} {
		if d := cmp.Diff(tc.want, Assess(tc.released, []upstreams.Status{tc.source})); d != "" {
			t.Errorf("%s: -want +got:\n%s", name, d)
		}
	}
}

const (
	public = "203.0.113.9:15014"
	remote = "203.0.113.77:4000"
)

// debugPaths are all paths that only this host may read.
func debugPaths() []string {
	paths := []string{"/version", "/debug/loglevel"}
	for _, doc := range documents() {
		path := "/debug/" + doc.name
		if doc.name == "explain" {
			path += "?kind=se&namespace=shop&name=db"
		}
		paths = append(paths, path)
	}
	return paths
}

var profilePaths = []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"}

func TestDebugIsForLoopbackOnly(t *testing.T) {
	f := newFixture(t, Config{})
	for _, path := range append(debugPaths(), profilePaths...) {
		for name, tc := range map[string]struct {
			r    request
			want int
		}{
			"loopback":             {request{path: path}, 200},
			"loopback, IPv6":       {request{path: path, local: "[::1]:15014", remote: "[::1]:4", host: "[::1]:15014"}, 200},
			"off loopback":         {request{path: path, local: public, remote: remote}, 403},
			"from this host":       {request{path: path, local: public, remote: public}, 403},
			"loopback from afar":   {request{path: path, remote: remote}, 403},
			"rebound name":         {request{path: path, host: "evil.example:15014"}, 403},
			"rebound name, a trap": {request{path: path, host: "127.0.0.1.evil.example"}, 403},
		} {
			if code, body, _ := f.do(t, tc.r); code != tc.want {
				t.Errorf("%s %s: %d %s", name, path, code, body)
			}
		}
	}
}

func TestProbesAndMetricsAreForEverybody(t *testing.T) {
	f := newFixture(t, Config{})
	f.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "relay_test"}, func() float64 { return 7 }))
	for path, want := range map[string]string{"/ready": "ready\n", "/healthz": "ok\n", "/metrics": "relay_test 7\n"} {
		code, body, header := f.do(t, request{path: path, local: public, remote: remote, host: "relay.example"})
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", path, code, body)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || strings.Contains(header.Get("Content-Type"), "html") {
			t.Errorf("%s: %v", path, header)
		}
	}
}

func TestLogLevelCanBeSetAtRunTime(t *testing.T) {
	f := newFixture(t, Config{})
	if got := f.get(t, "/debug/loglevel"); got != "info\n" {
		t.Error(got)
	}
	for _, tc := range []struct {
		path, want string
		code       int
		level      slog.Level
	}{
		{"/debug/loglevel?level=debug", "debug\n", 200, slog.LevelDebug},
		{"/debug/loglevel?level=WARN", "warn\n", 200, slog.LevelWarn},
		{"/debug/loglevel?level=loud", "want debug, info, warn or error", 400, slog.LevelWarn},
		{"/debug/loglevel", "want debug, info, warn or error", 400, slog.LevelWarn},
	} {
		code, body, _ := f.do(t, request{method: http.MethodPut, path: tc.path, peer: &peer{UID: 7}})
		if code != tc.code || !strings.Contains(body, tc.want) || f.level.Level() != tc.level {
			t.Errorf("%s: %d %q, level %v", tc.path, code, body, f.level.Level())
		}
	}
	if got := f.logged.String(); !strings.Contains(got, `action=log-level target="" parameters="level=debug" uid=7 `) {
		t.Errorf("who set it is not logged: %s", got)
	}
}

func TestAllElseIsReadOnly(t *testing.T) {
	f := newFixture(t, Config{})
	for _, path := range append(append(debugPaths(), profilePaths...), "/ready", "/metrics") {
		for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
			if method == http.MethodPut && path == "/debug/loglevel" {
				continue
			}
			if code, _, _ := f.do(t, request{method: method, path: path}); code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, code)
			}
		}
	}
	if code, _, _ := f.do(t, request{path: "/debug/nonsense"}); code != http.StatusNotFound {
		t.Error(code)
	}
}

func TestProfilesAreBounded(t *testing.T) {
	f := newFixture(t, Config{})
	for _, s := range []string{"301", "-1", "NaN", "x", "1e9"} {
		if code, _, _ := f.do(t, request{path: "/debug/pprof/profile?seconds=" + s}); code != http.StatusBadRequest {
			t.Errorf("seconds=%s: %d", s, code)
		}
	}
}

func TestDebugRequestsAreBounded(t *testing.T) {
	f := newFixture(t, Config{})
	for range maxDebugRequests {
		f.busy <- struct{}{}
	}
	code, _, header := f.do(t, request{path: "/debug/configz"})
	if code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", code, header)
	}
	if code, _, _ := f.do(t, request{path: "/ready"}); code != http.StatusOK {
		t.Errorf("probes are refused as well: %d", code)
	}
	<-f.busy
	if code, _, _ := f.do(t, request{path: "/debug/configz"}); code != http.StatusOK {
		t.Errorf("%d", code)
	}
}

// running is a Server that serves on loopback.
func (f *fixture) running(t *testing.T) (address string, stop func() error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, lis) }()
	stop = func() error { cancel(); return <-done }
	return lis.Addr().String(), stop
}

func TestClientAndServerUnderstandEachOther(t *testing.T) {
	f := newFixture(t, Config{})
	f.ready = Readiness{Reasons: []string{"upstream east: connecting"}}
	address, stop := f.running(t)
	c := Client{Address: address}
	ctx := t.Context()

	ready, err := c.Ready(ctx)
	if d := cmp.Diff(f.ready, ready); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	ups, err := c.Upstreams(ctx)
	if d := cmp.Diff(f.sources, ups); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	clients, err := c.Clients(ctx)
	if err != nil || len(clients) != 2 || clients[0].NodeID != f.clients[0].NodeID {
		t.Errorf("%v %v", clients, err)
	}
	if level, err := c.LogLevel(ctx); err != nil || level != "info" {
		t.Errorf("%q %v", level, err)
	}
	v, err := c.Version(ctx)
	if err != nil || v.Version != "v1.2.3" || v.AdminSocket != "" {
		t.Errorf("%+v %v", v, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := c.Ready(ctx); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("after the end: %v", err)
	}
}

func TestAnAddressInUseIsAnError(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	f := newFixture(t, Config{})
	f.cfg.Address = lis.Addr().String()
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), f.cfg.Address) {
		t.Error(err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Run(ctx); err != nil {
		t.Error(err)
	}
}

// failing are Resources that can not be read to the end.
type failing struct {
	Resources
	resources []*mirror.Resource
}

func (f failing) Kinds() []mirror.Kind { return []mirror.Kind{serviceEntry} }

func (f failing) List(mirror.Kind, string) []*mirror.Resource { return f.resources }

func TestADocumentThatCanNotBeCompletedIsCutOff(t *testing.T) {
	f := newFixture(t, Config{})
	var many []*mirror.Resource
	for i := range 2000 {
		many = append(many, entry(t, "east", "shop", fmt.Sprintf("e%d", i), "x.example.com"))
	}
	f.deps.Debug.views.Resources = failing{resources: append(many, nil)} // reading nil panics
	address, stop := f.running(t)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: await.Limit}
	resp, err := client.Get("http://" + address + "/debug/configz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the reader can not tell a part from the whole: %v", err)
	}
}
