// Package reflector follows the objects of one collection of an API server with client-go's reflector: it
// lists them, watches their changes, and passes both to a Sink.
//
// It owns the requests and their pauses, and decides when a list is complete. It is the only user of
// client-go's cache.
//
// The package must not know how the objects are used.
package reflector

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	// maxCuts is the number of consecutive streaming lists that may be cut off before lists are requested in
	// pages. One that is silent for syncTimeout counts as maxCuts.
	maxCuts = 3
	// syncTimeout is how long a server may bring nothing, or less than 1 KiB, while it has not sent all that there is.
	syncTimeout = 30 * time.Second
	// overtime is how much longer than requested a watch may last.
	overtime = time.Minute
	// maxList and maxPages bound all pages of a list together. 300,000 objects of 5 KB need 600 pages, and 20
	// minutes at 10 Mbit/s. A server ends a streaming list after ten minutes by itself.
	maxList  = time.Hour
	maxPages = 1_000
	// burst is the number of requests without a pause between them. client-go's reflector does not pause
	// after some answers, such as 410, and after watches that end at once.
	burst = 10
	// anew is the time between two lists, plus or minus half of it: a server may have lost an event.
	anew = 4 * time.Hour
	// recovered is how long the server must work before the pauses after failures are short again.
	recovered = 2 * time.Minute
)

// Sink receives the objects of a Reflector. Several goroutines call its methods, one at a time.
type Sink interface {
	// Prepare is called with each object of a list while the list is being read, and with each changed object
	// before Put. It may be called twice for an object.
	Prepare(*object.Object)
	// Replace receives all objects of the collection.
	Replace([]*object.Object)
	// Put receives a new or changed object.
	Put(*object.Object)
	// Delete receives a deleted object.
	Delete(*object.Object)
	// Resumed is called when a watch continues from the end of the last one.
	Resumed()
	// Lost is called when a watch has ended. The error is nil for a usual end.
	Lost(error)
	// Failed is called when a request has failed.
	Failed(error)
	// MayResume reports whether the next watch may continue from the end of the last one.
	MayResume() bool
}

// Pace has the pauses of a Reflector.
type Pace struct {
	Retry, RetryMax time.Duration // bound the pauses after a failed list or watch
	Request         time.Duration // shortest time between two requests, except for the first few
	Ended           time.Duration // longest pause after a watch that the server has ended as it should
	Forgive         time.Duration // how long lists are requested in pages after streaming lists were cut off
}

// Config selects the objects that a Reflector follows, and has its settings.
type Config struct {
	Name                    string // for the log
	Path, Selector          string // of the collection, and of the labels of its objects
	AcceptList, AcceptWatch string // media types
	Owners                  bool   // as in object.Decoder
	Pace                    Pace
	// Connect returns the connection for a request. Its error is the error of the request.
	Connect func(context.Context) (*apiserver.Conn, error)
	// Begin returns the count of a new list.
	Begin func() *object.Reading
	Log   *slog.Logger
}

// Reflector follows the objects of a collection.
type Reflector struct {
	Config
	sink Sink

	relist chan struct{} // has an element when all objects must be listed again
	cuts   atomic.Int32  // consecutive streaming lists that were cut off
	cutAt  atomic.Int64  // time of the last cut, in nanoseconds since the epoch
	// panicked has a panic of a goroutine that Run or client-go has started.
	panicked chan *panics.Panic
	watch    atomic.Pointer[watch.StreamWatcher] // the newest
	paced    *rate.Limiter
	reading  atomic.Pointer[object.Reading] // the newest list
	pages    atomic.Int32                   // of the present list
	began    atomic.Int64                   // start of the present list, in nanoseconds since the epoch
	endless  atomic.Bool                    // the last list had too many pages: the next one is as expensive
	ended    atomic.Bool                    // the newest watch ended as it should
	// running is read-locked during each list. client-go may start a list late, or leave one running. Run
	// locks it at the end, for ever, so that no list runs after that.
	running sync.RWMutex
}

// New returns a Reflector that has requested nothing yet.
func New(c Config, sink Sink) *Reflector {
	return &Reflector{Config: c, sink: sink, relist: make(chan struct{}, 1), panicked: make(chan *panics.Panic, 1), paced: rate.NewLimiter(rate.Every(c.Pace.Request), burst)}
}

// Relist makes the reflector list all objects again. It does not wait. Any goroutine may call it.
func (r *Reflector) Relist() { mirror.Signal(r.relist) }

// contain calls f. Run repeats a panic of f.
func (r *Reflector) contain(f func()) {
	if p := panics.Try(f); p != nil {
		select {
		case r.panicked <- p:
		default: // one is enough
		}
	}
}

// Run follows the objects until ctx ends. It is called once.
func (r *Reflector) Run(ctx context.Context) {
	defer func() {
		r.running.Lock()
		r.reading.Load().Close()
	}()
	ctx = klog.NewContext(ctx, logr.Discard()) // the Sink logs failures
	for ctx.Err() == nil {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); r.contain(func() { r.follow(ctx) }) }()
		var p *panics.Panic
		select {
		case <-ctx.Done():
		case <-r.relist:
		case <-time.After(anew/2 + rand.N(anew)):
		case p = <-r.panicked:
		}
		cancel()
		<-done
		if p != nil {
			if w := r.watch.Load(); w != nil {
				w.Stop() // client-go does not after each panic
			}
			panic(p)
		}
	}
}

// follow runs client-go's reflector until ctx ends. It replaces the reflector's own loop, whose pauses do not
// end with ctx.
func (r *Reflector) follow(ctx context.Context) {
	logger, c := logr.Discard(), endingClock{ctx: ctx}
	backoff := wait.Backoff{Duration: r.Pace.Retry, Cap: r.Pace.RetryMax, Steps: 40, Factor: 2, Jitter: 1}
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: r.listed, WatchFuncWithContext: r.watched}, &object.Object{}, store{r}, cache.ReflectorOptions{
		Name: "meshrelay", TypeDescription: r.Name, Logger: &logger, Clock: c, Backoff: &backoff,
	})
	for pause := backoff.DelayWithReset(c, recovered); ctx.Err() == nil; {
		_ = reflector.ListAndWatchWithContext(ctx) // the Sink knows from the requests
		wait := pause()
		if r.ended.Swap(false) { // client-go takes one that was short for a failure
			wait = min(wait, r.Pace.Ended)
		}
		if r.endless.Swap(false) {
			wait = max(wait, r.Pace.RetryMax)
		}
		<-c.After(wait)
	}
}

// endingClock is a clock whose timers fire when a context ends: client-go's reflector ignores its context
// during pauses.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(c.ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		ch <- time.Now()
	})
	return ch
}

// errPaged makes client-go's reflector list in pages.
var errPaged = errors.New("streaming lists of this server end early")
