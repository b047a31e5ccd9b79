package events

import (
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
)

// Filter picks events. The zero value picks all.
type Filter struct {
	Types    []Type
	Upstream string
	Client   string // a part of its name
	// Kinds and Namespace pick events about such resources. An event about more groups than it
	// counts is picked, too.
	Kinds     []mirror.Kind
	Namespace string
	// Since and Until bound the time; Until is not part of it.
	Since, Until time.Time
	// Text is a part of any text or name, in any case.
	Text string
	// Orders picks what operators have ordered.
	Orders bool
	// NoTools leaves out that commands of the relay came and went, as "relay get" does each time.
	NoTools bool
}

// Picks reports whether an event is picked.
func (f *Filter) Picks(e *Event) bool { return f.matches(e) && !f.leavesOut(e) }

// leavesOut reports whether an event that matches is left out.
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
		f.Orders && e.Operator == nil,
		(len(f.Kinds) > 0 || f.Namespace != "") && !f.picksResources(e.Resources),
		f.Text != "" && !f.picksText(e):
		return false
	}
	return true
}

func (f *Filter) picksResources(r *Resources) bool {
	if r == nil {
		return false
	}
	return r.Elsewhere > 0 || slices.ContainsFunc(r.Groups, func(g Group) bool {
		return (f.Namespace == "" || f.Namespace == g.Namespace) &&
			(len(f.Kinds) == 0 || slices.Contains(f.Kinds, g.Kind))
	})
}

func (f *Filter) picksText(e *Event) bool {
	want := strings.ToLower(f.Text)
	has := func(text string) bool { return strings.Contains(strings.ToLower(text), want) }
	if slices.ContainsFunc([]string{string(e.Type), e.Upstream, e.Client, e.Text, e.Reason, e.Hold}, has) {
		return true
	}
	return e.Resources != nil && slices.ContainsFunc(e.Resources.Names, func(n Name) bool { return has(n.String()) })
}
