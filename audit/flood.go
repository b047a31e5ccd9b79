package audit

import "time"

const (
	// window is the time over which lines of one kind are counted.
	window = time.Second
	// mostClients is the number of lines of one kind in a window about clients that were let in, which
	// downstream.newStreamsPerSecond limits, too. mostRefused is that of one reason to refuse.
	mostClients, mostRefused = 1000, 20
)

// floods bounds the lines that others can cause at will: of each kind, the first ones of a window are written
// one by one, and the others are counted in one line. It has no clock.
type floods map[kind]*flood

// kind is what lines are counted by. Reasons are few: they are in the code.
type kind struct {
	event            Event
	reason, upstream string
}

type flood struct {
	since time.Time
	lines int
	more  uint64 // lines that were counted only
}

// most returns the kind of a line and how many lines of it a window may have, 0 for any number.
func most(l *Line) (k kind, n int) {
	switch l.Event {
	case ClientConnected, ClientMoved, ClientEnded:
		return kind{l.Event, l.Reason, l.Upstream}, mostClients
	case ClientRefused, ClaimRefused:
		return kind{l.Event, l.Reason, l.Upstream}, mostRefused
	case OperatorRefused: // its reason is a text of the operator
		return kind{l.Event, "", ""}, mostRefused
	}
	return kind{}, 0
}

// admits reports whether a line is written. Otherwise it is counted.
func (f floods) admits(l *Line, now time.Time) bool {
	k, n := most(l)
	if n == 0 {
		return true
	}
	of := f[k]
	if of == nil {
		of = &flood{since: now}
		f[k] = of
	}
	if of.lines++; of.lines <= n {
		return true
	}
	of.more += max(1, l.Count)
	return false
}

// over ends the windows that are over, or all, and returns a line for each with more lines than were written.
func (f floods) over(now time.Time, all bool) (lines []Line) {
	for k, of := range f {
		if !all && now.Sub(of.since) < window {
			continue
		}
		if delete(f, k); of.more > 0 {
			lines = append(lines, Line{Event: k.event, Reason: k.reason, Upstream: k.upstream, Count: of.more})
		}
	}
	return lines
}
