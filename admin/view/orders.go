package view

import (
	"fmt"
	"strings"

	"meshrelay/admin"
	"meshrelay/upstreams/intake"
)

// NoState warns that a restart undoes an order.
const NoState = "; without state.dir, a restart undoes this"

// Ordered describes the effect of an order about an upstream: freeze, unfreeze, release or rollback.
func Ordered(c admin.Controlled, verb string, o intake.Order) string {
	would := "dry run: upstream " + c.Name + " would be "
	switch {
	case verb == "release":
		return released(c)
	case c.DryRun && verb == "freeze":
		return would + "frozen, with " + Count(c.Effect.Kept, "resource")
	case c.DryRun && verb == "rollback":
		return would + fmt.Sprintf("frozen at revision %d: %s", o.To, effect(c.Effect))
	case c.DryRun:
		return would + "unfrozen: " + effect(c.Effect)
	case verb == "unfreeze" && c.Frozen != nil:
		return fmt.Sprintf("upstream %s was frozen again by another operator", c.Name)
	case verb == "unfreeze":
		return fmt.Sprintf("upstream %s is unfrozen", c.Name)
	case c.Frozen == nil:
		return fmt.Sprintf("upstream %s was unfrozen by another operator", c.Name)
	}
	text := fmt.Sprintf("upstream %s is frozen", c.Name)
	if c.Frozen.Revision != 0 {
		text += fmt.Sprintf(" at revision %d", c.Frozen.Revision)
	}
	text += fmt.Sprintf(", with %s, until \"relay unfreeze %s\"", Count(admin.Total(c.Resources), "resource"), c.Name)
	if !c.KeepsState {
		text += NoState
	}
	return text
}

// Reached tells on how many replicas an order is in force, on a line of its own. It is empty for a relay that is alone.
func Reached(r *intake.Reach) string {
	switch {
	case r == nil:
		return ""
	case r.Here:
		return "\nThis is for this replica alone: it has no revision with the content of the rollback that all follow"
	case r.Unwritten != "":
		return "\nThe order is in force on this replica alone, and will be written for the others: " + r.Unwritten
	}
	text := fmt.Sprintf("\nThe order is in force on %d of %s", r.Did, Count(r.Of, "replica"))
	if len(r.Missing) > 0 {
		text += ". Not on: " + strings.Join(r.Missing, ", ")
	}
	if len(r.Away) > 0 {
		text += ". Away: " + strings.Join(r.Away, ", ")
	}
	return text
}

func released(c admin.Controlled) string {
	n := Count(c.Effect.Removed, "deletion")
	text := fmt.Sprintf("upstream %s: %s released", c.Name, n)
	if c.DryRun {
		text = fmt.Sprintf("dry run: upstream %s: %s would be released", c.Name, n)
	}
	text += fmt.Sprintf(", %d still held", c.Effect.Held) + changed(c.Effect)
	if c.Effect.Held > 0 && !c.DryRun {
		text += fmt.Sprintf("\nTo list the held deletions: relay upstreams --held %s", c.Name)
	}
	return text
}

// effect counts and lists the resources that an order changes.
func effect(e intake.Effect) string {
	text := fmt.Sprintf("%d added, %d changed, %d removed, ", e.Added, e.Changed, e.Removed-e.Held)
	if e.Held > 0 {
		text += fmt.Sprintf("%d held by its guard, ", e.Held)
	}
	return text + fmt.Sprintf("%d unchanged", e.Kept) + changed(e)
}

// changed lists the resources that an order changes, one per line.
func changed(e intake.Effect) (text string) {
	for _, line := range e.Resources {
		text += "\n  " + OneLine(line)
	}
	if more := e.Added + e.Changed + e.Removed - len(e.Resources); more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}
