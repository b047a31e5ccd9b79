package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/admin"
	"meshrelay/internal/memory"
	"meshrelay/internal/testing/await"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// controlled is a running relay with only the admin server, and with the upstreams east and west.
type controlled struct {
	address, socket string

	mu        sync.Mutex
	east      upstreams.Status
	reload    error
	restart   []string
	revisions []state.Revision
}

func (c *controlled) Order(_ context.Context, _, verb string, o intake.Order) (intake.Effect, error) {
	return map[string]func(intake.Order) (intake.Effect, error){"freeze": c.freeze, "unfreeze": c.unfreeze, "release": c.release, "rollback": c.rollback}[verb](o)
}

func (c *controlled) freeze(o intake.Order) (intake.Effect, error) {
	return c.change(o, intake.Effect{Kept: 5}, func() {
		c.east.Frozen = &intake.Frozen{Frozen: state.Frozen{Since: time.Now(), Reason: o.Reason}}
	})
}

func (c *controlled) unfreeze(o intake.Order) (intake.Effect, error) {
	return c.change(o, intake.Effect{Removed: 4, Kept: 1, Held: 4, Resources: []string{"- a/B c/d"}}, func() {
		c.east.Frozen = nil
		c.east.Held = &intake.Held{ID: "abcd", Clock: intake.ClockNone, Reason: "every B would go", Removals: 4, Of: 5}
	})
}

func (c *controlled) release(o intake.Order) (intake.Effect, error) {
	c.mu.Lock()
	held := c.east.Held
	c.mu.Unlock()
	switch {
	case held == nil:
		return intake.Effect{}, fmt.Errorf("%w: upstream east: nothing is held", intake.ErrNotPossible)
	case o.Hold != "" && o.Hold != "abcd":
		return intake.Effect{}, fmt.Errorf("%w: upstream east: hold %s has grown by 1 since\n  + a/B c/e", intake.ErrNotPossible, o.Hold)
	}
	return c.change(o, intake.Effect{Removed: 1, Kept: 1, Held: 3, Resources: []string{"- a/B c/d"}}, func() {
		c.east.Held, c.east.Resources = nil, map[string]int{"a/B": 1}
	})
}

func (c *controlled) rollback(o intake.Order) (intake.Effect, error) {
	return c.change(o, intake.Effect{Added: 1, Changed: 30}, func() {
		c.east.Frozen = &intake.Frozen{Frozen: state.Frozen{Since: time.Now(), Revision: o.To}}
	})
}

func (c *controlled) Held(upstream string) (out []intake.HeldUpstream, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if upstream == "nowhere" {
		return nil, intake.ErrUnknownUpstream
	}
	if c.east.Held != nil && (upstream == "" || upstream == "east") {
		out = append(out, intake.HeldUpstream{Upstream: "east", Held: *c.east.Held, Deletions: []intake.HeldDeletion{{Kind: "a/B", Namespace: "c", Name: "d"}}})
	}
	return out, nil
}

func (c *controlled) Diff(upstream string, revision uint64) (upstreams.Differences, error) {
	if upstream == "nowhere" {
		return upstreams.Differences{}, intake.ErrUnknownUpstream
	}
	return upstreams.Differences{Revision: state.Revision{ID: revision}}, nil
}

func (c *controlled) History(upstream string) ([]state.Revision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if upstream == "nowhere" {
		return nil, intake.ErrUnknownUpstream
	}
	return c.revisions, nil
}

func (c *controlled) change(o intake.Order, e intake.Effect, f func()) (intake.Effect, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !o.DryRun {
		f()
	}
	return e, nil
}

func (c *controlled) sources() []upstreams.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []upstreams.Status{c.east, {Name: "west"}}
}

