package events

// Query asks for a page of events.
type Query struct {
	Filter
	// After asks for the first events after a Seq. Without it the page has the newest events, those
	// before the Seq Before unless that is zero.
	After, Before uint64
	// Limit is how many events the page has at most; zero is 100.
	Limit int
}

// MaxPage is the most events of a page.
const MaxPage = 1000

const defaultPage = 100

// Page is a part of the journal, the oldest event first.
type Page struct {
	Events []Event `json:"events"`
	// Next is After for the page that follows this one, also when this one has no events.
	Next uint64 `json:"next"`
	// More tells that there are more events: after Next or, for a page of the newest, before its first.
	More bool `json:"more,omitempty"`
	// Oldest and Newest are the numbers of the events that are kept, zero when there are none.
	Oldest uint64 `json:"oldest"`
	Newest uint64 `json:"newest"`
	// Missed tells that some events after Query.After are not kept any more.
	Missed bool `json:"missed,omitempty"`
	// Tools counts the events that Filter.NoTools has left out of this page; each is counted in one page.
	Tools int `json:"tools,omitempty"`
}

// Read returns a page.
func (j *Journal) Read(q Query) Page {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, MaxPage)
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
		if q.After > b.last { // of a process whose clock was ahead
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

// filling is a page that is filled.
type filling struct {
	*Page
	filter *Filter
	limit  int
	passed int // events that were left out since the last one of the page, which the next page may count
}

// take adds an event that the filter picks. It returns false when the page is full, and there is more.
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
	for i, k := 0, len(page.Events)-1; i < k; i, k = i+1, k-1 {
		page.Events[i], page.Events[k] = page.Events[k], page.Events[i]
	}
	if q.Before > 0 && len(page.Events) > 0 {
		page.Next = page.Events[len(page.Events)-1].Seq
	}
}

// copy returns an event whose stages nobody writes to.
func (e *Event) copy() Event {
	out := *e
	if e.Stages != nil {
		stages := *e.Stages
		out.Stages = &stages
	}
	return out
}

// Cursor is how far a reader that follows the journal has got. The zero Cursor is before everything.
type Cursor struct {
	Seq   uint64 // of the last event
	stage uint64 // one more than the stages that were seen
}

// Next returns what follows a cursor: new events, and events of before whose stages are known now. It
// returns limit of the former at most; a reader that gets so many asks again at once.
func (j *Journal) Next(f Filter, c Cursor, limit int) (news, stages []Event, next Cursor, missed bool) {
	j.mu.Lock()
	b := j.book
	first := len(b.settled)
	if c.stage > 0 { // else they are part of the events
		unseen := b.stage - min(c.stage-1, b.stage)
		first -= int(min(unseen, uint64(first))) //nolint:gosec // it is small
	}
	for _, e := range b.settled[first:] {
		if e.Seq <= c.Seq && f.Picks(e) {
			stages = append(stages, e.copy())
		}
	}
	next = Cursor{c.Seq, b.stage + 1}
	j.mu.Unlock()
	if c.Seq == 0 {
		c.Seq = 1
	}
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
