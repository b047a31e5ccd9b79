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

// TestLinesOfOnePeerDoNotTakeThoseOfAnother: each has a few lines, the next line has the number of those that were left
// out, and peers without number count as one.
func TestLinesOfOnePeerDoNotTakeThoseOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Peers
		lines := func(peer string, times int) (allowed, left int) {
			for range times {
				if n, ok := p.Allow(peer); ok {
					allowed, left = allowed+1, left+n
				}
			}
			return allowed, left
		}
		if n, left := lines("a", 1000); n != peerLines || left != 0 {
			t.Errorf("%d lines, %d left out", n, left)
		}
		if n, left := lines("b", 2); n != 2 || left != 1000-peerLines {
			t.Errorf("%d lines of another, %d left out", n, left)
		}
		for i := range 3 * mostPeers {
			p.Allow(string(rune(1000 + i)))
		}
		if n, _ := lines("one more", 1); n != 0 || len(p.lines) > mostPeers+1 {
			t.Errorf("%d lines of one of too many, %d are known", n, len(p.lines))
		}
		await.Pass(peerWindow)
		if n, _ := lines("a", 10); n != peerLines || len(p.lines) != 1 {
			t.Errorf("%d lines after a while, %d peers are known", n, len(p.lines))
		}
	})
}
