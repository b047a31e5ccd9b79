package cliview

import (
	"fmt"
	"time"

	"meshrelay/upstreams/intake"
)

// Held returns the deletions that guards hold as text: for each upstream the hold, a table of its
// deletions, and how to release them. now is for ages.
func Held(held []intake.HeldUpstream, now time.Time) string {
	if len(held) == 0 {
		return "No deletions are held.\n"
	}
	var p page
	for i, h := range held {
		if i > 0 {
			p.WriteString("\n")
		}
		name := Clean(h.Upstream)
		p.printf("upstream %s: hold %s\n  %s of %s, held for %s\n", name, h.ID,
			Count(h.Removals, "deletion"), Count(h.Of, "resource"), Ago(h.Since, now))
		p.printf("  reason: %s\n  ends:   %s\n\n", h.Reason, endOfHold(h.Held, now))
		t := titled("KIND", "NAMESPACE", "NAME", "AGE", "HELD")
		for _, d := range h.Deletions {
			t.add(d.Kind, d.Namespace, d.Name, Ago(d.Created, now), Ago(d.Since, now))
		}
		p.table(t)
		p.printf("\nAll of these are still served. To delete them: relay release %s --hold %s\n", name, h.ID)
	}
	return p.String()
}

// endOfHold tells when a hold ends.
func endOfHold(h intake.Held, now time.Time) string {
	switch h.Clock {
	case intake.ClockRunning:
		return fmt.Sprintf("in %s, once the upstream repeats the deletions", Age(max(h.Until.Sub(now), 0)))
	case intake.ClockStopped:
		return fmt.Sprintf("after another %s of contact (now out of contact)", h.Left)
	case intake.ClockOver:
		if h.Asked.IsZero() {
			return "once the upstream repeats the deletions"
		}
		return fmt.Sprintf("once the upstream repeats the deletions, asked %s ago", Ago(h.Asked, now))
	}
	return "when the upstream has the resources again, or an operator releases them"
}
