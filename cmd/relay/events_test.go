package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// TestTimesOfFlagsAreUTC: clock times are in the last 24 hours, durations are before now.
func TestTimesOfFlagsAreUTC(t *testing.T) {
	now := time.Date(2026, 11, 22, 3, 30, 0, 0, time.FixedZone("", 3600)) // 02:30 UTC
	for text, want := range map[string]string{
		"02:12":                "2026-11-22T02:12:00Z",
		"03:12":                "2026-11-21T03:12:00Z", // it is not 03:12 yet
		"02:12:30":             "2026-11-22T02:12:30Z",
		"2h":                   "2026-11-22T00:30:00Z",
		"2026-11-20 03:12":     "2026-11-20T03:12:00Z",
		"2026-11-20T03:12:00Z": "2026-11-20T03:12:00Z",
		"2026-11-20":           "2026-11-20T00:00:00Z",
	} {
		if got, err := clockTime(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v %v, want %s", text, got, err, want)
		}
	}
	if _, err := clockTime("yesterday", now); err == nil || !strings.Contains(err.Error(), "03:12") {
		t.Errorf("%v", err)
	}
}

// TestEventsOutliveAKill, except those of the last flush interval, whatever the kill interrupts.
func TestEventsOutliveAKill(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, hosts("a=a.example", "b=b.example")...)
	p := newProcess(t, fmt.Sprintf("state: {dir: state}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\ndownstream: {LISTEN}\n", source.Addr))
	p.start()
	path := filepath.Join(p.dir, "state", "events.log")
	onDisk := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(text)
	}
	await.Until(t, "the events are on disk, and the resources", func() bool {
		return strings.Contains(onDisk(path), `"type":"serving"`) && strings.Contains(onDisk(path), `"type":"changed"`) &&
			strings.Contains(onDisk(filepath.Join(p.dir, "state", "upstream-east.state")), "shop/b")
	})
	p.signal(syscall.SIGKILL)
	if err := p.wait(); err == nil {
		t.Error("it has ended by itself")
	}
	torn := append([]byte(onDisk(path)), `{"event":{"seq":99`...)
	if err := os.WriteFile(path, torn, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start()
	var out bytes.Buffer
	await.Until(t, "it is ready", func() bool { return p.readiness().Ready })
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"events", "--admin", p.admin, "--limit", "100"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "started"); got != 2 || !strings.Contains(out.String(), "2 added") || !strings.Contains(out.String(), "restored") {
		t.Errorf("%d starts:\n%s", got, &out)
	}
}
