package adsclient

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// inFlight bounds the bytes of all responses that the process receives or handles.
//
// Its limit is the largest response of any Client, and a quarter more. If several large responses
// need more, the relay reads no further from their connections until others are handled. If none
// is being handled, the stream that has received most ends, and starts again after its pause.
var inFlight = newBudget()

// errCrowded ends the stream that has received most when there is no room.
var errCrowded = status.Error(codes.Unavailable, "the responses of all upstreams together are too large to be received at once: the relay asks for this one again")

const (
	// streamWindow and connWindow are the bytes that a server may send while no response is being
	// received. gRPC enlarges the window of a stream for a larger response.
	streamWindow = 64 << 10
	connWindow   = 1 << 20
	// shortRead is the size of reads that are no progress: pings and the like.
	shortRead = 128
)

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

// receiver counts the bytes that a connection has brought since the last response that was handled.
// The lock of the budget guards its fields.
type receiver struct {
	budget *budget
	cancel context.CancelCauseFunc // ends the streams of the connection
	// held are those bytes. complete are those of them that came before the response that is being handled was
	// complete: with it they may count streamWindow bytes of the next one.
	held, complete int
	handling       bool         // a response is complete, and will free its memory soon
	waiting        bool         // for room
	ended          bool         // the budget or close has ended the connection
	progress       atomic.Int64 // counts answers, and reads except short ones
}

// busy reports whether the relay, not the server, is the cause of the silence. receives: a part of a
// response has come.
func (r *receiver) busy() (busy, receives bool) {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	return r.handling || r.waiting, r.held >= 1<<10
}

func (b *budget) open(cancel context.CancelCauseFunc) *receiver {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &receiver{budget: b, cancel: cancel}
	b.conns[r] = struct{}{}
	return r
}

// take counts n bytes. It blocks until there is room.
func (r *receiver) take(n int) {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for !r.ended && b.held+n > b.limit {
		if b.crowded(); !r.ended {
			r.waiting = true
			b.released.Wait()
		}
	}
	r.waiting = false
	if n >= shortRead {
		r.progress.Add(1)
	}
	if !r.ended {
		b.held += n
		r.held += n
	}
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

// free frees n bytes. The caller holds mu.
func (r *receiver) free(n int) {
	r.held -= n
	r.budget.held -= n
	r.budget.released.Broadcast()
}

// handle notes that a response is complete and will be handled.
func (r *receiver) handle() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.handling, r.complete = true, r.held
}

// handled frees the room of a response.
func (r *receiver) handled() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.free(r.complete)
	r.handling, r.complete = false, 0
}

// close frees the room of a closed connection.
func (r *receiver) close() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.ended, r.handling, r.complete = true, false, 0
	delete(r.budget.conns, r)
	r.free(r.held)
}

// countedCreds make a receiver count what comes after the handshake.
type countedCreds struct {
	credentials.TransportCredentials
	receiver *receiver
}

// ClientHandshake implements credentials.TransportCredentials.
func (c countedCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (secure net.Conn, info credentials.AuthInfo, err error) {
	err = errPanic
	c.receiver.contain(func() { // it runs in a goroutine of gRPC
		secure, info, err = c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	})
	if err != nil {
		return secure, info, err
	}
	return countedConn{secure, c.receiver}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c countedCreds) Clone() credentials.TransportCredentials {
	return countedCreds{c.TransportCredentials.Clone(), c.receiver}
}

type countedConn struct {
	net.Conn
	receiver *receiver
}

func (c countedConn) Read(b []byte) (n int, err error) {
	c.receiver.contain(func() { // a goroutine of gRPC reads
		n, err = c.Conn.Read(b)
		c.receiver.take(n)
	})
	return n, err
}
