package ui

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"meshrelay/admin/view"
	"meshrelay/events"
	"meshrelay/internal/text"
)

const (
	laneWidth, laneLeft, lanePitch = 960, 150, 26
	maxLanes                       = 10
	ticks                          = 5
)

// Lanes shows events over time, with a lane for each upstream.
type Lanes struct {
	Width, Height int
	Rows          []Lane
	Ticks         []Tick
}

// Lane has the events of one upstream, or of the relay.
type Lane struct {
	Y     int
	Name  string
	Marks []LaneMark
}

// LaneMark is one event, or several events that are too close to draw.
type LaneMark struct {
	X     int
	Level Level
	Sign  string
	Title string
	Href  string
}

// Tick is a time on the axis.
type Tick struct {
	X int
	// Anchor is the part of the text that is at X: middle or end.
	Anchor, Text string
}

// drawLanes draws events between two times. A zero time stands for the first or last event. The table below the lanes
// lists the same events as text. It returns nil if there are no events.
func drawLanes(list []events.Event, since, until time.Time) *Lanes {
	if len(list) == 0 {
		return nil
	}
	if since.IsZero() {
		since = list[0].Time
	}
	if until.IsZero() {
		until = list[len(list)-1].Time
	}
	span := max(until.Sub(since), time.Second)
	x := func(t time.Time) int {
		return laneLeft + int(float64(t.Sub(since))/float64(span)*(laneWidth-laneLeft-16))
	}
	byName := map[string]*Lane{}
	for _, e := range list {
		name := cmp.Or(e.Upstream, "relay and clients")
		lane := byName[name]
		if lane == nil {
			lane = &Lane{Name: text.Shorten(name, 20)}
			byName[name] = lane
		}
		mark := LaneMark{
			X: x(e.Time), Level: view.EventLevel(e.Type), Sign: signOf(e.Type), Href: "/events/" + strconv.FormatUint(e.Seq, 10),
			Title: e.Time.UTC().Format("15:04:05") + " " + string(e.Type),
		}
		if last := len(lane.Marks) - 1; last >= 0 && mark.X-lane.Marks[last].X < 12 { // too close to draw both
			if lane.Marks[last].Level == None {
				lane.Marks[last] = mark
			}
			continue
		}
		lane.Marks = append(lane.Marks, mark)
	}
	l := &Lanes{Width: laneWidth}
	for i, name := range first(slices.Sorted(maps.Keys(byName)), maxLanes) {
		lane := byName[name]
		lane.Y = 20 + i*lanePitch
		l.Rows = append(l.Rows, *lane)
	}
	l.Height = 20 + len(l.Rows)*lanePitch + 16
	layout := "15:04:05"
	if span > 20*time.Hour {
		layout = "01-02 15:04"
	}
	for i := range ticks {
		t := since.Add(span * time.Duration(i) / (ticks - 1))
		anchor := "middle"
		if i == ticks-1 {
			anchor = "end"
		}
		l.Ticks = append(l.Ticks, Tick{X: x(t), Anchor: anchor, Text: t.UTC().Format(layout)})
	}
	return l
}

// signOf returns a sign for an event, which shows its type without color.
func signOf(t events.Type) string {
	switch t {
	case events.Changed:
		return "■"
	case events.Held:
		return "H"
	case events.Frozen, events.RolledBack:
		return "F"
	case events.Lost, events.Denied, events.Failed:
		return "✘"
	case events.Config, events.ConfigRefused:
		return "C"
	case events.NACK:
		return "N"
	case events.Released, events.CarriedOut:
		return "R"
	}
	return "●"
}
