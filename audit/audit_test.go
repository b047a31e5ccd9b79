package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is an output that can fail, block, or take a part.
type place struct {
	mu    sync.Mutex
	taken bytes.Buffer
	err   error
	room  int           // bytes that are taken in spite of err
	stuck chan struct{} // nil: does not block
}

func (p *place) Write(b []byte) (int, error) {
	p.mu.Lock()
	stuck := p.stuck
	p.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		n := min(p.room, len(b))
		p.taken.Write(b[:n])
		return n, p.err
	}
	return p.taken.Write(b)
}

func (p *place) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *place) lines(t *testing.T) []Line {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	return parsed(t, p.taken.Bytes())
}

// parsed returns the lines of a text. Each line must be whole.
func parsed(t *testing.T, text []byte) (lines []Line) {
	t.Helper()
	for raw := range bytes.Lines(text) {
		var line Line
		if err := json.Unmarshal(raw, &line); err != nil || !bytes.HasSuffix(raw, []byte("\n")) {
			t.Fatalf("%v: %q", err, raw)
		}
		lines = append(lines, line)
	}
	return lines
}

// run runs a log until the test ends, or stop is called.
func run(t *testing.T, l *Log) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func events(lines []Line) (all []Event) {
	for _, line := range lines {
		all = append(all, line.Event)
	}
	return all
}

func TestLinesAreWrittenInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &place{}
		l := New(Options{Output: out, Relay: "relay-1", Logger: quiet()})
		stop := run(t, l)
		l.Record(Line{Event: Started})
		l.Record(Line{Event: OperatorActed, Operator: &Operator{User: "root"}, Action: "freeze", Before: "<a>", After: "b"})
		synctest.Wait()
		lines := out.lines(t)
		if !slices.Equal(events(lines), []Event{Started, OperatorActed}) || lines[0].Relay != "relay-1" || !lines[0].Time.Equal(time.Now()) {
			t.Errorf("%+v", lines)
		}
		if text := out.taken.String(); !strings.Contains(text, `"uid":0,"gid":0,"pid":0,"user":"root","action":"freeze","before":"<a>","after":"b"`) {
			t.Error(text)
		}
		l.Record(Line{Event: Ended})
		stop()
		if got := out.lines(t); got[len(got)-1].Event != Ended {
			t.Error("what waits at the end is not written")
		}
	})
}

func TestTextsFromOutsideAreBoundedAndSteerNothing(t *testing.T) {
	text := string(Line{Event: ClientRefused, Error: "\x1b[31m\u202e" + strings.Repeat("e", 5000), NodeID: "a\nb"}.encode())
	if len(text) > 1300 || strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

func TestALogWithoutAPlaceTakesEverything(t *testing.T) {
	for _, l := range []*Log{nil, New(Options{Required: true, Logger: quiet()})} {
		l.Record(Line{Event: Started})
		if err := l.Ask(t.Context(), Line{}); err != nil || l.Problem() != "" {
			t.Error(err, l.Problem())
		}
	}
	run(t, New(Options{Logger: quiet()}))()
}

// TestTheFirstLineAfterwardsTellsHowManyAreMissing, and until then the problem and the metrics do.
func TestTheFirstLineAfterwardsTellsHowManyAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &place{err: errors.New("no space left on device")}
		l := New(Options{Output: out, Logger: quiet()})
		run(t, l)
		for range 3 {
			l.Record(Line{Event: ConfigLoaded})
			synctest.Wait()
		}
		if problem := l.Problem(); !strings.Contains(problem, "lines lost: 3: standard output: no space left on device") {
			t.Error(problem)
		}
		if n, healthy := testutil.ToFloat64(l.lost), testutil.ToFloat64(l.healthy); n != 3 || healthy != 0 {
			t.Errorf("%v lost, healthy %v", n, healthy)
		}
		out.fail(nil)
		await.Pass(2 * interval)
		l.Record(Line{Event: Started})
		synctest.Wait()
		lines := out.lines(t)
		if !slices.Equal(events(lines), []Event{LinesLost, Started}) || lines[0].Count != 3 || lines[0].Error != "no space left on device" {
			t.Errorf("%+v", lines)
		}
		if l.Problem() != "" || testutil.ToFloat64(l.healthy) != 1 || testutil.ToFloat64(l.lost) != 3 {
			t.Error(l.Problem())
		}
	})
}

