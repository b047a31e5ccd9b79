package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"meshrelay/audit"
	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/sink"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// examples are the requests of the actions of operators.
var examples = map[string]request{
	"freeze":           {method: http.MethodPost, path: "/upstreams/east/freeze?for=2h&reason=upgrade"},
	"unfreeze":         {method: http.MethodPost, path: "/upstreams/east/unfreeze?reason=upgrade"},
	"release":          {method: http.MethodPost, path: "/upstreams/east/release?hold=abc&reason=upgrade"},
	"rollback":         {method: http.MethodPost, path: "/upstreams/east/rollback?to=3&reason=upgrade"},
	"resync":           {method: http.MethodPost, path: "/upstreams/east/resync?reason=upgrade"},
	"serve-without":    {method: http.MethodPost, path: "/upstreams/east/serve-without"},
	"release clusters": {method: http.MethodPost, path: "/clusters/fleet/release"},
	"remove cluster":   {method: http.MethodPost, path: "/clusters/fleet/remove?cluster=west"},
	"freeze sink":      {method: http.MethodPost, path: "/sinks/dr/freeze?reason=upgrade"},
	"unfreeze sink":    {method: http.MethodPost, path: "/sinks/dr/unfreeze"},
	"release sink":     {method: http.MethodPost, path: "/sinks/dr/release?hold=abc"},
	"prune sink":       {method: http.MethodPost, path: "/sinks/dr/prune"},
	"reload":           {method: http.MethodPost, path: "/reload"},
	"log-level":        {method: http.MethodPut, path: "/debug/loglevel?level=warn"},
	"plan":             {method: http.MethodPost, path: "/plan/clients"},
	"plan sinks":       {method: http.MethodPost, path: "/plan/sinks"},
	"backup":           {path: "/state/backup"},
	"support-bundle":   {path: "/support-bundle?seconds=0"},
}

// audited is a controlled fixture with an audit log, which lines ends and returns.
func audited(t *testing.T, cfg Config, o audit.Options, more ...func(*Deps)) (f *fixture, lines func() []audit.Line) {
	t.Helper()
	var out bytes.Buffer
	if o.Output == nil && o.File == "" {
		o.Output = &out
	}
	o.Logger = slog.New(slog.DiscardHandler)
	log := audit.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	end := func() {
		cancel()
		<-done //nolint:errcheck // it has ended
		done <- nil
	}
	t.Cleanup(end)
	f, _, _ = controlled(t, cfg)
	deps := f.deps
	deps.Audit = log
	for _, add := range more {
		add(&deps)
	}
	f.Server = New(cfg, deps)
	return f, func() (all []audit.Line) {
		end()
		for raw := range bytes.Lines(out.Bytes()) {
			var line audit.Line
			if err := json.Unmarshal(raw, &line); err != nil {
				t.Fatal(err)
			}
			all = append(all, line)
		}
		return all
	}
}

// TestEachActionOfAnOperatorMakesOneLine, whether it is carried out, fails, or is not permitted. A check of resources is
// no action: it changes nothing, and those who ask need not be operators.
func TestEachActionOfAnOperatorMakesOneLine(t *testing.T) {
	probe := newFixture(t, Config{})
	if names := slices.Sorted(maps.Values(probe.actions)); !slices.Equal(names, slices.Sorted(maps.Keys(examples))) {
		t.Fatalf("the actions are %q, with examples of %q", names, slices.Sorted(maps.Keys(examples)))
	}
	for _, r := range probe.routes() {
		if method, _, _ := strings.Cut(r.pattern, " "); method != http.MethodGet && r.pattern != "POST /check" && r.action == "" {
			t.Errorf("%s is no action", r.pattern)
		}
	}
	page, err := os.ReadFile("../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Actions\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var described []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.+?`) \\|").FindAllStringSubmatch(table, -1) {
		described = append(described, strings.Split(strings.Trim(row[1], "`"), "`, `")...)
	}
	if slices.Sort(described); !slices.Equal(described, slices.Sorted(maps.Values(probe.actions))) {
		t.Errorf("docs/audit.md has the actions %q", described)
	}
	restricted := Config{Readers: config.Access{GIDs: []int{10}}, Operators: config.Access{UIDs: []int{7}}}
	failing := func(d *Deps) {
		err := errors.New("the disk is gone")
		d.Controls, d.Clusters = &controls{err: err}, brokenClusters{err}
		d.Sinks = someSinks{err}
		d.Reload = func(context.Context) error { return err }
		d.PreviewClients = func(context.Context, []byte) ([]downstream.ClientChange, error) { return nil, err }
		d.PreviewSinks = func(context.Context, []byte) ([]sink.Change, error) { return nil, err }
		d.Backup = func(io.Writer) error { return err }
	}
	for name, r := range examples {
		for outcome, tc := range map[string]struct {
			who   peer
			more  func(*Deps)
			event audit.Event
			code  string
			err   string
		}{
			"carried out":   {who: peer{UID: 7, GID: 10, PID: 42}, more: func(*Deps) {}, event: audit.OperatorActed, code: "200"},
			"fails":         {who: peer{UID: 7, GID: 10, PID: 42}, more: failing, event: audit.OperatorRefused, code: "500", err: "the disk is gone"},
			"not permitted": {who: peer{UID: 8, GID: 10, PID: 42}, more: func(*Deps) {}, event: audit.OperatorRefused, code: "403", err: "user 8 (group 10, and []) may not carry out actions: ask for the user or one of its groups in admin.operators"},
		} {
			if outcome == "fails" && (name == "log-level" || name == "support-bundle") {
				continue // they can not
			}
			t.Run(name+", "+outcome, func(t *testing.T) {
				f, lines := audited(t, restricted, audit.Options{}, tc.more)
				asked := r
				asked.peer = &tc.who
				code, body, _ := f.do(t, asked)
				all := lines()
				if len(all) != 1 {
					t.Fatalf("%d %s: lines %+v", code, body, all)
				}
				path, query, _ := strings.Cut(r.path, "?")
				want, _ := url.ParseQuery(query)
				reason := want.Get("reason")
				want.Del("reason")
				line := all[0]
				if line.Event != tc.event || line.Action != name || line.Operator == nil || line.UID != tc.who.UID || line.GID != 10 || line.PID != 42 ||
					line.Target != path || line.Parameters != want.Encode() || line.Reason != reason || !strings.Contains(line.Error, tc.err) || (line.Error == "") != (tc.err == "") {
					t.Errorf("%d %s: %+v", code, body, line)
				}
				if name != "reload" && (name != "plan" && name != "plan sinks" || outcome != "fails") && line.Code != tc.code { // these answer 422
					t.Errorf("code %s, want %s", line.Code, tc.code)
				}
				if changes := line.After != ""; changes == (outcome == "not permitted") && outcome != "fails" {
					t.Errorf("before %q, after %q", line.Before, line.After)
				}
			})
		}
	}
}

