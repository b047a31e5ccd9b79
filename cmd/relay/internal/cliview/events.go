package cliview

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"meshrelay/admin/view"
	"meshrelay/events"
)

// Events prints events, one line each.
type Events struct {
	w      io.Writer
	wide   bool
	titled bool
	table  *table
}

// NewEvents returns an Events that writes to w. wide adds milliseconds, full client IDs, the stages of a
// change, and the command that shows more.
func NewEvents(w io.Writer, wide bool) *Events {
	// These widths fit most events, so that the columns of later lines align.
	t := &table{widths: []int{20, 12, 8, 8}}
	return &Events{w: w, wide: wide, table: t}
}

// Untitled leaves out the titles.
func (v *Events) Untitled() { v.titled = true }

// Print prints events.
func (v *Events) Print(all []events.Event) error {
	if !v.titled {
		v.titled = true
		v.table.add("TIME", "TYPE", "UPSTREAM", "BY", "WHAT")
	}
	for i := range all {
		e := &all[i]
		at, what := e.Time.UTC().Format(time.RFC3339), v.text(e)
		if v.wide {
			at = e.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00")
			if stages := view.EventStages(e.Stages); stages != "" {
				what += "; " + stages
			}
			if e.Command != "" {
				what += "; see " + e.Command
			}
		}
		v.table.add(at, e.Type, e.Upstream, view.EventBy(e), what)
	}
	return v.table.flush(v.w)
}

// text describes an event, with its client.
func (v *Events) text(e *events.Event) string {
	text := view.EventText(e)
	if e.Client == "" {
		return text
	}
	name := e.Client
	if !v.wide {
		name = view.ClientName(name)
	}
	if text == "" {
		return "client " + name
	}
	return "client " + name + ": " + text
}

// PrintStages prints new stages of an event that it printed before.
func (v *Events) PrintStages(e events.Event) error {
	text := view.EventStages(e.Stages)
	if !v.wide || text == "" {
		return nil
	}
	what := e.Time.UTC().Format("15:04:05.000") + " " + cmp.Or(e.Upstream, string(e.Type))
	_, err := fmt.Fprintf(v.w, "  reached by the change of %s: %s\n", Clean(what), Clean(text))
	return err
}
