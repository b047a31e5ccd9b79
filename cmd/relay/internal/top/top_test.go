package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/golden"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func client(i int, bytes, nacks uint64, rejected string) downstream.ClientStatus {
	return downstream.ClientStatus{
		NodeID: fmt.Sprintf("waypoint~10.0.0.%d~istiod-%02d.istio-system~x", i, i), Connection: fmt.Sprint("c", i), ClusterID: "d", View: "tenant", Address: fmt.Sprintf("10.0.0.%d:4711", i),
		Protocol: "delta", IstioVersion: "1.31.0", Connected: noon.Add(-2 * time.Hour),
		Types: []downstream.TypeStatus{{TypeURL: "networking.istio.io/v1/VirtualService", SentAt: noon.Add(-time.Minute), Pushes: 3, Bytes: bytes, NACKs: nacks, LastNACK: rejected, Synced: rejected == ""}},
	}
}

// snapshot is the Snapshot of a relay with problems.
func snapshot(clients int) Snapshot {
	s := Snapshot{
		At:      noon,
		Version: admin.Version{Info: buildinfo.Info{Version: "v1.4.0"}, Name: "hub", Started: noon.Add(-12 * 24 * time.Hour)},
		Ready:   admin.Readiness{Ready: true, Reasons: []string{"upstream east: held since 11:51: deletion of 40 of 100 resources", "upstream lab: disconnected"}},
		Upstreams: []upstreams.Status{
			{Name: "east", Type: "xds", Protocol: "delta", State: upstreams.StateSynced, Since: noon.Add(-time.Hour), Address: "istiod.east:15012", Resources: map[string]int{"a/B": 100},
				Status: intake.Status{Synced: true, LastUpdate: noon.Add(-time.Minute), Held: &intake.Held{Removals: 40, Of: 100}}},
			{Name: "lab", Type: "xds", State: upstreams.StateDisconnected, Since: noon.Add(-9 * time.Minute), Address: "istiod.lab:15012", Resources: map[string]int{"a/B": 48}},
		},
		Events: []events.Event{
			{Seq: 1, Time: noon.Add(-9 * time.Minute), Type: events.Lost, Upstream: "lab", By: events.ByUpstream, Text: "i/o timeout"},
			{Seq: 2, Time: noon.Add(-8 * time.Minute), Type: events.Held, Upstream: "east", By: events.ByGuard, Text: "40 deletions of 100", Hold: "7f3a91c2"},
		},
	}
	for i := range clients {
		c := client(i, uint64(1000*(i%7)), uint64(i%3), "")
		if i == clients-1 {
			c = client(i, 5, 1, "no such host")
		}
		s.Clients = append(s.Clients, c)
	}
	return s
}

// press returns the model after some keys.
func press(m tea.Model, keys ...tea.KeyPressMsg) tea.Model {
	for _, k := range keys {
		m, _ = m.Update(k)
	}
	return m
}

func key(r rune) tea.KeyPressMsg { return tea.KeyPressMsg{Code: r, Text: string(r)} }

func at(width, height int, s Snapshot) tea.Model {
	var m tea.Model = newModel(context.Background(), Options{})
	m, _ = m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m, _ = m.Update(s)
	return m
}

func TestFramesAreAsDrawn(t *testing.T) {
	golden.Check(t, filepath.Join("testdata", "wide.golden"), at(120, 24, snapshot(5)).View().Content)
	golden.Check(t, filepath.Join("testdata", "narrow.golden"), at(80, 24, snapshot(30)).View().Content)
	golden.Check(t, filepath.Join("testdata", "rejections.golden"), press(at(120, 24, snapshot(5)), key('r'), tea.KeyPressMsg{Code: tea.KeyDown}).View().Content)
	golden.Check(t, filepath.Join("testdata", "client.golden"), press(at(120, 24, snapshot(5)), tea.KeyPressMsg{Code: tea.KeyEnter}).View().Content)
	golden.Check(t, filepath.Join("testdata", "once.golden"), Once(snapshot(5), 120))
	lost, _ := at(120, 24, snapshot(2)).Update(Snapshot{At: noon.Add(time.Second), Err: errors.New("connection refused")})
	golden.Check(t, filepath.Join("testdata", "lost.golden"), lost.View().Content)
}

func TestNoFrameIsLargerThanTheScreen(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {40, 10}, {20, 5}, {200, 60}} {
		for _, n := range []int{0, 1, 1000} {
			s := snapshot(n)
			for i := range 200 {
				s.Upstreams = append(s.Upstreams, upstreams.Status{Name: fmt.Sprint("u", i), State: upstreams.StateConnecting})
			}
			m := at(size[0], size[1], s)
			for _, m := range []tea.Model{m, press(m, tea.KeyPressMsg{Code: tea.KeyEnter})} {
				lines := strings.Split(m.View().Content, "\n")
				for _, line := range lines {
					if len([]rune(line)) > size[0] {
						t.Errorf("%v: a line of %d characters", size, len([]rune(line)))
					}
				}
				if len(lines) > size[1] {
					t.Errorf("%v with %d clients: %d lines", size, n, len(lines))
				}
			}
		}
	}
}

func TestColorsFollowStates(t *testing.T) {
	m := newModel(context.Background(), Options{Colors: true})
	next, _ := m.Update(snapshot(3))
	text := next.View().Content
	for _, want := range []string{"\x1b[33mready, degraded\x1b[0m", "\x1b[33msynced 60m, held\x1b[0m", "\x1b[31mdisconnected 9m\x1b[0m", "\x1b[31m1 type rejected\x1b[0m", "\x1b[32msynced\x1b[0m"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
}

// openPTY returns the two ends of a terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close(); master.Close() })
	return master, slave
}

// screenText collects the output to a terminal.
type screenText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screenText) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screenText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screenText) await(t *testing.T, want string) {
	t.Helper()
	await.Until(t, want+" is on the screen", func() bool { return strings.Contains(s.String(), want) }, func() any { return s })
}

func TestTopRunsOnATerminalAndEndsWithQ(t *testing.T) {
	master, slave := openPTY(t)
	shown := &screenText{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			_, _ = shown.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	done := make(chan error, 1)
	go func() {
		done <- Run(context.Background(), Options{In: slave, Out: slave, Every: 10 * time.Millisecond, Fetch: func(context.Context) Snapshot { return snapshot(5) }})
	}()
	shown.await(t, "by state")
	shown.await(t, "istiod-04.istio-system")
	if _, err := master.WriteString("n"); err != nil {
		t.Fatal(err)
	}
	shown.await(t, "name")
	if _, err := master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := await.Value(t, "it ends after q", done); err != nil {
		t.Error(err)
	}
	slave.Close()
	master.Close()
	<-read
}
