package events

import (
	"maps"
	"slices"
	"sort"
	"time"

	"meshrelay/internal/text"
)

const (
	// maxEvents and maxBytes bound the ring.
	maxEvents = 20_000
	maxBytes  = 16 << 20
	// Clients and upstreams control how many events of some types come. The first floodBurst events of such a
	// class are kept; after that, one event in each mergeTime counts the others. Changes of an upstream are
	// merged after the first one.
	floodBurst = 20
	mergeTime  = time.Second
	// maxSettled is how many events with late stages are kept for readers.
	maxSettled = 256
)

// class identifies the events that are merged when they come too fast.
type class struct {
	Type
	upstream string
	by       By
}

// bucket has the credit of a class, as a time, and the merged event of the class that waits for credit.
type bucket struct {
	credit  time.Duration
	at      time.Time // of credit
	waiting *Event
	next    *bucket // with a waiting event of the same upstream
}

// credit returns the largest credit of a type: mergeTime for each event that may come at once. Zero means
// that its events are never merged.
func (t Type) credit() time.Duration {
	switch t {
	case Changed:
		return mergeTime
	case Connected, Gone, NACK, TurnedAway, Lost, Regained, Moved, NotOffered, Denied, Failed, Refused, OverLimit, Held, Returned:
		return floodBurst * mergeTime
	}
	return 0
}

// fill adds the credit up to now.
func (b *bucket) fill(now time.Time, most time.Duration) {
	if d := now.Sub(b.at); d > 0 {
		b.credit, b.at = min(most, b.credit+d), now
	}
}

// maxBuckets is how many buckets are kept although they may be full.
const maxBuckets = 256

// bucket returns the bucket of a class.
func (b *book) bucket(c class, now time.Time) *bucket {
	if bk := b.buckets[c]; bk != nil {
		return bk
	}
	if len(b.buckets) >= max(maxBuckets, 2*b.inUse) {
		maps.DeleteFunc(b.buckets, func(c class, bk *bucket) bool {
			bk.fill(now, c.credit())
			return bk.waiting == nil && bk.credit == c.credit()
		})
		b.inUse = len(b.buckets) // looking at all buckets for each new one would cost quadratic time
	}
	bk := &bucket{credit: c.credit(), at: now}
	b.buckets[c] = bk
	return bk
}

// book is the core of a Journal.
type book struct {
	maxEvents, maxBytes int // those of the package, except in tests
	// ring has the newest events, the oldest at head. It grows up to maxEvents.
	ring    []*Event
	head, n int
	bytes   int
	last    uint64 // the newest Seq
	buckets map[class]*bucket
	inUse   int // buckets that were not full at the last look
	// waits has the buckets with a waiting event, as a list for each upstream. closing has the events that
	// are about to be appended; between calls it is empty.
	waits   map[string]*bucket
	closing []*Event
	// settled has the events whose stages became final after they were appended, the newest last. stage
	// counts them all.
	settled []*Event
	stage   uint64

	// saved is the newest Seq on disk. late are older events whose stages are not on disk.
	saved uint64
	late  []*Event
}

func newBook() *book {
	return &book{maxEvents: maxEvents, maxBytes: maxBytes, buckets: map[class]*bucket{}, waits: map[string]*bucket{}}
}

// record adds an event, or merges it into one that waits, except an order. It returns the event
// that contains it, and whether that is new. now never falls.
func (b *book) record(now time.Time, e Event) (in *Event, isNew bool) {
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Time = e.Time.UTC()
	e.Text, e.Reason, e.Command = text.Shorten(e.Text, maxText), text.Shorten(e.Reason, maxText), text.Shorten(e.Command, maxText)
	e.Before, e.After, e.Client = text.Shorten(e.Before, maxText), text.Shorten(e.After, maxText), text.Shorten(e.Client, maxName)
	if most := e.Type.credit(); most > 0 && e.By != ByOperator {
		bk := b.bucket(class{e.Type, e.Upstream, e.By}, now)
		bk.fill(now, most)
		switch {
		case bk.waiting != nil:
			bk.waiting.merge(&e)
			return bk.waiting, false
		case bk.credit < mergeTime:
			bk.waiting, bk.next = &e, b.waits[e.Upstream]
			b.waits[e.Upstream] = bk
			return &e, true
		}
		bk.credit -= mergeTime
	}
	if e.Upstream != "" { // waiting events of the upstream came before
		b.close(now, e.Upstream)
		b.appendClosed()
	}
	return b.append(&e), true
}

