package admin

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// TestALogLevelForATimeIsSetBack to the level before the first of several. A level without an end, or from a reload,
// stays.
func TestALogLevelForATimeIsSetBack(t *testing.T) {
	type step struct {
		after time.Duration
		do    func(f *fixture)
		want  slog.Level
	}
	set := func(query string) func(*fixture) {
		return func(f *fixture) {
			if code, body, _ := f.do(t, request{method: http.MethodPut, path: "/debug/loglevel?" + query, peer: &peer{UID: 7}}); code != http.StatusOK {
				t.Errorf("%s: %d %s", query, code, body)
			}
		}
	}
	none := func(*fixture) {}
	reload := func(f *fixture) { f.level.Set(slog.LevelWarn) }
	for name, steps := range map[string][]step{
		"one":                {{0, set("level=debug&for=10m"), slog.LevelDebug}, {10*time.Minute - time.Second, none, slog.LevelDebug}, {2 * time.Second, none, slog.LevelInfo}},
		"a longer one":       {{0, set("level=debug&for=10m"), slog.LevelDebug}, {time.Minute, set("level=error&for=1h"), slog.LevelError}, {59 * time.Minute, none, slog.LevelError}, {2 * time.Minute, none, slog.LevelInfo}},
		"a shorter one":      {{0, set("level=debug&for=10h"), slog.LevelDebug}, {time.Minute, set("level=debug&for=1m"), slog.LevelDebug}, {2 * time.Minute, none, slog.LevelInfo}},
		"one without an end": {{0, set("level=debug&for=10m"), slog.LevelDebug}, {time.Minute, set("level=error"), slog.LevelError}, {time.Hour, none, slog.LevelError}},
		"a reload":           {{0, set("level=debug&for=10m"), slog.LevelDebug}, {time.Minute, reload, slog.LevelWarn}, {time.Hour, none, slog.LevelWarn}},
		"after a reload":     {{0, set("level=debug&for=10m"), slog.LevelDebug}, {time.Minute, reload, slog.LevelWarn}, {time.Second, set("level=debug&for=1m"), slog.LevelDebug}, {time.Hour, none, slog.LevelWarn}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, Config{})
				for i, s := range steps {
					await.Pass(s.after)
					s.do(f)
					synctest.Wait()
					if got := f.level.Level(); got != s.want {
						t.Errorf("step %d: %v, want %v", i, got, s.want)
					}
				}
				if back := strings.Contains(f.logged.String(), `msg="log level restored" level=info`); back != (steps[len(steps)-1].want == slog.LevelInfo) {
					t.Errorf("%s", f.logged)
				}
			})
		})
	}
}

// TestTheAnswerTellsWhenALogLevelEnds. Durations without end or of days are refused.
func TestTheAnswerTellsWhenALogLevelEnds(t *testing.T) {
	f := newFixture(t, Config{})
	put := func(query string) (int, string) {
		code, body, _ := f.do(t, request{method: http.MethodPut, path: "/debug/loglevel?" + query, peer: &peer{}})
		return code, body
	}
	before := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
	_, body := put("level=debug&for=10m")
	text, ok := strings.CutPrefix(body, "debug until ")
	until, err := time.Parse(time.RFC3339, strings.TrimSuffix(text, ", then info\n"))
	if !ok || err != nil || until.Before(before) || until.After(before.Add(time.Minute)) || f.get(t, "/debug/loglevel") != body {
		t.Errorf("%q, %v", body, err)
	}
	if !strings.Contains(f.logged.String(), `action=log-level target="" parameters="for=10m level=debug" uid=0 pid=0 `) {
		t.Errorf("%s", f.logged)
	}
	for _, bad := range []string{"0s", "-1m", "25h", "soon"} {
		if code, body := put("level=warn&for=" + bad); code != http.StatusBadRequest || !strings.Contains(body, "want a duration up to 24h0m0s, such as 10m or 2h") || f.level.Level() != slog.LevelDebug {
			t.Errorf("%s: %d %s", bad, code, body)
		}
	}
}