// brokenClusters carries out no order.
type brokenClusters struct{ err error }

func (b brokenClusters) Release(string) (int, error) { return 0, b.err }
func (b brokenClusters) Remove(_, _ string) error    { return b.err }

// TestTheLineOfAnActionHasWhatItChanged, before and after.
func TestTheLineOfAnActionHasWhatItChanged(t *testing.T) {
	f, lines := audited(t, Config{}, audit.Options{}, func(d *Deps) {
		d.Controls = &controls{set: func(string) {}}
	})
	f.sources[0].Resources = map[string]int{"a/B": 7}
	f.deps.Controls.(*controls).set = func(string) {
		east := &f.sources[0]
		*east = upstreams.Status{Name: "east", Resources: map[string]int{"a/B": 5}}
		east.Frozen = &intake.Frozen{}
		east.Frozen.Revision, east.Frozen.Until = 3, created
	}
	for _, r := range []request{examples["rollback"], examples["log-level"], examples["reload"]} {
		r.peer = &peer{}
		if code, body, _ := f.do(t, r); code != http.StatusOK {
			t.Fatal(code, body)
		}
	}
	var got []string
	for _, line := range lines() {
		got = append(got, line.Before+" -> "+line.After)
	}
	want := []string{
		"not frozen, held deletions: 0, resources: 7 -> frozen at revision 3 until 2024-02-03T04:05:06Z, held deletions: 0, resources: 5; added 0, changed 0, removed 2",
		"info -> warn",
		"hash , needs a restart: node.id -> hash , needs a restart: node.id",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestARequiredLineIsWrittenBeforeTheAction: while it can not be, nothing is done, and the answer tells what to do.
func TestARequiredLineIsWrittenBeforeTheAction(t *testing.T) {
	for name, r := range examples {
		t.Run(name, func(t *testing.T) {
			f, lines := audited(t, Config{}, audit.Options{Required: true})
			r.peer = &peer{UID: 7}
			if code, body, _ := f.do(t, r); code != http.StatusOK {
				t.Fatal(code, body)
			}
			all := lines()
			if len(all) != 2 || all[0].Event != audit.OperatorAsked || all[1].Event != audit.OperatorActed || all[0].Action != name || all[0].After != "" {
				t.Errorf("%+v", all)
			}
			done := 0
			f, _ = audited(t, Config{}, audit.Options{Required: true, File: "/dev/full/audit.log"}, func(d *Deps) {
				d.Controls, d.Clusters = &controls{set: func(string) { done++ }}, countingClusters{&done}
				d.Reload = func(context.Context) error { done++; return nil }
				d.Backup = func(io.Writer) error { done++; return nil }
			})
			code, body, _ := f.do(t, r)
			if code != http.StatusServiceUnavailable || done != 0 || f.level.Level() != slog.LevelInfo || !strings.Contains(body, "nothing was done, because the audit log can not be written (/dev/full/audit.log: ") || !strings.Contains(body, "audit.required is true: mend that") {
				t.Errorf("%d things done: %d %s", done, code, body)
			}
			if code, _, _ := f.do(t, request{path: "/held", peer: &peer{UID: 7}}); code != http.StatusOK {
				t.Errorf("reading is refused, too: %d", code)
			}
		})
	}
}

// countingClusters counts orders.
type countingClusters struct{ done *int }

func (c countingClusters) Release(string) (int, error) { *c.done++; return 0, nil }
func (c countingClusters) Remove(_, _ string) error    { *c.done++; return nil }

// TestAnActionWhoseAnswerIsInterruptedMakesOneLine.
func TestAnActionWhoseAnswerIsInterruptedMakesOneLine(t *testing.T) {
	f, lines := audited(t, Config{}, audit.Options{}, func(d *Deps) {
		d.Backup = func(w io.Writer) error {
			_, _ = w.Write(make([]byte, 1<<20))
			return errors.New("the disk is gone")
		}
	})
	func() {
		defer func() {
			if r := recover(); r != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				t.Errorf("%v", r)
			}
		}()
		f.do(t, request{path: "/state/backup", peer: &peer{}})
	}()
	if all := lines(); len(all) != 1 || all[0].Event != audit.OperatorRefused || all[0].Error != "the answer was interrupted" {
		t.Errorf("%+v", all)
	}
}
