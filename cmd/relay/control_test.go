package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/admin"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// controlled is a running relay of which only the operators' side is there, with the upstreams
// east and west.
type controlled struct {
	address, socket string

	mu        sync.Mutex
	east      upstreams.Status
	reload    error
	restart   []string
	revisions []state.Revision
}

func (c *controlled) Freeze(context.Context, string) error {
	return c.change(func() { c.east.Frozen = &upstreams.Frozen{Since: time.Now()} })
}

func (c *controlled) Unfreeze(context.Context, string) error {
	return c.change(func() {
		c.east.Frozen = nil
		c.east.Held = &upstreams.Held{Removals: 4, Of: 5}
	})
}

func (c *controlled) Release(context.Context, string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.east.Held == nil {
		return fmt.Errorf("%w: upstream east: nothing is held", upstreams.ErrNotPossible)
	}
	c.east.Held, c.east.Resources = nil, map[string]int{"a/B": 1}
	return nil
}

func (c *controlled) Rollback(_ context.Context, _ string, to uint64) error {
	return c.change(func() { c.east.Frozen = &upstreams.Frozen{Since: time.Now(), Revision: to} })
}

func (c *controlled) History(string) ([]state.Revision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revisions, nil
}

func (c *controlled) change(f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	return nil
}

func (c *controlled) sources() []upstreams.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []upstreams.Status{c.east, {Name: "west"}}
}

