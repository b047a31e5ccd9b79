package events

import (
	"cmp"
	"slices"
)

// Query asks for a page of events.
type Query struct {
	Filter
	// After selects the first events after a Seq. Without it, the page has the newest events, or
	// those before the Seq Before.
	After, Before uint64
	// Limit is the largest number of events on the page. Default: 100.
	Limit int
}

// MaxPage is the largest number of events on a page.
const MaxPage = 1000

const defaultPage = 100

// Page is a part of the journal, the oldest event first.
type Page struct {
	Events []Event `json:"events"`
	// Next is the After of the following page. It is set even if this page has no events.
	Next uint64 `json:"next"`
	// More: there are more events: after Next or, if the page has the newest, before its first.
	More bool `json:"more,omitempty"`
	// Oldest and Newest are the numbers of the kept events, zero if there are none.
	Oldest uint64 `json:"oldest"`
	Newest uint64 `json:"newest"`
	// Missed: some events after Query.After are not kept any more.
	Missed bool `json:"missed,omitempty"`
	// Tools counts the events that Filter.NoTools has excluded from this page. Each counts on one
	// page only.
	Tools int `json:"tools,omitempty"`
}

// Read returns a page.
func (j *Journal) Read(q Query) Page {
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), MaxPage)
	if j == nil {
		return Page{Events: []Event{}}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.book
	page := Page{Events: []Event{}, Next: b.last}
	if b.n > 0 {
		page.Oldest, page.Newest = b.at(0).Seq, b.at(b.n-1).Seq
	}
	if q.After > 0 {
		if q.After > b.last { // from a process whose clock was ahead
			q.After, page.Missed = 1, true
		} else {
			page.Missed = b.n > 0 && q.After < page.Oldest-1 || b.n == 0 && q.After < b.last
		}
		b.readAfter(q, limit, &page)
	} else {
		b.readNewest(q, limit, &page)
	}
	return page
}

func (b *book) readAfter(q Query, limit int, page *Page) {
	f := filling{Page: page, filter: &q.Filter, limit: limit}
	for i := b.after(q.After); i < b.n; i++ {
		if !f.take(b.at(i)) {
			page.Next = page.Events[limit-1].Seq
			return
		}
	}
	page.Tools += f.passed
}

// filling is a page that is being filled.
type filling struct {
	*Page
	filter *Filter
	limit  int
	passed int // excluded since the last event of the page; the next page may count them
}

// take adds an event if the filter selects it. It returns false when the page is full and there is
// more.
func (f *filling) take(e *Event) bool {
	switch {
	case !f.filter.matches(e):
	case f.filter.leavesOut(e):
		f.passed++
	case len(f.Events) == f.limit:
		f.More = true
		return false
	default:
		f.Events = append(f.Events, e.copy())
		f.Tools, f.passed = f.Tools+f.passed, 0
	}
	return true
}

func (b *book) readNewest(q Query, limit int, page *Page) {
	end := b.n
	if q.Before > 0 {
		end = b.after(q.Before - 1)
	}
	f := filling{Page: page, filter: &q.Filter, limit: limit}
	for i := end - 1; i >= 0; i-- {
		if !f.take(b.at(i)) {
			break
		}
	}
	if !page.More {
		page.Tools += f.passed
	}
	slices.Reverse(page.Events)
	if q.Before > 0 && len(page.Events) > 0 {
		page.Next = page.Events[len(page.Events)-1].Seq
	}
}

// copy returns an event whose stages never change.
func (e *Event) copy() Event {
	out := *e
	if e.Stages != nil {
		out.Stages = new(*e.Stages)
	}
	return out
}

// Cursor is the position of a reader that follows the journal. The zero Cursor is before the first
// event.
type Cursor struct {
	Seq   uint64 // of the last event
	stage uint64 // 1 plus the number of stages seen
}

// Next returns new events after a cursor, at most limit, and earlier events whose stages are final
// now. A reader that gets limit events calls Next again at once. missed: some events are not kept
// any more.
func (j *Journal) Next(f Filter, c Cursor, limit int) (news, stages []Event, next Cursor, missed bool) {
	j.mu.Lock()
	b := j.book
	first := len(b.settled)
	if c.stage > 0 { // else they are part of the events
		unseen := b.stage - min(c.stage-1, b.stage)
		first -= int(min(unseen, uint64(first))) // it is small
	}
	for _, e := range b.settled[first:] {
		if e.Seq <= c.Seq && f.Picks(e) {
			stages = append(stages, e.copy())
		}
	}
	next = Cursor{c.Seq, b.stage + 1}
	j.mu.Unlock()
	c.Seq = max(c.Seq, 1)
	page := j.Read(Query{Filter: f, After: c.Seq, Limit: limit})
	next.Seq = page.Next
	return page.Events, stages, next, page.Missed && c.Seq > 1
}

// Newest returns the Cursor after the newest event.
func (j *Journal) Newest() Cursor {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Cursor{j.book.last, j.book.stage + 1}
}

// From returns the Cursor after the event with a Seq.
func (j *Journal) From(seq uint64) Cursor {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Cursor{seq, j.book.stage + 1}
}
