package lease

import (
	"time"
)

// Duration is how long a Lease lasts after it was renewed, and how long its record must not move before the holder
// counts as gone.
const Duration = 15 * time.Second

// Record is the spec of a Lease, which moves with each renewal. The zero value is that of a Lease that does not exist.
type Record struct {
	Holder  string `json:"holderIdentity"` // empty after a release
	Seconds int    `json:"leaseDurationSeconds"`
	// Acquired and Renewed are of the holder's clock, compared for equality only.
	Acquired    string `json:"acquireTime,omitempty"`
	Renewed     string `json:"renewTime,omitempty"`
	Transitions int    `json:"leaseTransitions"`
}

// Observer measures for how long a record has not moved, by the clock of this process.
type Observer struct {
	seen  Record
	at    time.Time // answer that had the record first
	began bool
}

// Unmoved notes the record of a request that was sent at asked and answered at answered. It returns for how long the
// record has certainly been the same: whoever wrote it had asked the server to before that time began.
func (o *Observer) Unmoved(r Record, asked, answered time.Time) time.Duration {
	if !o.began || r != o.seen {
		o.seen, o.at, o.began = r, answered, true
	}
	return max(0, asked.Sub(o.at))
}

// step is what a process does with a Lease that it has read.
type step int

const (
	wait  step = iota // another process holds it
	take              // nobody holds it, or its holder is gone
	renew             // this process holds it
)

// core decides who holds a Lease. It has no I/O and no clock.
type core struct {
	me       string
	observer Observer
	held     bool
	end      time.Time // of what was last renewed, while held
}

// observe takes the record of a Lease, and returns what to do. Holding ends when the record has another holder.
func (c *core) observe(r Record, asked, answered time.Time) step {
	unmoved := c.observer.Unmoved(r, asked, answered)
	if r.Holder == c.me {
		return renew
	}
	c.held = false
	if r.Holder == "" || r.Holder != Promoted && unmoved >= Duration {
		return take
	}
	return wait
}

// renewed notes that the Lease was written, with a record of this process. began is a time before the process asked
// whether it may write, thus its term ends Duration after that at most, however long the requests were under way.
func (c *core) renewed(r Record, began time.Time) {
	c.observer.Unmoved(r, began, began)
	c.held, c.end = true, began.Add(Duration)
}

// holds reports whether the term lasts at a time. The wall clock is compared as well, because the monotonic one
// stands still while the machine sleeps.
func (c *core) holds(at time.Time) bool {
	return c.held && at.Before(c.end) && at.Round(0).Before(c.end.Round(0))
}