// serveControls runs the admin server of a relay. socket is the path of its Unix socket, or empty.
func serveControls(t *testing.T, socket string) *controlled {
	t.Helper()
	c := &controlled{socket: socket, east: upstreams.Status{Name: "east", Status: intake.Status{Synced: true}, State: upstreams.StateSynced, Resources: map[string]int{"a/B": 3, "a/C": 2}}}
	server := admin.New(admin.Config{Address: "127.0.0.1:0", Socket: socket}, admin.Deps{
		Gatherer: prometheus.NewRegistry(), Ready: func() admin.Readiness { return admin.Readiness{Ready: true} },
		Notes: noNotes, Remarks: noNotes, Memory: memory.InUse,
		Debug: admin.NewDebug(admin.Views{Upstreams: c.sources}, nil), LogLevel: new(slog.LevelVar), Logger: slog.New(slog.DiscardHandler),
		Controls: c,
		Reload:   func(context.Context) error { c.mu.Lock(); defer c.mu.Unlock(); return c.reload },
		ReloadStatus: func() admin.ReloadStatus {
			c.mu.Lock()
			defer c.mu.Unlock()
			return admin.ReloadStatus{NeedsRestart: c.restart}
		},
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = lis.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	awaitSocket(t, c.address, socket)
	return c
}

// awaitSocket waits until a relay has opened its socket. Empty: it opens none.
func awaitSocket(t *testing.T, address, socket string) {
	t.Helper()
	var seen string
	await.Until(t, fmt.Sprintf("the relay answers with the socket %q", socket), func() bool {
		v, err := admin.Client{Address: address}.Version(t.Context())
		seen = fmt.Sprintf("%+v %v", v, err)
		return err == nil && v.AdminSocket == socket
	}, func() any { return seen })
}

// relay runs a command against it.
func (c *controlled) relay(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = execute(append(args, "--admin", c.address), &out, &errs)
	return code, out.String(), errs.String()
}

const heldTable = `upstream east: hold abcd
  4 deletions of 5 resources, held for -
  reason: every B would go
  ends:   when the upstream has the resources again, or an operator releases them

KIND   NAMESPACE   NAME   AGE   HELD
a/B    c           d      -     -

All of these are still served. To delete them: relay release east --hold abcd
`

func TestOrdersPrintTheNewState(t *testing.T) {
	c := serveControls(t, filepath.Join(t.TempDir(), "run", "admin.sock"))
	c.revisions = []state.Revision{{ID: 7, Time: time.Now().Add(-time.Hour), Resources: 5, Removed: 1, Keys: []string{"-a/B c/d"}}}
	for _, tc := range []struct {
		args string
		code int
		want string // of stdout, or of stderr when the code is not 0
	}{
		{"freeze east", 0, "upstream east is frozen, with 5 resources, until \"relay unfreeze east\"; without state.dir, a restart undoes this\n"},
		{"freeze east --reason upgrade", 0, "upstream east is frozen, with 5 resources, until \"relay unfreeze east\"; without state.dir, a restart undoes this\n"},
		{"freeze east --dry-run", 0, "dry run: upstream east would be frozen, with 5 resources\n"},
		{"unfreeze east --dry-run", 0, "dry run: upstream east would be unfrozen: 0 added, 0 changed, 0 removed, 4 held by its guard, 1 unchanged\n  - a/B c/d\n  and 3 more\n"},
		{"unfreeze east", 0, "upstream east is unfrozen\n" + heldTable},
		{"upstreams --held", 0, heldTable},
		{"upstreams west --held", 0, "No deletions are held.\n"},
		{"upstreams --held nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"upstreams --held -o wide", 1, "error: output format \"wide\": want table, yaml, json or jsonpath=TEMPLATE\n"},
		{"release east", 2, heldTable},
		{"release east --hold efgh", 1, "error: not possible: upstream east: hold efgh has grown by 1 since\n  + a/B c/e\n"},
		{"release east --only B", 1, "error: --only: \"B\": want KIND/NAMESPACE, as in virtualservice/shop, or */shop, or vs/*\n"},
		{"release east --all --only */c", 1, "error: --all can not be combined with --hold or --only\n"},
		{"release east --all --dry-run", 0, "dry run: upstream east: 1 deletion would be released, 3 still held\n  - a/B c/d\n"},
		{"release east --hold abcd", 0, "upstream east: 1 deletion released, 3 still held\n  - a/B c/d\nTo list the held deletions: relay upstreams --held east\n"},
		{"release east --all", 1, "error: not possible: upstream east: nothing is held\n"},
		{"release east", 1, "error: upstream east: nothing is held\n"},
		{"rollback east --to 7 --dry-run", 0, "dry run: upstream east would be frozen at revision 7: 1 added, 30 changed, 0 removed, 0 unchanged\n  and 31 more\n"},
		{"rollback east --to 7", 0, "upstream east is frozen at revision 7, with 1 resource, until \"relay unfreeze east\"; without state.dir, a restart undoes this\n"},
		{"rollback east", 1, "error: --to: want a revision, not \"\": \"relay history east\" lists them\n"},
		{"rollback east --to -1", 1, "error: --to: want a revision, not \"-1\": \"relay history east\" lists them\n"},
		{"rollback east --to abc", 1, "error: --to: want a revision, not \"abc\": \"relay history east\" lists them\n"},
		{"rollback east --to 0", 1, "error: --to: want a revision, not \"0\": \"relay history east\" lists them\n"},
		{"rollback --to 7", 1, "error: missing UPSTREAM: relay rollback UPSTREAM --to REVISION\n"},
		{"freeze nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"freeze", 1, "error: missing UPSTREAM: relay freeze UPSTREAM|sink/NAME\n"},
		{"freeze upstream/nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"freeze sinks/dr", 1, "error: sinks/dr: kind \"sinks\": want sink, upstream\n"},
		{"rollback sink/dr --to 7", 1, "error: sink/dr: kind \"sink\": want upstream\n"},
		{"freeze sink/dr --dry-run", 1, "error: --dry-run is not for a sink\n"},
		{"unfreeze sink/dr --force", 1, "error: --force is not for a sink\n"},
		{"release sink/dr", 1, "error: --hold is missing: \"relay sink dr\" lists what is held, with the ID of the hold\n"},
		{"release sink/dr --all", 1, "error: --all is not for a sink\n"},
		{"release cluster/fleet --reason gone", 1, "error: --reason is not for a cluster\n"},
		{"validate", 1, "error: --admin is for commands that ask a running relay: see \"relay validate --help\"\n"},
		{"freeze east west", 1, "error: unexpected argument \"west\": relay freeze UPSTREAM|sink/NAME\n"},
		{"history", 1, "error: missing UPSTREAM: relay history UPSTREAM [REVISION]\n"},
		{"explain", 1, "error: missing KIND and NAME: relay explain KIND [NAMESPACE/]NAME | explain --left-out [KIND]\n"},
		{"history east", 0, "REVISION   TIME                   AGE   RESOURCES   ADDED   CHANGED   REMOVED   BY         AMONG THEM\n7          2000-01-01T00:00:00Z   60m   5           0       0         1         upstream   -a/B c/d\n"},
		{"history east -o yaml", 1, "error: output format \"yaml\": want table, json or jsonpath=TEMPLATE\n"},
		{"history nowhere", 1, "error: there is no upstream \"nowhere\": there are east, west\n"},
		{"reload", 0, "config file loaded: nothing has changed\n"},
		{"log-level debug", 0, "debug\n"},
		{"explain --left-out se db", 1, "error: unexpected argument \"db\": relay explain KIND [NAMESPACE/]NAME | explain --left-out [KIND]\n"},
		{"log-level loud", 1, "error: log level \"loud\": want debug, info, warn or error\n"},
		{"log-level info warn", 1, "error: unexpected argument \"warn\": relay log-level [debug|info|warn|error]\n"},
		{"log-level", 0, "debug\n"},
		{"log-level --socket " + c.socket, 0, "debug\n"},
		{"freeze west --socket " + c.socket, 0, "upstream west was unfrozen by another operator\n"},
	} {
		code, stdout, stderr := c.relay(strings.Fields(tc.args)...)
		got, other := clock.ReplaceAllString(stdout, "2000-01-01T00:00:00Z"), stderr
		if tc.code == 1 {
			got, other = stderr, stdout
		}
		if code != tc.code || got != tc.want || other != "" {
			t.Errorf("relay %s: %d\n%s\n%s\nwant %d\n%s", tc.args, code, stdout, stderr, tc.code, tc.want)
		}
	}
	var fromJSON, fromYAML any
	c.east.Held = &intake.Held{ID: "abcd", Clock: intake.ClockNone}
	_, j, _ := c.relay("upstreams", "--held", "-o", "json")
	_, y, _ := c.relay("upstreams", "--held", "-o", "yaml")
	if err := errors.Join(json.Unmarshal([]byte(j), &fromJSON), yaml.Unmarshal([]byte(y), &fromYAML)); err != nil || !strings.Contains(y, "\n  id: abcd\n") || plainly(t, fromJSON) != plainly(t, fromYAML) {
		t.Errorf("%v: as JSON\n%s\nas YAML\n%s", err, j, y)
	}
	if code, stdout, _ := c.relay("history", "east", "-o", "json"); code != 0 || !strings.Contains(stdout, `"id": 7`) {
		t.Errorf("%d %s", code, stdout)
	}
	c.reload = errors.Join(errors.New("relay.yaml:1: nonsense"), errors.New("relay.yaml:2: more"))
	if code, _, stderr := c.relay("reload"); code != 1 || stderr != "error: relay.yaml:1: nonsense\nerror: relay.yaml:2: more\n" {
		t.Errorf("%d %q", code, stderr)
	}
	c.reload, c.restart = nil, []string{"node.id", "admin.address"}
	if code, stdout, _ := c.relay("reload"); code != 0 || stdout != "config file loaded: nothing has changed; restart needed for node.id, admin.address\n" {
		t.Errorf("%d %q", code, stdout)
	}
}

// clock is a time of the history.
var clock = regexp.MustCompile(`\b202\d-\d\d-\d\dT[0-9:]+Z`)

// plainly returns a value after a round trip through JSON.
func plainly(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
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
	if code, _, stderr := c.relay("freeze", "east"); code != 1 || !strings.Contains(stderr, `has no Unix socket open: see "relay status"`) {
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
	if code := execute([]string{"reload", "--admin", "127.0.0.1:1"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "no relay answers at 127.0.0.1:1: connection refused: check") ||
		!strings.Contains(errs.String(), "check that a relay runs, and that this is its admin.address, or use --admin") {
		t.Errorf("%d %s", code, errs.String())
	}
}

func TestAnAdminAddressIsAHostAndAPort(t *testing.T) {
	for _, address := range []string{"http://127.0.0.1:15014", "http://127.0.0.1", "127.0.0.1", "relay", "127.0.0.1:http", "127.0.0.1:70000", ""} {
		var out, errs strings.Builder
		if code := execute([]string{"status", "--admin", address}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "want host:port, such as 127.0.0.1:15014") {
			t.Errorf("%q: %d %s", address, code, errs.String())
		}
	}
}
