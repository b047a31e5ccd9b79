package adsclient

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/http2frames"
)

// inFlight bounds the memory of all responses that the process receives or handles.
//
// Its limit is the largest response of any Client, and a quarter more. If several large responses
// need more, receiving waits until others are handled. If none is being handled, the stream that
// has received most ends, and starts again after its pause.
var inFlight = newBudget()

// errCrowded ends the stream that has received most when there is no room.
var errCrowded = status.Error(codes.Unavailable, "the responses of all upstreams together are too large to be received at once: the relay asks for this one again")

// largeBytes is the smallest size of a response whose memory is collected as soon as it is free.
// The pool keeps the memory of smaller ones.
const largeBytes = 32 << 20

type budget struct {
	mu          sync.Mutex
	limit, held int
	conns       map[*receiver]struct{}
	released    *sync.Cond // when held falls, or a connection closes
}

func newBudget() *budget {
	b := &budget{conns: map[*receiver]struct{}{}}
	b.released = sync.NewCond(&b.mu)
	return b
}

// admit makes room for responses of this size.
func (b *budget) admit(response int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = max(b.limit, response+response/4)
}

// frames has the free buffers of all connections.
var frames framePool

// framePool keeps buffers by size in KiB, up to those of decompression: DATA frames have 16 KiB at
// most. gRPC's own pools clear a buffer for each frame, and take four times the memory for frames
// of 5 KiB.
type framePool [maxFrameKiB + 1]sync.Pool

const maxFrameKiB = 32

func (f *framePool) get(n int) *[]byte {
	kib := (n + 1<<10 - 1) >> 10
	if kib <= maxFrameKiB {
		if buf, ok := f[kib].Get().(*[]byte); ok {
			*buf = (*buf)[:n]
			return buf
		}
	}
	buf := make([]byte, n, kib<<10)
	return &buf
}

func (f *framePool) put(buf *[]byte) {
	if kib := cap(*buf) >> 10; kib <= maxFrameKiB && cap(*buf) == kib<<10 {
		f[kib].Put(buf)
	}
}

// receiver is the buffer pool of one connection. It counts the bytes of responses that gRPC holds.
// The lock of the budget guards its fields.
type receiver struct {
	budget *budget
	cancel context.CancelCauseFunc // ends the streams of the connection
	// held are the bytes in use, and freed those that wait for the garbage collector. budget.held
	// includes both.
	held, freed int
	// small are the bytes of small DATA frames, which gRPC keeps outside the pool. over are the bytes among
	// them that came before the last complete response.
	small, over int
	tiny        http2frames.Tiny
	large       bool         // held has reached largeBytes, or budget.held half of its limit
	handling    bool         // a response is complete, and will free its memory soon
	waiting     bool         // for room
	ended       bool         // the budget or close has ended the connection
	progress    atomic.Int64 // counts answers, and DATA frames except very short ones
}

// busy reports whether the relay, not the server, is the cause of the silence. receives: a part of a
// response has come.
func (r *receiver) busy() (busy, receives bool) {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	return r.handling || r.waiting, r.held > 0
}

func (b *budget) open(cancel context.CancelCauseFunc) *receiver {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &receiver{budget: b, cancel: cancel, tiny: http2frames.Tiny{Most: maxTiny}}
	b.conns[r] = struct{}{}
	return r
}

// Get implements mem.BufferPool. It blocks until there is room.
func (r *receiver) Get(n int) *[]byte {
	buf := frames.get(n)
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	r.take(cap(*buf))
	return buf
}

// take blocks until there is room for n bytes. The caller holds mu.
func (r *receiver) take(n int) {
	b := r.budget
	for !r.ended && b.held+n > b.limit {
		if b.crowded(); !r.ended {
			r.waiting = true
			b.released.Wait()
		}
	}
	r.waiting = false
	r.progress.Add(1)
	b.held += n
	r.held += n
	r.large = r.large || r.held >= largeBytes || b.held > b.limit/2
}

// crowded ends the largest stream, unless another one will free memory soon. The caller holds mu.
func (b *budget) crowded() {
	var largest *receiver
	for r := range b.conns {
		if r.handling || r.ended {
			return // it will free its memory
		}
		if largest == nil || r.held > largest.held {
			largest = r
		}
	}
	largest.ended = true
	largest.cancel(errCrowded) // does not block
}

// Put implements mem.BufferPool.
func (r *receiver) Put(buf *[]byte) {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.put(min(cap(*buf), r.held)) { // after close, held is 0
		frames.put(buf)
	}
}

// put frees n bytes, and reports whether the next response may use them. Otherwise the garbage
// collector frees them. The caller holds mu.
func (r *receiver) put(n int) bool {
	if r.held -= n; r.large {
		r.freed += n
		return false
	}
	r.budget.held -= n
	r.budget.released.Broadcast()
	return true
}

// handle notes that a response is complete and will be handled.
func (r *receiver) handle() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.handling, r.over = true, r.small
	r.tiny.Message()
}

// handled frees the memory of a response.
func (r *receiver) handled() { r.collect(false) }

// close frees the memory of a closed connection.
func (r *receiver) close() { r.collect(true) }

func (r *receiver) collect(all bool) {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	r.put(min(r.over, r.held))
	r.small, r.over = r.small-r.over, 0
	if all {
		r.held, r.freed, r.ended = 0, r.freed+r.held, true
	}
	if freed := r.freed; freed > 0 {
		b.mu.Unlock()
		runtime.GC()
		b.mu.Lock()
		r.freed -= freed
		b.held -= freed
	}
	if all {
		delete(b.conns, r)
	}
	r.large, r.handling = r.held >= largeBytes, false
	b.released.Broadcast()
}
