// Package reflector follows the objects of one collection of an API server with client-go's reflector: it
// lists them, watches their changes, and hands both to a Sink.
//
// It owns the requests, their pauses, and when a list may be taken for complete. It is the only user of
// client-go's cache.
//
// The package must not know what becomes of the objects.
package reflector

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	// maxCuts is how many streaming lists in a row may end early, until lists are requested in pages. One
	// that is silent for SyncTimeout counts as maxCuts.
	maxCuts = 3
	// overtime is how much longer than requested a watch may last.
	overtime = time.Minute
	// burst is how many requests may follow each other without a pause. client-go's reflector does not
	// pause after some answers, such as 410 and watches that end at once.
	burst = 10
	// recovered is how long a server has to work until the pauses after failures are short again.
	recovered = 2 * time.Minute
)

// Sink takes what a Reflector reads. Its methods are called from several goroutines, one object after the
// other.
type Sink interface {
	// Prepare is called with each object of a list while the list is read, and with each changed object
	// before Put. It may be called twice with an object.
	Prepare(*object.Object)
	// Replace takes all objects of the collection.
	Replace([]*object.Object)
	// Put takes a new or changed object.
	Put(*object.Object)
	// Delete takes a deleted object.
	Delete(*object.Object)
	// Resumed is called when a watch goes on from where the last one ended.
	Resumed()
	// Lost is called when a watch has ended, with an error unless it ended as usual.
	Lost(error)
	// Failed is called when a request has failed.
	Failed(error)
	// MayResume reports whether the next watch may go on from where the last one ended.
	MayResume() bool
}

// Pace has the pauses of a Reflector.
type Pace struct {
	Retry, RetryMax time.Duration // bound the pauses after a failed list or watch
	Request         time.Duration // least time between two requests, but for the first few
	Forgive         time.Duration // how long lists are requested in pages after streaming lists were cut off
}

// Config is what a Reflector follows, and how.
type Config struct {
	Name                    string // for the log
	Path, Selector          string // of the collection, and of the labels of its objects
	AcceptList, AcceptWatch string // media types
	SyncTimeout             time.Duration
	Pace                    Pace
	// Connect returns the connection for a request. An error ends the request.
	Connect func(context.Context) (*apiserver.Conn, error)
	// Budget returns the budget for a new list.
	Budget func() *object.Budget
	Log    *slog.Logger
}

// Reflector follows the objects of a collection.
type Reflector struct {
	Config
	sink Sink

	relist chan struct{} // has an element when everything is to be listed anew
	cuts   atomic.Int32  // streaming lists that have ended early, in a row
	cutAt  atomic.Int64  // when the last one did, in nanoseconds since the epoch
	paced  *rate.Limiter
	budget atomic.Pointer[object.Budget] // of the present list
	// running is read-locked by each list: client-go may leave one behind, or begin it late. Run locks it when it
	// ends, for ever.
	running sync.RWMutex
}

// New returns a Reflector that has requested nothing yet.
func New(c Config, sink Sink) *Reflector {
	return &Reflector{Config: c, sink: sink, relist: make(chan struct{}, 1), paced: rate.NewLimiter(rate.Every(c.Pace.Request), burst)}
}

// Relist makes the reflector list all objects anew. It does not wait, and may be called from any goroutine.
func (r *Reflector) Relist() {
	select {
	case r.relist <- struct{}{}:
	default:
	}
}

// Run follows the objects until ctx ends. It is called once.
func (r *Reflector) Run(ctx context.Context) {
	defer r.running.Lock()
	ctx = klog.NewContext(ctx, logr.Discard()) // the Sink logs failures
	for ctx.Err() == nil {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); r.follow(ctx) }()
		select {
		case <-ctx.Done():
		case <-r.relist:
		}
		cancel()
		<-done
	}
}

// follow runs one reflector of client-go until ctx ends. It does what the reflector's own loop does, but its
// pauses end with ctx.
func (r *Reflector) follow(ctx context.Context) {
	logger, c := logr.Discard(), endingClock{ctx: ctx}
	backoff := wait.Backoff{Duration: r.Pace.Retry, Cap: r.Pace.RetryMax, Steps: 40, Factor: 2, Jitter: 1}
	reflector := cache.NewReflectorWithOptions(listerWatcher{r}, &object.Object{}, store{r.sink}, cache.ReflectorOptions{
		Name: "meshrelay", TypeDescription: r.Name, Logger: &logger, Clock: c, Backoff: &backoff,
	})
	for pause := backoff.DelayWithReset(c, recovered); ctx.Err() == nil; {
		_ = reflector.ListAndWatchWithContext(ctx) //nolint:errcheck // the Sink knows from the requests
		<-c.After(pause())
	}
}

// endingClock is a clock whose timers fire early when a context ends: client-go's reflector ignores its
// context while it pauses.
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
