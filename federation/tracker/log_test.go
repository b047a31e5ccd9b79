package tracker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"meshrelay/federation/conflicts"
)

// TestWhatIsLoggedOfAHostConflictIsBounded: a host is up to 4 MiB of whatever an upstream likes,
// and any number of configs may claim it.
func TestWhatIsLoggedOfAHostConflictIsBounded(t *testing.T) {
	var log bytes.Buffer
	g := New(slog.New(slog.NewTextHandler(&log, nil)))
	c := conflicts.HostConflict{Host: strings.Repeat("h", 1<<20)}
	for i := range 10_000 {
		c.Claims = append(c.Claims, conflicts.Claim{Source: "east", Namespace: "shop", Name: fmt.Sprint("a-", i)})
	}
	g.logConflict(c)
	c.Ended = true
	g.logConflict(c)
	if got := log.String(); len(got) > 2000 || !strings.Contains(got, "shop/a-0 from east") || !strings.Contains(got, "of=10000") {
		t.Errorf("%d bytes are logged: %.2000s", len(got), got)
	}
}
