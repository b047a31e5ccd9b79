package cliview

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"meshrelay/internal/visible"
	"meshrelay/mirror"
)

// EventType is what happened to a resource, in Kubernetes' words.
type EventType string

// The event types.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
)

// Watcher prints changes as they come. It is not for concurrent use.
type Watcher struct {
	w     io.Writer
	o     ResourceOptions
	table table
	rows  [][]string
}

// NewWatcher returns a Watcher that prints to w. ResourceOptions.Now is not used.
func NewWatcher(w io.Writer, o ResourceOptions) *Watcher {
	// The column has room for every event.
	return &Watcher{w: w, o: o, table: table{widths: []int{len(Modified)}}, rows: [][]string{append([]string{"EVENT"}, header(o)...)}}
}

// Print prints one change. For a deletion r is the deleted resource. Tables are complete only
// after Flush.
func (p *Watcher) Print(event EventType, g Group, r *mirror.Resource, now time.Time) error {
	var err error
	switch p.o.Format {
	case Table:
		p.rows = append(p.rows, append([]string{string(event)}, cells(&g, r, p.o, now)...))
	case Name:
		_, err = fmt.Fprintln(p.w, string(event), Clean(g.Kind+"/"+r.Key().Name))
	case YAML:
		if _, err = fmt.Fprintf(p.w, "--- # %s\n", event); err == nil {
			err = writeYAML(p.w, &g, r)
		}
	case JSON: // as Kubernetes' API and kubectl --output-watch-events have it
		o, oerr := toObject(&g, r)
		if oerr != nil {
			return oerr
		}
		err = json.NewEncoder(visible.JSONWriter(p.w)).Encode(map[string]any{"type": event, "object": o})
	}
	return err
}

// Flush writes the rows of a table that were printed since the last call.
func (p *Watcher) Flush() error {
	if p.o.Format != Table {
		return nil
	}
	rows := p.rows
	p.rows = nil
	return p.table.write(p.w, rows)
}
