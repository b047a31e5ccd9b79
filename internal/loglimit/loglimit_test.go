package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// TestAFloodOfLinesIsLoggedInPart: the next line has the number of dropped lines.
func TestAFloodOfLinesIsLoggedInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		l := New(3, 10*time.Second)
		flood := func() int {
			out.Reset()
			for range 1000 {
				l.Warn(log, "refused", "type", "x")
			}
			return strings.Count(out.String(), "level=WARN msg=refused type=x")
		}
		if n := flood(); n != 3 || strings.Contains(out.String(), "unlogged") {
			t.Errorf("%d lines: %s", n, &out)
		}
		await.Pass(10 * time.Second)
		if n := flood(); n != 1 || !strings.Contains(out.String(), "unlogged=997\n") {
			t.Errorf("%d lines after a while: %s", n, &out)
		}
		await.Pass(20 * time.Second)
		if n := flood(); n != 2 || !strings.Contains(out.String(), "unlogged=999\n") {
			t.Errorf("%d lines after a longer while: %s", n, &out)
		}
	})
}
