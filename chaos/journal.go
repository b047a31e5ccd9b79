package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// journal remembers what happened last: to each key, and at large. It is safe for use by
// several goroutines.
type journal struct {
	began time.Time

	mu     sync.Mutex // guards all below
	out    io.Writer  // takes what happens at large, one line each
	keys   map[int]*ring
	large  ring
	counts map[string]int // by kind of fault
}

// ring holds the last events of something.
type ring struct {
	events []event
	next   int
}

type event struct {
	at   time.Time
	text string
}

// ringSize is how many events of one key are remembered, and of those at large.
const ringSize = 48

func newJournal(out io.Writer) *journal {
	return &journal{began: time.Now(), out: out, keys: map[int]*ring{}, counts: map[string]int{}}
}

// of notes something that happened to a key.
func (j *journal) of(key int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.keys[key]
	if r == nil {
		r = &ring{}
		j.keys[key] = r
	}
	r.add(event{time.Now(), text})
}

// say notes something that happened at large, and prints it.
func (j *journal) say(format string, args ...any) {
	e := event{time.Now(), fmt.Sprintf(format, args...)}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.large.add(e)
	fmt.Fprintf(j.out, "%s  %s\n", j.clock(e.at), e.text)
}

// fault is say of a fault, which is counted by its kind.
func (j *journal) fault(kind, format string, args ...any) {
	j.count(kind)
	j.say(format, args...)
}

// count counts a fault of a kind.
func (j *journal) count(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[kind]++
}

func (j *journal) clock(at time.Time) string {
	return fmt.Sprintf("%7.3fs", at.Sub(j.began).Seconds())
}

// replay writes what is remembered of a key, unless that is negative, and of what happened
// at large.
func (j *journal) replay(w io.Writer, key int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := func(title string, r *ring) {
		fmt.Fprintf(w, "\n%s\n", title)
		for _, e := range r.all() {
			fmt.Fprintf(w, "  %s  %s\n", j.clock(e.at), e.text)
		}
	}
	if r := j.keys[key]; key >= 0 && r != nil {
		list("What happened to "+describe(key)+" before:", r)
	}
	list("The last faults:", &j.large)
}

func (r *ring) add(e event) {
	if len(r.events) < ringSize {
		r.events = append(r.events, e)
		return
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % ringSize
}

func (r *ring) all() []event {
	return append(r.events[r.next:len(r.events):len(r.events)], r.events[:r.next]...)
}
