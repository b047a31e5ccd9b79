package admin

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/events"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// examples are the requests of the actions of operators.
var examples = map[string]request{
	"freeze":           {method: http.MethodPost, path: "/upstreams/east/freeze?reason=upgrade"},
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
	"plan":             {method: http.MethodPost, path: "/plan"},
	"backup":           {path: "/state/backup"},
	"support-bundle":   {path: "/support-bundle?seconds=0"},
}

// told returns the lines of the log about operators.
func (f *fixture) told() (lines []string) {
	for line := range strings.Lines(f.logged.String()) {
		if _, text, is := strings.Cut(line, " msg=operator "); is {
			lines = append(lines, strings.TrimSpace(text))
		}
	}
	return lines
}

// TestEachActionOfAnOperatorIsOneLine with the same keys at every log level, whether it is carried out or fails, and one
// event of the journal if it changes something.
func TestEachActionOfAnOperatorIsOneLine(t *testing.T) {
	keys := regexp.MustCompile(`^action=(".+"|\S+) target=\S* parameters=\S* uid=7 pid=42 user=\S* reason=\S* before=(".*"|\S*) after=(".*"|\S*) err=(".*"|\S*) unlogged=0$`)
	failing := func(d *Deps) {
		err := errors.New("the disk is gone")
		d.Controls, d.Clusters = &controls{err: err}, brokenClusters{err}
		d.Sinks = someSinks{err}
		d.Reload = func(context.Context) error { return err }
		d.Preview = func(context.Context, []byte) (Preview, error) { return Preview{}, err }
		d.Backup = func(io.Writer) error { return err }
	}
	for name, r := range examples {
		for outcome, more := range map[string]func(*Deps){"carried out": func(*Deps) {}, "fails": failing} {
			fails := outcome == "fails"
			if fails && (name == "log-level" || name == "support-bundle") {
				continue // they can not
			}
			t.Run(name+", "+outcome, func(t *testing.T) {
				f, _, _ := controlled(t, Config{})
				deps, journal := f.deps, events.New()
				deps.Debug.views.Events = journal
				more(&deps)
				f.Server = New(Config{}, deps)
				f.level.Set(slog.LevelError)
				asked := r
				asked.peer = &peer{UID: 7, PID: 42}
				code, body, _ := f.do(t, asked)
				lines := f.told()
				if len(lines) != 1 || !keys.MatchString(lines[0]) || strings.Contains(lines[0], "the disk is gone") != fails || (code == http.StatusOK) == fails {
					t.Fatalf("%d %s: lines %q", code, body, lines)
				}
				path, query, _ := strings.Cut(r.path, "?")
				want, _ := url.ParseQuery(query)
				for _, text := range []string{name, strings.Split(strings.Trim(path, "/"), "/")[min(1, strings.Count(path, "/")-1)], want.Get("reason")} {
					if strings.Count(path, "/") == 3 && !strings.Contains(lines[0], text) {
						t.Errorf("%s lacks %s", lines[0], text)
					}
				}
				recorded := journal.Read(events.Query{Filter: events.Filter{Orders: true}}).Events
				if reads := slices.Contains([]string{"plan", "backup", "support-bundle"}, name); reads != (len(recorded) == 0) {
					t.Fatalf("recorded: %+v", recorded)
				} else if reads {
					return
				}
				e := recorded[0]
				if len(recorded) != 1 || e.Operator.UID != 7 || e.Reason != want.Get("reason") || !strings.HasPrefix(e.Text, name) || strings.Contains(e.Text, "refused: the disk is gone") != fails {
					t.Errorf("recorded: %+v", recorded)
				}
				if !fails && name != "release clusters" && name != "remove cluster" && (e.Before == "" || e.After == "") {
					t.Errorf("before %q, after %q", e.Before, e.After)
				}
			})
		}
	}
}

