package cliview

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/mirror"
)

// The events of a resource, as Kubernetes names them.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
)

// Watcher prints events as they come. It is not safe for concurrent use.
type Watcher struct {
	w     io.Writer
	o     ResourceOptions
	table *table
}

// NewWatcher returns a Watcher that prints to w.
func NewWatcher(w io.Writer, o ResourceOptions) *Watcher {
	t := o.table("TIME", "EVENT")
	t.widths = []int{len(time.RFC3339) - len("+07:00") + len("Z"), len(Modified)} // every event fits
	return &Watcher{w: w, o: o, table: t}
}

// Print prints one event. For Deleted, r is the deleted resource. Rows of tables are written by Flush.
func (p *Watcher) Print(event string, k selection.Kind, r *mirror.Resource, now time.Time) error {
	switch p.o.Format {
	case JSON: // as in Kubernetes' API and kubectl --output-watch-events
		o, err := toObject(k, r)
		if err != nil {
			return err
		}
		return json.NewEncoder(p.w).Encode(map[string]any{"type": event, "object": o})
	case YAML:
		if _, err := fmt.Fprintf(p.w, "--- # %s\n", event); err != nil {
			return err
		}
	}
	if p.o.Tabular() {
		return p.o.print(p.w, p.table, k, r, now, now.UTC().Format(time.RFC3339), event)
	}
	return p.o.print(p.w, p.table, k, r, now, event)
}

// Flush writes the table rows that were printed since the last call.
func (p *Watcher) Flush() error {
	if !p.o.Tabular() {
		return nil
	}
	return p.table.flush(p.w)
}