// merge merges a later event of the class into e.
func (e *Event) merge(later *Event) {
	if e.Count == 0 {
		e.Count, e.Since = 1, e.Time
	}
	e.Count += max(later.Count, 1)
	e.Time = later.Time
	switch {
	case e.Resources != nil && later.Resources != nil:
		e.Resources.add(later.Resources)
	case later.Resources != nil:
		e.Resources = later.Resources
	}
	e.Client, e.Reason, e.Hold, e.Command = later.Client, later.Reason, later.Hold, later.Command
	e.Tool = e.Tool && later.Tool // otherwise one client could hide others
	if e.Type != Changed {
		e.Text = later.Text
	}
}

// tick appends events that have waited long enough, or all at the end. It returns the next
// deadline, zero if nothing waits. The events of one upstream are appended together, so that their
// numbers follow their times.
func (b *book) tick(now time.Time, end bool) (next time.Time) {
	for upstream, first := range b.waits {
		due := first.due(now)
		for bk := first.next; bk != nil; bk = bk.next {
			if at := bk.due(now); at.Before(due) {
				due = at
			}
		}
		switch {
		case end || !due.After(now):
			b.close(now, upstream)
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	b.appendClosed()
	return next
}

// due returns when the waiting event may be appended.
func (b *bucket) due(now time.Time) time.Time {
	b.fill(now, b.waiting.Type.credit())
	return now.Add(mergeTime - b.credit)
}

// close moves the waiting events of an upstream to closing. One that is not due uses the remaining
// credit.
func (b *book) close(now time.Time, upstream string) {
	for bk := b.waits[upstream]; bk != nil; {
		bk.fill(now, bk.waiting.Type.credit())
		b.closing = append(b.closing, bk.waiting)
		bk.waiting, bk.credit = nil, max(bk.credit-mergeTime, 0)
		bk.next, bk = nil, bk.next
	}
	delete(b.waits, upstream)
}

// appendClosed appends the events in closing, the oldest first.
func (b *book) appendClosed() {
	slices.SortStableFunc(b.closing, func(x, y *Event) int { return x.Time.Compare(y.Time) })
	for _, e := range b.closing {
		b.append(e)
	}
	clear(b.closing)
	b.closing = b.closing[:0]
}

// append appends an event, and drops the oldest ones if there is no room.
func (b *book) append(e *Event) *Event {
	if e.Type == Changed && e.Text == "" && e.Resources != nil {
		e.Text = e.Resources.String()
	}
	b.last++
	e.Seq = b.last
	b.put(e)
	return e
}

func (b *book) put(e *Event) {
	for b.n > 0 && (b.n >= b.maxEvents || b.bytes+e.size() > b.maxBytes) {
		b.bytes -= b.ring[b.head].size()
		b.ring[b.head] = nil
		b.head, b.n = (b.head+1)%len(b.ring), b.n-1
	}
	if b.n == len(b.ring) {
		grown := make([]*Event, min(max(64, 2*len(b.ring)), b.maxEvents))
		for i := range b.n {
			grown[i] = b.at(i)
		}
		b.ring, b.head = grown, 0
	}
	b.ring[(b.head+b.n)%len(b.ring)] = e
	b.n++
	b.bytes += e.size()
}

// at returns an event by its index, 0 for the oldest.
func (b *book) at(i int) *Event { return b.ring[(b.head+i)%len(b.ring)] }

// after returns the index of the first event with a higher Seq.
func (b *book) after(seq uint64) int {
	return sort.Search(b.n, func(i int) bool { return b.at(i).Seq > seq })
}

// settle notes that the stages of an event are final.
func (b *book) settle(e *Event) {
	if e.Seq == 0 {
		return // it still waits: it will be appended with its stages
	}
	if len(b.settled) == maxSettled {
		b.settled = slices.Delete(b.settled, 0, 1)
	}
	b.settled = append(b.settled, e)
	b.stage++
	if e.Seq <= b.saved && len(b.late) < maxSettled {
		b.late = append(b.late, e)
	}
}