// TestRecordWaitsForNobody: while the place takes nothing, lines are kept within a bound, and then counted.
func TestRecordWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &place{stuck: make(chan struct{})}
		l := New(Options{Output: out, Logger: quiet()})
		run(t, l)
		const all = 2000
		for i := range all {
			l.Record(Line{Event: ConfigLoaded, After: strings.Repeat("a", maxText)})
			if i == 0 {
				synctest.Wait() // the first line is being written
			}
		}
		if len(l.queue) > maxQueue || !strings.Contains(l.Problem(), "faster than they can be written") {
			t.Errorf("%d bytes, %s", len(l.queue), l.Problem())
		}
		close(out.stuck)
		await.Pass(2 * interval)
		lines := out.lines(t)
		last := lines[len(lines)-1]
		if last.Event != LinesLost || len(lines)-1+int(last.Count) != all || testutil.ToFloat64(l.lost) != float64(last.Count) {
			t.Errorf("%d lines, the last %+v", len(lines), last)
		}
		if l.Problem() != "" {
			t.Error(l.Problem())
		}
	})
}

func TestAFloodIsCountedInOneLineASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &place{}
		l := New(Options{Output: out, Logger: quiet()})
		stop := run(t, l)
		for range 1000 {
			l.Record(Line{Event: ClientRefused, Reason: "peer"})
		}
		l.Record(Line{Event: ClientRefused, Reason: "view"})
		l.Record(Line{Event: OperatorActed})
		synctest.Wait()
		if lines := out.lines(t); len(lines) != mostRefused+2 {
			t.Errorf("%d lines", len(lines))
		}
		await.Pass(2 * interval)
		lines := out.lines(t)
		if last := lines[len(lines)-1]; len(lines) != mostRefused+3 || last.Event != ClientRefused || last.Reason != "peer" || last.Count != 1000-mostRefused {
			t.Errorf("%d lines, the last %+v", len(lines), last)
		}
		for range mostRefused + 1 {
			l.Record(Line{Event: ClientRefused, Reason: "peer"})
		}
		stop()
		lines = out.lines(t)
		if last := lines[len(lines)-1]; len(lines) != 2*mostRefused+4 || last.Count != 1 {
			t.Errorf("at the end, %d lines, the last %+v", len(lines), last)
		}
	})
}

func TestWhatOperatorsDoIsNeverCountedOnly(t *testing.T) {
	for _, e := range Events() {
		many := floods{}
		counted := false
		for range 2 * mostClients {
			counted = !many.admits(&Line{Event: e}, time.Time{}) || counted
		}
		if want := e == OperatorRefused || e == ClaimRefused || strings.HasPrefix(string(e), "client-"); counted != want {
			t.Errorf("%s: counted is %v", e, counted)
		}
	}
}

// TestAskReturnsWhenTheLineIsWritten, and with an error while it can not be.
func TestAskReturnsWhenTheLineIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &place{}
		l := New(Options{Output: out, Required: true, Logger: quiet()})
		stop := run(t, l)
		if err := l.Ask(t.Context(), Line{Event: OperatorAsked, Action: "freeze"}); err != nil {
			t.Fatal(err)
		}
		if lines := out.lines(t); len(lines) != 1 || lines[0].Action != "freeze" {
			t.Errorf("%+v", lines)
		}
		out.fail(errors.New("disk is gone"))
		err := l.Ask(t.Context(), Line{Event: OperatorAsked})
		if err == nil || !strings.Contains(err.Error(), "nothing was done, because the audit log can not be written (standard output: disk is gone)") || !strings.Contains(err.Error(), "audit.required") {
			t.Error(err)
		}
		if !strings.Contains(l.Problem(), "actions of operators are refused") {
			t.Error(l.Problem())
		}
		out.mu.Lock()
		out.err, out.stuck = nil, make(chan struct{})
		out.mu.Unlock()
		if err := l.Ask(t.Context(), Line{Event: OperatorAsked}); err == nil || !strings.Contains(err.Error(), "not written within 5s") {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Ask(ended, Line{Event: OperatorAsked}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(out.stuck)
		stop()
		if err := l.Ask(t.Context(), Line{Event: OperatorAsked}); !errors.Is(err, errEnded) {
			t.Error(err)
		}
		optional := New(Options{Output: out, Logger: quiet()})
		if err := optional.Ask(t.Context(), Line{Event: OperatorAsked}); err != nil || len(optional.queue) != 0 {
			t.Error(err)
		}
	})
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return b
}

func TestTheFileIsForTheRelayOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "audit.log")
	f := &file{path: path, maxBytes: 1 << 20, maxFiles: 2}
	defer f.close()
	for range 2 {
		if _, err := f.append([]byte("{}\n"), true); err != nil {
			t.Fatal(err)
		}
		for at, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): fs.ModeDir | 0o700} {
			if info, err := os.Stat(at); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v", at, info.Mode(), err)
			}
		}
		f.close()
		if err := os.Chmod(path, 0o644); err != nil { // it was another program's
			t.Fatal(err)
		}
	}
}