// TestAnActionThatIsRefusedAtTheDoorIsTold: over the network, or with a parameter that it does not have, nothing is
// carried out, and the log and the journal have one line.
func TestAnActionThatIsRefusedAtTheDoorIsTold(t *testing.T) {
	for name, r := range examples {
		for err, more := range map[string]func(*request){
			"is for the relay's Unix socket only": func(r *request) { r.peer, r.remote = nil, "192.0.2.7:40000" },
			`"dryrun" is no parameter of ` + name: func(r *request) {
				r.path += cmp.Or(map[bool]string{true: "&"}[strings.Contains(r.path, "?")], "?") + "dryrun=true"
			},
		} {
			t.Run(name+", "+err, func(t *testing.T) {
				f, c, _ := controlled(t, Config{})
				deps, journal := f.deps, events.New()
				deps.Debug.views.Events = journal
				deps.Reload = func(context.Context) error { t.Error("reloaded"); return nil }
				f.Server = New(Config{}, deps)
				asked := r
				asked.peer = &peer{UID: 7, PID: 42}
				more(&asked)
				code, body, _ := f.do(t, asked)
				lines, recorded := f.told(), journal.Read(events.Query{Filter: events.Filter{Orders: true}}).Events
				if code < 400 || !strings.Contains(body, err) || len(lines) != 1 || len(c.told) != 0 {
					t.Fatalf("%d %s: lines %q, orders %v", code, body, lines, c.told)
				}
				if asked.peer == nil && !strings.Contains(lines[0], "uid=-1 pid=0 user=192.0.2.7:40000 ") {
					t.Error(lines[0])
				}
				if r.method != "" && (len(recorded) != 1 || !strings.Contains(recorded[0].Text, " refused: ")) {
					t.Errorf("recorded %+v", recorded)
				}
			})
		}
	}
}

// TestAllThatChangesSomethingIsAnAction of the examples.
func TestAllThatChangesSomethingIsAnAction(t *testing.T) {
	f, _, _ := controlled(t, Config{})
	mux := http.NewServeMux()
	for _, r := range f.routes() {
		mux.Handle(r.pattern, r.handler)
	}
	covered := map[string]bool{}
	for _, r := range examples {
		asked, err := http.NewRequestWithContext(t.Context(), cmp.Or(r.method, http.MethodGet), "http://relay"+r.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, pattern := mux.Handler(asked)
		covered[pattern] = true
	}
	for _, r := range f.routes() {
		if method, _, _ := strings.Cut(r.pattern, " "); method != http.MethodGet && !covered[r.pattern] {
			t.Errorf("%s is no action", r.pattern)
		}
	}
}

// brokenClusters carries out no order.
type brokenClusters struct{ err error }

func (b brokenClusters) Release(string) (int, error) { return 0, b.err }
func (b brokenClusters) Remove(_, _ string) error    { return b.err }

// TestAnOrderTellsWhatItHasChanged, before and after.
func TestAnOrderTellsWhatItHasChanged(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	journal := events.New()
	f.deps.Debug.views.Events = journal
	f.sources[0].Resources = map[string]int{"a/B": 7}
	c.set = func(string) {
		east := &f.sources[0]
		*east = upstreams.Status{Name: "east", Resources: map[string]int{"a/B": 5}}
		east.Frozen = &intake.Frozen{}
		east.Frozen.Revision = 3
	}
	for _, r := range []request{examples["rollback"], examples["log-level"], examples["reload"]} {
		r.peer = &peer{}
		if code, body, _ := f.do(t, r); code != http.StatusOK {
			t.Fatal(code, body)
		}
	}
	var got []string
	for _, e := range journal.Read(events.Query{}).Events {
		got = append(got, e.Upstream+": "+e.Text+": "+e.Before+" -> "+e.After)
	}
	want := []string{
		"east: rollback to=3: not frozen, held deletions: 0, resources: 7 -> frozen at revision 3, held deletions: 0, resources: 5; added 0, changed 0, removed 2",
		": log-level level=warn: info -> warn",
		": reload: hash , needs a restart: node.id -> hash , needs a restart: node.id",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRefusedOrdersOfAUserAreToldInPart, those that are carried out always.
func TestRefusedOrdersOfAUserAreToldInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, _ := controlled(t, Config{})
		order := func(uid int, query string, times int) {
			for range times {
				f.do(t, request{method: http.MethodPost, path: "/upstreams/east/release?" + query, peer: &peer{UID: uid}})
			}
		}
		order(1, "", 1000)
		order(2, "", 1)
		order(1, "all=true", 10)
		if lines := f.told(); len(lines) != 5+1+10 || !strings.Contains(lines[5], "uid=2") || !strings.HasSuffix(lines[5], "unlogged=995") {
			t.Errorf("%d lines: %q", len(lines), lines)
		}
	})
}

// TestAnActionWhoseAnswerIsInterruptedIsOneLine.
func TestAnActionWhoseAnswerIsInterruptedIsOneLine(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	c.err = errors.New("the disk is gone")
	func() {
		defer func() {
			if r := recover(); r != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				t.Errorf("%v", r)
			}
		}()
		f.do(t, request{path: "/state/backup", peer: &peer{}})
	}()
	if lines := f.told(); len(lines) != 1 || !strings.Contains(lines[0], `err="the answer was interrupted"`) {
		t.Errorf("%q", lines)
	}
}
