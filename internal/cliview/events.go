package cliview

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"meshrelay/events"
)

// maxEventNames is how many resources of an event a line names.
const maxEventNames = 3

// Events prints events, a line each.
type Events struct {
	w      io.Writer
	wide   bool
	titled bool
	table  *table
}

// NewEvents returns an Events that writes to w. wide adds the stages and what to run.
func NewEvents(w io.Writer, wide bool) *Events {
	// The usual widths, so that lines which come one by one line up.
	t := &table{widths: []int{20, 12, 8, 8}}
	return &Events{w: w, wide: wide, table: t}
}

// Untitled leaves out the titles.
func (v *Events) Untitled() { v.titled = true }

// Print prints events.
func (v *Events) Print(all []events.Event) error {
	if !v.titled {
		v.titled = true
		titles := []any{"TIME", "TYPE", "UPSTREAM", "BY", "WHAT"}
		v.table.add(titles...)
	}
	for i := range all {
		e := &all[i]
		at := e.Time.UTC().Format(time.RFC3339)
		what := eventText(e, v.wide)
		if v.wide {
			at = e.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00")
			if stages := stagesText(e.Stages); stages != "" {
				what += "; " + stages
			}
			if e.Command != "" {
				what += "; see " + e.Command
			}
		}
		by := string(e.By)
		if e.Operator != nil {
			by = e.Operator.String()
		}
		v.table.add(at, e.Type, e.Upstream, by, what)
	}
	return v.table.flush(v.w)
}

// PrintStages prints the stages of an event that was printed before.
func (v *Events) PrintStages(e events.Event) error {
	text := stagesText(e.Stages)
	if !v.wide || text == "" {
		return nil
	}
	what := e.Time.UTC().Format("15:04:05.000") + " " + cmp.Or(e.Upstream, string(e.Type))
	_, err := fmt.Fprintf(v.w, "  reached by the change of %s: %s\n", Clean(what), Clean(text))
	return err
}

// eventText returns what has happened as a sentence. whole gives clients their whole IDs.
func eventText(e *events.Event, whole bool) string {
	var b strings.Builder
	if e.Client != "" {
		name := e.Client
		if !whole {
			name = clientName(name)
		}
		fmt.Fprintf(&b, "client %s", name)
		if e.Text != "" {
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Text)
	if r := e.Resources; r != nil && len(r.Names) > 0 {
		b.WriteString(": ")
		for i, name := range r.Names[:min(len(r.Names), maxEventNames)] {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(shortKey(name.String()))
		}
		if more := r.Total() - min(len(r.Names), maxEventNames); more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.Hold != "" {
		fmt.Fprintf(&b, " [hold %s]", e.Hold)
	}
	if e.Count > 1 {
		fmt.Fprintf(&b, " [%d times in %v]", e.Count, max(e.Time.Sub(e.Since), time.Millisecond).Round(time.Millisecond))
	}
	return b.String()
}

// stagesText returns how far a change has got, empty when that is not known.
func stagesText(s *events.Stages) string {
	if s == nil || s.Merged.IsZero() {
		return ""
	}
	var parts []string
	add := func(what string, at time.Time) {
		if !at.IsZero() {
			parts = append(parts, what+" "+max(at.Sub(s.Received), 0).Round(10*time.Microsecond).String())
		}
	}
	add("merged", s.Merged)
	add("pushed", s.Pushed)
	if s.Clients > 0 {
		add("half of the clients", s.Half)
		add("all", s.All)
		parts = append(parts, fmt.Sprintf("%d of %s", s.Acknowledged, Count(s.Clients, "client")))
	}
	return strings.Join(parts, ", ")
}