func TestAFileThatOthersCouldReplaceIsNotWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(dir string) error
		want    string
	}{
		"a link": {func(dir string) error {
			return os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "audit.log"))
		}, "is a link"},
		"a pipe":               {func(dir string) error { return os.Mkdir(filepath.Join(dir, "audit.log"), 0o700) }, "is a directory"},
		"a directory of all":   {func(dir string) error { return os.Chmod(dir, 0o777) }, "others can write to directory"},
		"a directory of group": {func(dir string) error { return os.Chmod(dir, 0o770) }, "others can write to directory"},
		"another's directory": {func(dir string) error {
			if os.Geteuid() != 0 {
				return errors.ErrUnsupported
			}
			return os.Chown(dir, 12345, -1)
		}, "belongs to user 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := tc.prepare(dir); errors.Is(err, errors.ErrUnsupported) {
				t.Skip("only root can give a directory away")
			} else if err != nil {
				t.Fatal(err)
			}
			f := &file{path: filepath.Join(dir, "audit.log"), maxBytes: 1 << 20, maxFiles: 2}
			defer f.close()
			if n, err := f.append([]byte("{}\n"), false); n != 0 || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d bytes written: %v", n, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
				t.Error("the link was followed")
			}
		})
	}
}

// TestANewFileBeginsBeforeOneGetsTooLarge: no file is larger, there are no more files, and no line is torn or lost of
// those that are kept.
func TestANewFileBeginsBeforeOneGetsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for i := 3; i < 6; i++ { // of a time with more files
		if err := os.WriteFile(fmt.Sprintf("%s.%d", path, i), []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &file{path: path, maxBytes: 1000, maxFiles: 3}
	defer f.close()
	for i := range 100 {
		if _, err := f.append(Line{Event: Started, Count: uint64(i)}.encode(), false); err != nil {
			t.Fatal(err)
		}
	}
	next := uint64(0)
	for i, at := range []string{path + ".2", path + ".1", path} {
		text := contents(t, at)
		lines := parsed(t, text)
		if len(text) > 1000 || len(text) < 500 && at != path || len(lines) == 0 {
			t.Errorf("%s has %d bytes", at, len(text))
		}
		if i == 0 {
			next = lines[0].Count
		}
		for _, line := range lines {
			if line.Count != next {
				t.Errorf("%s: line %d, want %d", at, line.Count, next)
			}
			next++
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 3 || next != 100 {
		t.Errorf("%v, the last line is %d: %v", entries, next, err)
	}
}

func TestAFileThatIsMovedAwayIsFollowedByANewOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := &file{path: path, maxBytes: 1 << 20, maxFiles: 2}
	defer f.close()
	for i := range 3 {
		if _, err := f.append([]byte("{}\n"), false); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, fmt.Sprint(path, ".moved-", i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALineThatACrashHasTornDoesNotTearTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(`{"event":"sta`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &file{path: path, maxBytes: 1 << 20, maxFiles: 2}
	defer f.close()
	if _, err := f.append([]byte("{}\n"), false); err != nil {
		t.Fatal(err)
	}
	if got := string(contents(t, path)); got != "{\"event\":\"sta\n{}\n" || f.size != int64(len(got)) {
		t.Errorf("%q, %d bytes", got, f.size)
	}
}

// TestAStreamThatTakesAPartLosesTheOtherLines: whole lines count as written.
func TestAStreamThatTakesAPartLosesTheOtherLines(t *testing.T) {
	out := &place{err: io.ErrShortWrite, room: 8}
	n, err := stream{out}.append([]byte("{}\n{}\n{}\n"), false)
	if n != 6 || err == nil {
		t.Error(n, err)
	}
}

func TestTheMetricsAreThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	if err := reg.Register(New(Options{Logger: quiet()})); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != len(Events())+2 {
		t.Errorf("%d series: %v", n, err)
	}
}

// TestTheDocumentHasTheEventsAndFieldsOfTheCode, in their order.
func TestTheDocumentHasTheEventsAndFieldsOfTheCode(t *testing.T) {
	page := string(contents(t, "../docs/audit.md"))
	rows := func(heading string) (names []string) {
		_, table, _ := strings.Cut(page, "\n## "+heading+"\n")
		table, _, _ = strings.Cut(table, "\n## ")
		for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z-]+)` \\| .+ \\|$").FindAllStringSubmatch(table, -1) {
			names = append(names, m[1])
		}
		return names
	}
	var all []string
	for _, e := range Events() {
		all = append(all, string(e))
	}
	if got := rows("Events"); !slices.Equal(got, all) {
		t.Errorf("docs/audit.md has the events %q, want %q", got, all)
	}
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Line]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			fields = append(fields, name)
		}
	}
	if got := rows("Fields"); !slices.Equal(got, fields) {
		t.Errorf("docs/audit.md has the fields %q, want %q", got, fields)
	}
	for raw := range strings.Lines(page) { // the examples
		if text, is := strings.CutPrefix(raw, "    {"); is {
			dec := json.NewDecoder(strings.NewReader("{" + text))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&Line{Operator: &Operator{}}); err != nil {
				t.Errorf("%v: %s", err, raw)
			}
		}
	}
}
