package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"meshrelay/mirror"
)

// isolatedWait is how long an isolated change waits for company: changes that an upstream
// makes at once arrive here a few microseconds apart, and belong in one push.
const isolatedWait = 250 * time.Microsecond

// Options bound how long a change may wait. The names are istiod's
// (PILOT_DEBOUNCE_AFTER, PILOT_DEBOUNCE_MAX).
type Options struct {
	// After is the quiet time that ends the wait while changes keep coming.
	After time.Duration
	// Max is the longest that a change waits. At least After.
	Max time.Duration
}

// Debouncer merges changes into requests and hands these on. An isolated change goes out at once
// (within isolatedWait); a change that follows a push by less than Options.After waits
// until there was no other for Options.After, or until it has waited for
// Options.Max.
type Debouncer struct {
	wake chan struct{} // one slot: a request came, or opts are others

	// mu guards all below.
	mu      sync.Mutex
	opts    Options
	pending *Request
	last    time.Time // when the newest part of pending came
}

// NewDebouncer returns a Debouncer, or an error when the options contradict each
// other.
func NewDebouncer(opts Options) (*Debouncer, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	return &Debouncer{opts: opts, wake: make(chan struct{}, 1)}, nil
}

func (o Options) check() error {
	if o.After <= 0 || o.Max < o.After {
		return fmt.Errorf("debounce: after is %v and max is %v: want 0 < after <= max", o.After, o.Max)
	}
	return nil
}

// SetOptions replaces the options, also for the request that waits at present. It returns
// an error, and leaves the options as they are, when they contradict each other. It may be
// called from any goroutine.
func (d *Debouncer) SetOptions(opts Options) error {
	if err := opts.check(); err != nil {
		return err
	}
	d.mu.Lock()
	d.opts = opts
	d.mu.Unlock()
	d.wakeUp()
	return nil
}

// UpdateKey adds a changed key to the next push. It does not block, and may be called from
// any goroutine.
func (d *Debouncer) UpdateKey(key mirror.Key, reason Reason) {
	now := time.Now()
	d.mu.Lock()
	if d.pending == nil {
		d.pending = &Request{ConfigsUpdated: map[mirror.Key]struct{}{}, Reason: map[Reason]int{}, Start: now}
	}
	d.last = now
	d.pending.ConfigsUpdated[key] = struct{}{}
	d.pending.Reason[reason]++
	d.mu.Unlock()
	d.wakeUp()
}

func (d *Debouncer) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run calls push with one merged request after the other, never two at a time,
// until ctx ends. Requests that come while push runs are merged into the next. It
// is called once.
func (d *Debouncer) Run(ctx context.Context, push func(*Request)) error {
	if push == nil {
		return errors.New("debounce: no push function")
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var pushed time.Time // when the previous push began
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C:
		}
		for {
			wait, ok := d.due(pushed, time.Now())
			if !ok {
				break
			}
			if wait > 0 {
				timer.Reset(wait)
				break
			}
			pushed = time.Now()
			push(d.take())
			if ctx.Err() != nil {
				return nil
			}
		}
	}
}

// due returns how long the pending request is still to wait. ok is false when
// there is none.
func (d *Debouncer) due(pushed, now time.Time) (wait time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		return 0, false
	}
	quiet, longest := isolatedWait, d.opts.After
	if d.pending.Start.Sub(pushed) < d.opts.After {
		quiet, longest = d.opts.After, d.opts.Max
	}
	at := d.last.Add(min(quiet, longest))
	if latest := d.pending.Start.Add(longest); latest.Before(at) {
		at = latest
	}
	return at.Sub(now), true
}

func (d *Debouncer) take() *Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.pending
	d.pending = nil
	return r
}
