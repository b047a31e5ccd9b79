package main

import (
	"context"
	"fmt"
	"time"
)

const (
	// moreGoroutines, moreFDs and moreHeap (bytes, in addition to half as much again) bound the
	// growth of a relay after the faults.
	moreGoroutines = 10
	moreFDs        = 6
	moreHeap       = 12 << 20
	// returnPatience is how long that may take: connections end when they have been idle.
	returnPatience = 15 * time.Second
)

// usage returns what each relay uses.
func (st *stage) usage() ([]sample, error) {
	out := make([]sample, len(st.relays))
	for n, r := range st.relays {
		var err error
		if out[n], err = r.sample(st.ctx, true); err != nil {
			return nil, cause(st.ctx, err)
		}
	}
	return out, nil
}

// cause returns why a context has ended, if it has, and err else.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// returns checks that the relays come to use no more than before (I4).
func (st *stage) returns(before []sample) error {
	deadline := time.Now().Add(returnPatience)
	for {
		now, err := st.usage()
		if err != nil {
			return err
		}
		var bad *violation
		for n := range now {
			if what := more(before[n], now[n]); what != "" {
				bad = &violation{leaked, st.relays[n].name, -1, what}
			}
		}
		if bad == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return bad
		}
		if err := sleep(st.ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// more names the values of a sample that are above their bounds, "" when none is.
func more(before, now sample) string {
	switch {
	case now.goroutines > before.goroutines+moreGoroutines:
		return fmt.Sprintf("it has %d goroutines, and had %d before", now.goroutines, before.goroutines)
	case now.fds > before.fds+moreFDs:
		return fmt.Sprintf("it has %d file descriptors, and had %d before", now.fds, before.fds)
	case now.heap > before.heap+before.heap/2+moreHeap:
		return fmt.Sprintf("it has %s of live heap, and had %s before", mebibytes(now.heap), mebibytes(before.heap))
	}
	return ""
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
