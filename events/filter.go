package events

import (
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
)

// Filter selects events. The zero value selects all.
type Filter struct {
	Types    []Type
	Upstream string
	Client   string // a part of its name
	// Kinds and Namespace select events about such resources. An event with resources outside its
	// groups is selected, too.
	Kinds     []mirror.Kind
	Namespace string
	// Since and Until bound the time. Until is excluded.
	Since, Until time.Time
	// Text is a part of any text or name. Case does not matter.
	Text string
	// Orders selects orders of operators, without what they do.
	Orders bool
	// NoTools excludes connections of commands of the relay, such as "relay get".
	NoTools bool
}

// Picks reports whether an event is selected.
func (f *Filter) Picks(e *Event) bool { return f.matches(e) && !f.leavesOut(e) }

// leavesOut reports whether NoTools excludes an event.
func (f *Filter) leavesOut(e *Event) bool {
	return f.NoTools && e.Tool && (e.Type == Connected || e.Type == Gone)
}

func (f *Filter) matches(e *Event) bool {
	switch {
	case len(f.Types) > 0 && !slices.Contains(f.Types, e.Type),
		f.Upstream != "" && f.Upstream != e.Upstream,
		f.Client != "" && !strings.Contains(e.Client, f.Client),
		!f.Since.IsZero() && e.Time.Before(f.Since),
		!f.Until.IsZero() && !e.Time.Before(f.Until),
		f.Orders && (e.Type != Ordered || e.Operator == nil),
		(len(f.Kinds) > 0 || f.Namespace != "") && !f.picksResources(e.Resources),
		f.Text != "" && !f.picksText(e):
		return false
	}
	return true
}

func (f *Filter) picksResources(r *Resources) bool {
	return r != nil && (r.Elsewhere > 0 || slices.ContainsFunc(r.Groups, func(g Group) bool {
		return (f.Namespace == "" || f.Namespace == g.Namespace) &&
			(len(f.Kinds) == 0 || slices.Contains(f.Kinds, g.Kind))
	}))
}

func (f *Filter) picksText(e *Event) bool {
	want := strings.ToLower(f.Text)
	has := func(text string) bool { return strings.Contains(strings.ToLower(text), want) }
	if slices.ContainsFunc([]string{string(e.Type), e.Upstream, e.Client, e.Text, e.Reason, e.Hold}, has) {
		return true
	}
	return e.Resources != nil && slices.ContainsFunc(e.Resources.Names, func(n Name) bool { return has(n.String()) })
}
