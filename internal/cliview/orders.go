package cliview

import (
	"fmt"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/upstreams/intake"
)

// noState tells that a restart undoes an order.
const noState = "; without state.dir, a restart undoes this"

// Frozen describes an upstream after a freeze or rollback.
func Frozen(c admin.Controlled) string {
	if c.Frozen == nil {
		return fmt.Sprintf("upstream %s is no longer frozen", c.Name)
	}
	text := fmt.Sprintf("upstream %s is frozen", c.Name)
	if c.Frozen.Revision != 0 {
		text += fmt.Sprintf(" at revision %d", c.Frozen.Revision)
	}
	text += fmt.Sprintf(", with %s, until ", Count(admin.Total(c.Resources), "resource"))
	if !c.Frozen.Until.IsZero() {
		text += fmt.Sprintf("%s (later if it is out of contact) or ", c.Frozen.Until.UTC().Format(time.RFC3339))
	}
	text += fmt.Sprintf("\"relay unfreeze %s\"", c.Name)
	if !c.KeepsState {
		text += noState
	}
	return text
}

// Unfrozen describes an upstream after an unfreeze.
func Unfrozen(c admin.Controlled) string {
	if c.Frozen != nil {
		return fmt.Sprintf("upstream %s was frozen again by somebody else", c.Name)
	}
	return fmt.Sprintf("upstream %s is unfrozen", c.Name)
}

// Effect lists what an order changes, or leaves to the guard.
func Effect(e intake.Effect) string {
	text := fmt.Sprintf("%d added, %d changed, %d removed, ", e.Added, e.Changed, e.Removed-e.Held)
	if e.Held > 0 {
		text += fmt.Sprintf("%d held by its guard, ", e.Held)
	}
	return text + fmt.Sprintf("%d unchanged", e.Kept) + effectList(e)
}

func effectList(e intake.Effect) (text string) {
	for _, line := range e.Resources {
		text += "\n  " + Clean(line)
	}
	if more := e.Added + e.Changed + e.Removed - len(e.Resources); more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// Released describes an upstream after a release.
func Released(c admin.Controlled) string {
	n := Count(c.Effect.Removed, "deletion")
	text := fmt.Sprintf("upstream %s: %s released", c.Name, n)
	if c.DryRun {
		text = fmt.Sprintf("dry run: upstream %s: %s would be released", c.Name, n)
	}
	text += fmt.Sprintf(", %d still held", c.Effect.Held) + effectList(c.Effect)
	if c.Effect.Held > 0 && !c.DryRun {
		text += fmt.Sprintf("\nSee what is still held: relay held %s", c.Name)
	}
	return text
}

// Without describes for whom clients wait after a serve-without.
func Without(upstream string, w admin.Waiting) string {
	text := fmt.Sprintf("clients no longer wait for upstream %s", upstream)
	if !w.KeepsState {
		text += noState
	}
	if len(w.For) > 0 {
		text += "; they still wait for " + strings.Join(w.For, ", ")
	}
	return text
}

// Reloaded describes the config after a reload.
func Reloaded(s admin.ReloadStatus) string {
	text := "config file loaded: nothing has changed"
	if len(s.Changed) > 0 {
		text = "config file loaded; changed: " + Clean(strings.Join(s.Changed, ", "))
	}
	if len(s.NeedsRestart) > 0 {
		text += "; restart needed for " + strings.Join(s.NeedsRestart, ", ")
	}
	return text
}
