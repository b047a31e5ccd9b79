package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"meshrelay/sink"
)

// someSinks is the sink dr. Orders about it fail with err.
type someSinks struct{ err error }

func (someSinks) Status(name string) []sink.Status {
	if name != "" && name != "dr" {
		return nil
	}
	return []sink.Status{{Name: "dr", State: "writing", Objects: 7}}
}

func (s someSinks) known(name string) error {
	if name != "dr" {
		return fmt.Errorf("%w: %q", sink.ErrUnknown, name)
	}
	return s.err
}

func (s someSinks) Diff(_ context.Context, name string, _ sink.Wanted) (sink.Differences, error) {
	return sink.Differences{Left: 10}, s.known(name)
}

func (s someSinks) Order(_ context.Context, name string, o sink.Order) (int, error) {
	switch {
	case o.By == "", o.Verb == "freeze" && o.Reason == "":
		return 0, fmt.Errorf("%w: %+v", sink.ErrNotPossible, o)
	case o.Verb == "release" && o.Hold != "abc":
		return 0, fmt.Errorf("%w: another hold", sink.ErrNotPossible)
	}
	return 3, s.known(name)
}

func TestSinksAreShownAndOrderedAbout(t *testing.T) {
	f := newFixture(t, Config{})
	if text := f.get(t, "/sinks"); !strings.Contains(text, `"objects": 7`) {
		t.Error(text)
	}
	for path, want := range map[string]string{
		"/sinks/dr/freeze?reason=test":                        `200 "keepsState"`,
		"/sinks/dr/freeze":                                    "409 not possible",
		"/sinks/dr/unfreeze":                                  `200 "keepsState"`,
		"/sinks/dr/unfreeze?dryRun=true":                      `400 "dryRun" is no parameter of unfreeze`,
		"/sinks/dr/unfreeze?hold=abc":                         `400 "hold" is no parameter of unfreeze`,
		"/sinks/dr/release?hold=abc":                          `200 "objects": 3`,
		"/sinks/dr/release?hold=other":                        "409 not possible: another hold",
		"/sinks/dr/release":                                   "409 not possible: another hold",
		"/sinks/dr/prune":                                     `200 "objects": 3`,
		"/sinks/other/prune":                                  "404 there is no such sink",
		"/sinks/dr/prune?reason=" + strings.Repeat("a", 9999): "400",
	} {
		code, body, _ := f.do(t, request{method: http.MethodPost, path: path, peer: &peer{}})
		number, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(code) != number || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %s", path, code, body, want)
		}
		if code, _, _ := f.do(t, request{method: http.MethodPost, path: path}); code != http.StatusForbidden {
			t.Errorf("%s over TCP: %d", path, code)
		}
	}
	for path, want := range map[string]string{
		"/sinks/dr/diff":    `200 "left": 10`,
		"/sinks/other/diff": "404 there is no such sink",
	} {
		code, body, _ := f.do(t, request{method: http.MethodGet, path: path, peer: &peer{}})
		number, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(code) != number || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %s", path, code, body, want)
		}
	}
}
