package logring

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

func content(t *testing.T, r *Ring) []string {
	t.Helper()
	var b bytes.Buffer
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestTheRingKeepsDebugLinesThatTheLogLeavesOut(t *testing.T) {
	var out bytes.Buffer
	var r Ring
	log := slog.New(r.Handler(slog.NewTextHandler(&out, nil))).With("upstream", "east")
	log.Debug("one")
	log.WithGroup("g").Info("two", "a", 1)
	if got := content(t, &r); len(got) != 2 || !strings.Contains(got[0], "one upstream=east") || !strings.Contains(got[1], "g.a=1") {
		t.Errorf("%q", got)
	}
	if s := out.String(); strings.Contains(s, "one") || !strings.Contains(s, "two") {
		t.Errorf("%q", s)
	}
}

func TestAPartWithoutDebugMakesNoLineThatTheLogDoesNotWant(t *testing.T) {
	var r Ring
	level := new(slog.LevelVar)
	var out bytes.Buffer
	log := slog.New(WithoutDebug(r.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))).With("client", 1)
	if log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("a line of level debug would be made")
	}
	log.Info("one")
	level.Set(slog.LevelDebug)
	log.Debug("two")
	if got := content(t, &r); len(got) != 1 || !strings.Contains(got[0], "one") || !strings.Contains(out.String(), "two") {
		t.Errorf("ring %q, log %q", got, out.String())
	}
	if h := slog.DiscardHandler; WithoutDebug(h) != h {
		t.Error("a handler without a ring is another")
	}
}

func TestTheRingIsBoundedInLinesAndBytes(t *testing.T) {
	var r Ring
	for i := range 2 * maxLines {
		fmt.Fprintf(&r, "line %d\n", i)
	}
	if got := content(t, &r); len(got) != maxLines || got[0] != fmt.Sprintf("line %d", maxLines) || got[maxLines-1] != fmt.Sprintf("line %d", 2*maxLines-1) {
		t.Errorf("%d lines, from %s to %s", len(got), got[0], got[len(got)-1])
	}
	long := strings.Repeat("x", 10*maxLine)
	for range 2 * maxBytes / maxLine {
		fmt.Fprintln(&r, long)
	}
	if n, err := r.WriteTo(io.Discard); err != nil || n > maxBytes || n < maxBytes-2*maxLine || int(n) != r.bytes {
		t.Errorf("%d bytes, counted %d, %v", n, r.bytes, err)
	}
}

func TestALineOfLevelDebugIsNotMadeOverTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Ring
		log := slog.New(r.Handler(slog.DiscardHandler))
		for range 10 * MaxDebug {
			log.Debug("x")
		}
		if n := len(content(t, &r)); n != MaxDebug || log.Enabled(t.Context(), slog.LevelDebug) {
			t.Errorf("%d lines in a second, enabled %v", n, log.Enabled(t.Context(), slog.LevelDebug))
		}
		log.Info("always")
		await.Pass(time.Second)
		log.Debug("y")
		if n := len(content(t, &r)); n != MaxDebug+2 {
			t.Errorf("%d lines", n)
		}
	})
}
