package events

import (
	"context"
	"sync"
	"time"
)

// Journal keeps the newest events. Its methods may be called from any goroutine, and none waits for
// another. A nil Journal takes events and keeps none.
type Journal struct {
	wake chan struct{} // one slot: something waits to be appended

	mu   sync.Mutex // guards all below
	book *book
	// changed is closed when there is something new; nil until somebody asks for it.
	changed chan struct{}
	follow  func(*Change)
	taken   taken
}

// New returns a Journal without events. The numbers of its events begin after the present time in
// milliseconds, so that they are higher than those of a process whose last events the disk has lost.
func New(l Limits) *Journal {
	j := &Journal{wake: make(chan struct{}, 1), book: newBook(l)}
	j.book.last = uint64(time.Now().UnixMilli()) //nolint:gosec // it is after 1970
	return j
}

// OnChange makes the journal call f with every new event of the type Changed, to follow its stages. f
// must not wait. Call OnChange before events come.
func (j *Journal) OnChange(f func(*Change)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.follow = f
}

// Record appends an event, or puts it together with others of its kind when they come too fast. Its
// Time is now unless it is set. The caller does not use its parts any more.
func (j *Journal) Record(e Event) {
	if j != nil {
		j.record(time.Now, e)
	}
}

// record asks for the time under the lock, so that the numbers follow it.
func (j *Journal) record(clock func() time.Time, e Event) {
	j.mu.Lock()
	now := clock()
	if e.Type == Changed {
		e.Stages = &Stages{Received: now.UTC()}
	}
	in, isNew := j.book.record(now, e)
	waits := in.Seq == 0
	if !waits {
		j.notify()
	}
	follow := j.follow
	j.mu.Unlock()
	if waits && isNew {
		select {
		case j.wake <- struct{}{}:
		default:
		}
	}
	if e.Type == Changed && isNew && follow != nil {
		follow(&Change{j, in})
	}
}

// notify tells those who wait. The caller holds mu.
func (j *Journal) notify() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Changed returns a channel that is closed when there is a new event, or a new stage of one.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed
}

// Run appends events that wait for others, until ctx ends; then the rest. It has no work while nothing
// waits.
func (j *Journal) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			j.tick(time.Now(), true)
			return nil
		case <-j.wake:
		case <-timer.C:
		}
		if next := j.tick(time.Now(), false); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

func (j *Journal) tick(now time.Time, end bool) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.book.last
	next := j.book.tick(now, end)
	if j.book.last != before {
		j.notify()
	}
	return next
}

// Change is an event whose stages are followed.
type Change struct {
	journal *Journal
	event   *Event
}

// Reach lets f note a stage.
func (c *Change) Reach(f func(*Stages)) {
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	f(c.event.Stages)
}

// Settle notes that no stage follows.
func (c *Change) Settle() {
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	c.journal.book.settle(c.event)
	c.journal.notify()
}
