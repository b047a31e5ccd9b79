package sink

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"meshrelay/mirror"
)

// queue has the keys to look at, each once, by the time when it is due. A key that a worker has is not given to
// another one. Any goroutine may call its methods.
type queue struct {
	mu    sync.Mutex // guards all below
	heap  items
	items map[mirror.Key]*item
	busy  map[mirror.Key]time.Time // due again at that time, zero for never
	wake  chan struct{}
}

type item struct {
	key mirror.Key
	at  time.Time
	i   int
}

func newQueue() *queue {
	return &queue{items: map[mirror.Key]*item{}, busy: map[mirror.Key]time.Time{}, wake: make(chan struct{}, 1)}
}

// add has a key be due at a time, or earlier if it already is.
func (q *queue) add(key mirror.Key, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if again, is := q.busy[key]; is {
		if again.IsZero() || at.Before(again) {
			q.busy[key] = at
		}
		return
	}
	q.push(key, at)
}

// push is add for a key that no worker has. The caller holds mu.
func (q *queue) push(key mirror.Key, at time.Time) {
	if it := q.items[key]; it == nil {
		it = &item{key: key, at: at}
		q.items[key] = it
		heap.Push(&q.heap, it)
	} else if at.Before(it.at) {
		it.at = at
		heap.Fix(&q.heap, it.i)
	}
	q.poke()
}

// drop has a key be due no more, unless a worker has it.
func (q *queue) drop(key mirror.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.items[key]; it != nil {
		heap.Remove(&q.heap, it.i)
		delete(q.items, key)
	}
}

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for a key that is due. The caller calls done with it. It returns false when ctx ends.
func (q *queue) next(ctx context.Context) (mirror.Key, bool) {
	for {
		key, wait := q.pop(time.Now())
		if wait == 0 {
			return key, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return key, false
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// pop returns a key that is due, or how long to wait for one.
func (q *queue) pop(now time.Time) (key mirror.Key, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.heap) == 0 {
		return key, time.Hour
	}
	if wait := q.heap[0].at.Sub(now); wait > 0 {
		return key, wait
	}
	it := heap.Pop(&q.heap).(*item)
	delete(q.items, it.key)
	q.busy[it.key] = time.Time{}
	if len(q.heap) > 0 {
		q.poke() // for another worker
	}
	return it.key, 0
}

// done gives a key back. It is due again after a pause, or not if the pause is negative.
func (q *queue) done(key mirror.Key, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	again := q.busy[key]
	delete(q.busy, key)
	if at := time.Now().Add(pause); pause >= 0 && (again.IsZero() || at.Before(again)) {
		again = at
	}
	if !again.IsZero() {
		q.push(key, again)
	}
}

// idle reports whether no key is due before a time, and no worker has one.
func (q *queue) idle(before time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.busy) == 0 && (len(q.heap) == 0 || q.heap[0].at.After(before))
}

// items is a heap by time.
type items []*item

func (h items) Len() int           { return len(h) }
func (h items) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h items) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].i, h[j].i = i, j }
func (h *items) Push(x any)        { it := x.(*item); it.i = len(*h); *h = append(*h, it) }
func (h *items) Pop() any {
	old := *h
	it := old[len(old)-1]
	*h = old[:len(old)-1]
	return it
}
