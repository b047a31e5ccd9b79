package ui

import (
	"fmt"
	"slices"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

const (
	// maxReplayed bounds the records that a page reads from a history: the resources of the revision, and all
	// kept changes. A difference costs twice as much.
	maxReplayed = 10_000
	// maxDiffed is the most resources whose difference an event shows. maxCompared bounds their contents
	// before and after, in bytes.
	maxDiffed   = 20
	maxCompared = 64 << 10
	// writtenWithin is the longest time from a change to the write of its revision: the longest interval of
	// writes, and time for a slow disk.
	writtenWithin = 90 * time.Second
	// recordedWithin is the longest time from a change to its event.
	recordedWithin = 50 * time.Millisecond
)

// showDiff adds to the page of a change the output of "relay history --diff" for its revision, unless this costs too
// much. The page always shows the command.
func (p *Pages) showDiff(page *Page, e events.Event) {
	s := Section{ID: "diff", Title: "What changed"}
	revisions, err := p.data.History(e.Upstream)
	i := -1
	if err == nil {
		i = revisionOf(e, revisions)
	}
	if i < 0 {
		s.Text = []State{say(None, "This change has no revision: it is not kept any more, or not written yet. To list the revisions: "+p.here("relay history "+word(e.Upstream)))}
		page.Sections = append(page.Sections, s)
		return
	}
	v := revisions[i]
	page.Command = p.here(fmt.Sprintf("relay history %s %d --diff", word(e.Upstream), v.ID))
	switch d, err := p.diffOf(e.Upstream, v.ID, revisions[i:]); {
	case err != nil:
		s.Text = []State{say(Warn, "The history can not be read: "+err.Error())}
	case d == nil:
		s.Text = []State{say(None, "The history is too long for a page. To print the difference: "+page.Command)}
	default:
		s.Code = bounded(view.RevisionDiff(*d, view.SomeDiffs), page.Command)
	}
	page.Sections = append(page.Sections, s)
	page.boundCode()
}

// diffOf returns the first differences of a revision, or nil when they cost too much. kept has the revision and
// those before it.
func (p *Pages) diffOf(upstream string, id uint64, kept []state.Revision) (*admin.RevisionDiff, error) {
	replayed := kept[0].Resources
	for _, v := range kept {
		replayed += v.Added + v.Changed + v.Removed
	}
	if replayed > maxReplayed {
		return nil, nil
	}
	d, err := p.data.Diff(upstream, id)
	if err != nil {
		return nil, err
	}
	var shown []upstreams.Difference
	room := maxCompared
	for _, one := range d.Resources {
		size := sizeOf(one.Before) + sizeOf(one.After)
		if len(shown) == maxDiffed || size > room {
			d.More++
			continue
		}
		shown, room = append(shown, one), room-size
	}
	d.Resources = shown
	out, err := admin.NewRevisionDiff(d)
	return &out, err
}

func sizeOf(r *mirror.Resource) int {
	if r == nil {
		return 0
	}
	return len(r.BodyValue())
}

// revisionOf returns the index of the oldest revision that contains a change, or -1. The newest revision comes first.
// A revision is written some time after the change, and may contain several changes. It names some of the same
// resources, or has the same counts if the event has more resources than a revision names.
func revisionOf(e events.Event, revisions []state.Revision) int {
	begin := e.Time
	if !e.Since.IsZero() {
		begin = e.Since
	}
	names := map[string]bool{}
	for _, n := range e.Resources.Names {
		names[n.String()] = true
	}
	for i, v := range slices.Backward(revisions) {
		if v.Time.Before(begin.Add(-recordedWithin)) || v.Time.After(e.Time.Add(writtenWithin)) {
			continue
		}
		same := e.Resources.Total() > len(v.Keys) && v.Added == e.Resources.Added && v.Changed == e.Resources.Changed && v.Removed == e.Resources.Removed
		if same || slices.ContainsFunc(v.Keys, func(key string) bool { return names[key] }) {
			return i
		}
	}
	return -1
}
