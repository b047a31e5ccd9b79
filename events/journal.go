package events

import (
	"context"
	"sync"
	"time"

	"meshrelay/mirror"
)

// Journal keeps the newest events. Any goroutine may call its methods, and none blocks for long. A
// nil Journal accepts events and keeps none.
type Journal struct {
	wake chan struct{} // one slot: an event waits to be appended

	mu   sync.Mutex // guards the fields below
	book *book
	// changed is closed when there is something new. It is nil until Changed is called.
	changed chan struct{}
	follow  func(*Change)
	taken   taken
}

// New returns an empty Journal. Its numbers start at the present time in milliseconds, so that they
// are higher than those of a former process, even if the disk lost its last events.
func New() *Journal {
	j := &Journal{wake: make(chan struct{}, 1), book: newBook()}
	j.book.last = uint64(time.Now().UnixMilli()) // it is after 1970
	return j
}

// OnChange makes the journal call f with each new event of the type Changed, to follow its stages.
// f must not block. Call OnChange before the first event.
func (j *Journal) OnChange(f func(*Change)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.follow = f
}

// Record appends an event, or merges it with others of its class when they come too fast. The
// default of its Time is now. The caller must not use its parts any more.
func (j *Journal) Record(e Event) {
	if j != nil {
		j.record(time.Now, e)
	}
}

// record reads the clock under the lock, so that the numbers follow the times.
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
		mirror.Signal(j.wake)
	}
	if e.Type == Changed && isNew && follow != nil {
		follow(&Change{j, in})
	}
}

// notify closes changed. The caller holds mu.
func (j *Journal) notify() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Changed returns a channel that is closed at the next new event or stage.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed
}

// Run appends waiting events in time until ctx ends, and then the rest.
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

// Change is an event of the type Changed. Its stages are not final.
type Change struct {
	journal *Journal
	event   *Event
}

// Reach calls f to set stages.
func (c *Change) Reach(f func(*Stages)) {
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	f(c.event.Stages)
}

// Settle notes that the stages are final.
func (c *Change) Settle() {
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	c.journal.book.settle(c.event)
	c.journal.notify()
}
