package cliview

import (
	"fmt"
	"io"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/upstreams"
)

// stillEvery is how often a Progress lists the upstreams that have not synced.
const stillEvery = 5 * time.Second

// Progress prints how upstreams become synced. It is not safe for concurrent use.
type Progress struct {
	w      io.Writer
	synced map[string]bool
	told   time.Time
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, synced: map[string]bool{}} }

// Told takes the current status of the upstreams. It prints a line for each upstream that has synced since the
// last call, and every five seconds a line for each that has not.
func (p *Progress) Told(all []upstreams.Status, now time.Time) {
	if p.told.IsZero() {
		p.told = now
	}
	still := now.Sub(p.told) >= stillEvery
	if still {
		p.told = now
	}
	for _, u := range all {
		switch {
		case u.Synced && !p.synced[u.Name]:
			p.synced[u.Name] = true
			fmt.Fprintf(p.w, "%s: synced, %s (%d of %s)\n", u.Name, view.Count(admin.Total(u.Resources), "resource"), len(p.synced), view.Count(len(all), "upstream"))
		case still && !u.Synced:
			text := string(u.State)
			if n := len(u.Pending); n > 0 {
				text += fmt.Sprintf(", no answer to %s yet", view.Count(n, "type"))
			}
			if u.LastError != "" {
				text += ": " + Clean(u.LastError)
			}
			fmt.Fprintf(p.w, "%s: %s\n", u.Name, text)
		}
	}
}
