package statusview

import (
	"fmt"
	"io"
	"time"

	"meshrelay/internal/printer"
	"meshrelay/upstreams"
)

// Held writes what guards hold back: for each upstream the hold and a table of its deletions,
// and what to do about them. Ages are counted from now.
func Held(w io.Writer, held []upstreams.HeldUpstream, now time.Time) error {
	if len(held) == 0 {
		_, err := fmt.Fprintln(w, "No deletions are held.")
		return err
	}
	for i, h := range held {
		if i > 0 {
			fmt.Fprintln(w)
		}
		name := printer.Clean(h.Upstream)
		fmt.Fprintf(w, "upstream %s: hold %s\n  %s of %s, held for %s\n", name, h.ID,
			printer.Count(h.Removals, "deletion"), printer.Count(h.Of, "resource"), printer.Ago(h.Since, now))
		fmt.Fprintf(w, "  reason: %s\n  ends:   %s\n\n", h.Reason, endOfHold(h.Held, now))
		rows := [][]string{{"KIND", "NAMESPACE", "NAME", "AGE", "HELD"}}
		for _, d := range h.Deletions {
			rows = append(rows, []string{d.Kind, printer.OrNone(d.Namespace), d.Name, printer.Ago(d.Created, now), printer.Ago(d.Since, now)})
		}
		if err := printer.Rows(w, rows); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "\nAll of these are still served. If the deletions are meant: relay release %s --hold %s\n", name, h.ID)
		if err != nil {
			return err
		}
	}
	return nil
}

// endOfHold tells when and how a hold ends by itself.
func endOfHold(h upstreams.Held, now time.Time) string {
	switch h.Clock {
	case upstreams.ClockRunning:
		return fmt.Sprintf("in %s, once the upstream repeats the deletions", printer.Age(max(h.Until.Sub(now), 0)))
	case upstreams.ClockStopped:
		return fmt.Sprintf("after %s of contact, and the upstream is out of contact", h.Left)
	case upstreams.ClockOver:
		if h.Asked.IsZero() {
			return "once the upstream repeats the deletions"
		}
		return fmt.Sprintf("once the upstream repeats the deletions, which it was asked for %s ago", printer.Ago(h.Asked, now))
	}
	return "only when the upstream has the resources again, or somebody releases them"
}
