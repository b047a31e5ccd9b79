package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/upstreams"
)

// Snapshot is the state of a relay at one time.
type Snapshot struct {
	At        time.Time
	Version   admin.Version
	Ready     admin.Readiness
	Upstreams []upstreams.Status
	Clients   []downstream.ClientStatus
	Events    []events.Event
	// Err is the error of the last request. The other fields are then from before.
	Err error
}

// Order is the order of the list of clients.
type Order string

// The orders. Except by name, clients with problems come first.
const (
	ByState      Order = "state"
	ByName       Order = "name"
	ByBytes      Order = "bytes"
	ByRejections Order = "rejections"
)

const (
	// usualWidth and usualHeight are used when the size of the screen is unknown.
	usualWidth, usualHeight = 120, 40
	maxReasons              = 4
	maxEvents               = 8
	help                    = "q quit   clients by: s state  n name  b bytes  r rejections   ↑↓ choose   enter one client   esc back"
)

// frame draws a snapshot on a screen.
type frame struct {
	width, height int
	order         Order
	chosen        int  // the index of the chosen client among the sorted clients
	one           bool // the chosen client fills the screen
	keys          bool // the last line lists the keys
}

// sorted returns clients in an order.
func sorted(all []downstream.ClientStatus, order Order) []downstream.ClientStatus {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b downstream.ClientStatus) int {
		by := 0
		switch order {
		case ByState:
			by = cmp.Compare(rank(a), rank(b))
		case ByBytes:
			by = cmp.Compare(view.SentBytes(b), view.SentBytes(a))
		case ByRejections:
			by = cmp.Compare(view.NACKs(b), view.NACKs(a))
		}
		return cmp.Or(by, cmp.Compare(view.ClientName(a.NodeID), view.ClientName(b.NodeID)), cmp.Compare(a.Connection, b.Connection))
	})
	return all
}

// rank orders clients by state: rejected, behind, waiting, synced.
func rank(c downstream.ClientStatus) int {
	_, level := view.ClientState(c)
	switch {
	case level == view.Bad:
		return 0
	case level == view.OK:
		return 3
	case c.Held:
		return 2
	}
	return 1
}

// draw returns the lines of a screen.
func (f frame) draw(s Snapshot) []string {
	width, height := cmp.Or(f.width, usualWidth), cmp.Or(f.height, usualHeight)
	lines := head(s)
	clients := sorted(s.Clients, f.order)
	var foot []string
	if f.keys {
		foot = []string{help}
	}
	if f.one && f.chosen < len(clients) {
		lines = append(lines, "")
		lines = append(lines, split(cliview.Client(clients[f.chosen], s.At))...)
		return fit(lines, foot, width, height)
	}
	tail := eventLines(s.Events)
	room := max(height-len(lines)-len(foot)-len(tail)-3, 4) // two titles and an empty line
	ups := split(cliview.UpstreamRows(s.Upstreams, s.At))
	upRoom := min(len(ups), max(room/2, room-len(clients)-1))
	lines = append(lines, "")
	lines = append(lines, cut(ups, upRoom, "upstreams")...)
	lines = append(lines, "")
	lines = append(lines, f.clientLines(clients, room-upRoom, s.At)...)
	if len(tail) > 0 {
		lines = append(append(lines, ""), tail...)
	}
	return fit(lines, foot, width, height)
}

// head returns the lines about the relay itself.
func head(s Snapshot) []string {
	word, level := view.Ready(s.Ready)
	if s.Err != nil {
		word, level = "no answer: "+s.Err.Error(), view.Bad
	}
	about := s.At.UTC().Format(time.RFC3339)
	if s.Version.Name != "" {
		about = fmt.Sprintf("relay %s %s, up %s, %s", cliview.Clean(s.Version.Name), cliview.Clean(s.Version.Version), view.Ago(s.Version.Started, s.At), about)
	}
	lines := []string{cliview.Colored(level, word), about}
	for _, reason := range s.Ready.Reasons[:min(len(s.Ready.Reasons), maxReasons)] {
		lines = append(lines, "- "+cliview.Clean(view.OneLine(reason)))
	}
	if more := len(s.Ready.Reasons) - maxReasons; more > 0 {
		lines = append(lines, fmt.Sprintf("- and %d more: relay status", more))
	}
	return lines
}

// clientLines returns a table of clients around the chosen one.
func (f frame) clientLines(clients []downstream.ClientStatus, room int, now time.Time) []string {
	if len(clients) == 0 {
		return []string{"No clients are connected."}
	}
	title := fmt.Sprintf("%s, by %s", view.Count(len(clients), "client"), f.order)
	rows := max(room-2, 1) // without the title and the line with the column titles
	first := max(0, min(f.chosen-rows/2, len(clients)-rows))
	shown := clients[first:min(first+rows, len(clients))]
	table := split(cliview.ClientRows(shown, now))
	lines := []string{title}
	for i, line := range table {
		mark := "  "
		if f.keys && i > 0 && first+i-1 == f.chosen {
			mark = "> "
		}
		lines = append(lines, mark+line)
	}
	if more := len(clients) - len(shown); more > 0 {
		lines[0] += fmt.Sprintf(", %d of them shown", len(shown))
	}
	return lines
}

func eventLines(all []events.Event) []string {
	if len(all) == 0 {
		return nil
	}
	var text strings.Builder
	_ = cliview.NewEvents(&text, false).Print(all[max(0, len(all)-maxEvents):]) // a Builder takes everything
	return split(text.String())
}

func split(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

// cut shortens lines to room lines. The last one then counts the lines that are left out.
func cut(lines []string, room int, things string) []string {
	if len(lines) <= room {
		return lines
	}
	room = max(room, 2)
	return append(slices.Clone(lines[:room-1]), fmt.Sprintf("and %d more: relay %s", len(lines)-room+1, things))
}

// fit cuts lines to the size of the screen. foot comes last.
func fit(lines, foot []string, width, height int) []string {
	lines = append(slices.Clone(lines[:min(len(lines), max(height-len(foot), 1))]), foot...)
	for i, line := range lines {
		lines[i] = cliview.Cut(line, width)
	}
	return lines
}