// serveControls runs the operators' side of a relay. socket is where, or empty for none.
func serveControls(t *testing.T, socket string) *controlled {
	t.Helper()
	c := &controlled{socket: socket, east: upstreams.Status{Name: "east", Synced: true, State: upstreams.StateSynced, Resources: map[string]int{"a/B": 3, "a/C": 2}}}
	server, err := admin.New(admin.Config{Address: "127.0.0.1:0", Socket: socket}, admin.Deps{
		Gatherer: prometheus.NewRegistry(), Ready: func() admin.Readiness { return admin.Readiness{Ready: true} },
		Debug: admin.NewDebug(admin.Views{Upstreams: c.sources}), LogLevel: new(slog.LevelVar), Logger: slog.New(slog.DiscardHandler),
		Controls: c,
		Reload:   func(context.Context) error { c.mu.Lock(); defer c.mu.Unlock(); return c.reload },
		ReloadStatus: func() admin.ReloadStatus {
			c.mu.Lock()
			defer c.mu.Unlock()
			return admin.ReloadStatus{NeedsRestart: c.restart}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = lis.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // the commands' own
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; {
		v, err := admin.Client{Address: c.address}.Version(t.Context())
		if err == nil && v.AdminSocket == socket {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay does not open %q: %+v %v", socket, v, err)
		}
	}
}

// relay runs a command against it.
func (c *controlled) relay(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = execute(append(args, "--admin", c.address), &out, &errs)
	return code, out.String(), errs.String()
}

func TestOperatorsCommandsSayWhatIsNowTheCase(t *testing.T) {
	c := serveControls(t, filepath.Join(t.TempDir(), "run", "admin.sock"))
	c.revisions = []state.Revision{{ID: 7, Time: time.Now().Add(-time.Hour), Resources: 5, Removed: 1, Keys: []string{"-a/B c/d"}}}
	for _, tc := range []struct {
		args string
		code int
		want string // of stdout, or of stderr when the code is not 0
	}{
		{"freeze east", 0, "upstream east is frozen as it was: its 5 resources stay as they are until \"relay unfreeze east\", or until the relay ends: it keeps no state (state.dir)\n"},
		{"unfreeze east", 0, "upstream east is followed again; 4 deletions of 5 resources are held: let them through with \"relay release east\"\n"},
		{"release east", 0, "upstream east has been released: it has 1 resource now\n"},
		{"release east", 1, "error: not possible: upstream east: nothing is held\n"},
		{"rollback east --to 7", 0, "upstream east is frozen at revision 7: its 1 resource stays as it is until \"relay unfreeze east\", or until the relay ends: it keeps no state (state.dir)\n"},
		{"rollback east", 1, "error: say to which revision, with --to: \"relay history east\" lists them\n"},
		{"rollback east --to -1", 1, "error: --to: \"-1\" is no revision: \"relay history east\" lists them\n"},
		{"rollback east --to abc", 1, "error: --to: \"abc\" is no revision: \"relay history east\" lists them\n"},
		{"rollback east --to 0", 1, "error: --to: \"0\" is no revision: \"relay history east\" lists them\n"},
		{"rollback --to 7", 1, "error: say which upstream: relay rollback UPSTREAM --to REVISION\n"},
		{"freeze nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"freeze", 1, "error: say which upstream: relay freeze UPSTREAM\n"},
		{"freeze east west", 1, "error: \"west\" is too much: relay freeze UPSTREAM\n"},
		{"history", 1, "error: say which upstream: relay history UPSTREAM\n"},
		{"explain", 1, "error: say which kind and which name: relay explain KIND NAME | explain --left-out [KIND]\n"},
		{"history east", 0, "REVISION   AGE   RESOURCES   ADDED   CHANGED   REMOVED   BY         AMONG THEM\n7          60m   5           0       0         1         upstream   -a/B c/d\n"},
		{"history east -o yaml", 1, "error: output format \"yaml\": want table or json\n"},
		{"history nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"reload", 0, "the config file is in force\n"},
		{"log-level debug", 0, "debug\n"},
		{"explain --left-out se db", 1, "error: \"db\" is too much: relay explain KIND NAME | explain --left-out [KIND]\n"},
		{"log-level loud", 1, "error: log level \"loud\": want debug, info, warn or error\n"},
		{"log-level info warn", 1, "error: \"warn\" is too much: want one of debug, info, warn or error\n"},
		{"log-level", 0, "debug\n"},
		{"log-level --socket " + c.socket, 0, "debug\n"},
		{"freeze west --socket " + c.socket, 0, "upstream west is not frozen any more\n"},
	} {
		code, stdout, stderr := c.relay(strings.Fields(tc.args)...)
		got, other := stdout, stderr
		if tc.code != 0 {
			got, other = stderr, stdout
		}
		if code != tc.code || got != tc.want || other != "" {
			t.Errorf("relay %s: %d\n%s\n%s\nwant %d\n%s", tc.args, code, stdout, stderr, tc.code, tc.want)
		}
	}
	if code, stdout, _ := c.relay("history", "east", "-o", "json"); code != 0 || !strings.Contains(stdout, `"id": 7`) {
		t.Errorf("%d %s", code, stdout)
	}
	c.reload = errors.Join(errors.New("relay.yaml:1: nonsense"), errors.New("relay.yaml:2: more"))
	if code, _, stderr := c.relay("reload"); code != 1 || stderr != "error: relay.yaml:1: nonsense\nerror: relay.yaml:2: more\n" {
		t.Errorf("%d %q", code, stderr)
	}
	c.reload, c.restart = nil, []string{"node.id", "admin.address"}
	if code, stdout, _ := c.relay("reload"); code != 0 || stdout != "the config file is in force, but for what needs a restart: node.id, admin.address\n" {
		t.Errorf("%d %q", code, stdout)
	}
}

func TestWhatIsFrozenIsSaidToLastAsLongAsItDoes(t *testing.T) {
	frozen := upstreams.Status{Name: "east", Frozen: &upstreams.Frozen{Revision: 3}}
	some := frozen
	some.Resources = map[string]int{"a/B": 2}
	for want, s := range map[string]admin.Controlled{
		"upstream east is not frozen any more":                                                                                                                        {Status: upstreams.Status{Name: "east"}},
		`upstream east is frozen at revision 3: nothing of it is served until "relay unfreeze east"`:                                                                  {Status: frozen, KeepsState: true},
		`upstream east is frozen at revision 3: its 2 resources stay as they are until "relay unfreeze east"`:                                                         {Status: some, KeepsState: true},
		`upstream east is frozen at revision 3: its 2 resources stay as they are until "relay unfreeze east", or until the relay ends: it keeps no state (state.dir)`: {Status: some},
	} {
		if got := describeFrozen(s); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func TestNamesOfUpstreamsAreCompleted(t *testing.T) {
	c := serveControls(t, filepath.Join(t.TempDir(), "run", "admin.sock"))
	for _, command := range []string{"freeze", "unfreeze", "release", "rollback", "history"} {
		var out, errs strings.Builder
		if code := execute([]string{"__complete", command, "--admin", c.address, ""}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "east\nwest\n") {
			t.Errorf("%s: %d %s %s", command, code, out.String(), errs.String())
		}
		out.Reset()
		if code := execute([]string{"__complete", command, "--admin", "127.0.0.1:1", ""}, &out, &errs); code != 0 || strings.Contains(out.String(), "east") {
			t.Errorf("%s, of no relay: %d %s", command, code, out.String())
		}
	}
}

func TestWithoutASocketNothingCanBeChanged(t *testing.T) {
	c := serveControls(t, "")
	if code, _, stderr := c.relay("freeze", "east"); code != 1 || !strings.Contains(stderr, `has no Unix socket open: "relay status" says why`) {
		t.Errorf("%d %s", code, stderr)
	}
	if code, _, stderr := c.relay("freeze", "east", "--socket", "/nowhere/admin.sock"); code != 1 || !strings.Contains(stderr, "the relay's own host") {
		t.Errorf("%d %s", code, stderr)
	}
	if code, stdout, _ := c.relay("log-level"); code != 0 || stdout != "info\n" {
		t.Errorf("%d %s", code, stdout)
	}
	if code, _, _ := c.relay("log-level", "debug"); code != 1 {
		t.Errorf("the log level was set without a socket")
	}
	var out, errs strings.Builder
	if code := execute([]string{"reload", "--admin", "127.0.0.1:1"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "ask the relay at admin address 127.0.0.1:1: dial") ||
		!strings.Contains(errs.String(), "is a relay running, and is that its admin.address? Name another with --admin") {
		t.Errorf("%d %s", code, errs.String())
	}
}
