package kubernetes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// maxCuts is how many streams may end before they have brought all that there is, until lists
	// are asked for in pages instead. One that is silent for syncTimeout counts as that many.
	maxCuts = 3
	// overtime is how much longer than asked for a watch may last.
	overtime = time.Minute
	// burst is how many requests of one target may follow each other without a pause. A reflector
	// does not pause after some answers, such as 410 and watches that end at once.
	burst = 10
	// recovered is how long a server has to do well until the pauses after failures are short again.
	recovered = 2 * time.Minute
)

// errPaged makes a reflector list in pages.
var errPaged = errors.New("streams of this server end before they have brought everything")

// target is the objects of one kind, in one namespace or in all. A reflector of client-go follows
// them: it implements cache.ListerWatcherWithContext and cache.ReflectorStore.
type target struct {
	served
	namespace string // empty: all
	source    *Source
	// aside: it is not mirrored, and nothing waits for it.
	aside bool

	// again has the reflector begin anew with a list.
	again chan struct{}
	cuts  atomic.Int32 // of streaming lists, in a row
	cutAt atomic.Int64 // when the last one was, in nanoseconds since the epoch
	lists lists        // that a reflector may have given up
	paced *rate.Limiter
	// room is for the objects of the present list. cramped: some were refused for want of room.
	room    atomic.Pointer[budget]
	cramped atomic.Bool
	stopAll context.CancelFunc
	ended   chan struct{}

	books // what the intake has been told
	state
}

// run follows the objects until ctx ends.
func (t *target) run(ctx context.Context) {
	defer close(t.ended)
	defer t.lists.end()
	ctx = klog.NewContext(ctx, logr.Discard()) // the source logs what its requests come to
	for ctx.Err() == nil {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); t.follow(ctx) }()
		select {
		case <-ctx.Done():
		case <-t.again:
		}
		cancel()
		<-done
	}
}

// follow has one reflector list and watch the objects until ctx ends. It does what the reflector's own
// loop does, but for pauses that end with ctx.
func (t *target) follow(ctx context.Context) {
	logger, c := logr.Discard(), ending{ctx: ctx}
	backoff := wait.Backoff{Duration: t.source.pace.retry, Cap: t.source.pace.retryMost, Steps: 40, Factor: 2, Jitter: 1}
	r := cache.NewReflectorWithOptions(t, &object{}, t, cache.ReflectorOptions{
		Name: "meshrelay", TypeDescription: t.kind.String(), Logger: &logger, Clock: c, Backoff: &backoff,
	})
	for pause := backoff.DelayWithReset(c, recovered); ctx.Err() == nil; {
		_ = r.ListAndWatchWithContext(ctx) //nolint:errcheck // its requests have noted what they came to
		<-c.After(pause())
	}
}

// lists counts the lists under way. A reflector that ends leaves its list behind, which may not even
// have begun.
type lists struct {
	running sync.WaitGroup

	mu    sync.Mutex // guards ended
	ended bool
}

// begin counts a list, unless there are to be no more.
func (l *lists) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.running.Add(1)
	}
	return !l.ended
}

// end lets no list begin any more, and waits for those under way.
func (l *lists) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.running.Wait()
}

// restart makes the reflector list the objects once more.
func (t *target) restart() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// ending is a clock whose waits are pauses that end with a context: a reflector does not look at its
// own while it pauses.
type ending struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (e ending) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(e.ctx, d) // a wait that is over leaves nothing in e.ctx
	context.AfterFunc(ctx, func() {
		cancel()
		ch <- time.Now()
	})
	return ch
}

// List implements cache.Lister. Nobody calls it.
func (t *target) List(options metav1.ListOptions) (runtime.Object, error) {
	return t.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher. Nobody calls it.
func (t *target) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return t.WatchWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (t *target) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !t.lists.begin() {
		return nil, context.Canceled
	}
	defer t.lists.running.Done()
	if options.ResourceVersion == "0" {
		options.ResourceVersion = "" // any replica's cache may be older than what clients have seen
	}
	d, err := t.open(ctx, options, 0)
	if err == nil {
		defer d.Close()
		var l *objects
		if l, err = d.list(); err == nil {
			return l, nil
		}
		err = d.because(err)
	}
	t.source.failed(t, err)
	return nil, err
}

// WatchWithContext implements cache.WatcherWithContext.
func (t *target) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	streams := options.SendInitialEvents != nil && *options.SendInitialEvents
	if streams && t.cuts.Load() >= maxCuts {
		if time.Since(time.Unix(0, t.cutAt.Load())) < t.source.pace.forgive {
			return nil, errPaged
		}
		t.cuts.Store(maxCuts - 1) // one more try
	}
	if !streams {
		if err := t.continues(); err != nil {
			return nil, err
		}
		if err := t.precedes(ctx, options.ResourceVersion); err != nil {
			t.source.failed(t, err)
			return nil, err
		}
	}
	longest := overtime
	if s := options.TimeoutSeconds; s != nil {
		longest += time.Duration(*s) * time.Second
	}
	d, err := t.open(ctx, options, longest)
	if err != nil {
		if streams && errors.Is(err, errSilent) {
			t.cut(maxCuts)
		}
		if !streams || !apierrors.IsInvalid(err) { // a server of before 1.32 has no such streams
			t.source.failed(t, err)
		}
		return nil, err
	}
	d.initial, d.whole = streams, func() { t.cuts.Store(0) }
	d.closed = func(complete bool, err error) {
		switch {
		case !streams || complete:
		case errors.Is(err, errSilent):
			t.cut(maxCuts)
		default:
			t.cut(1)
		}
		t.source.lost(t, err)
	}
	if !streams {
		t.source.resumed(t)
	}
	return watch.NewStreamWatcherWithLogger(logr.Discard(), d, apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding")), nil
}

// cut counts streaming lists that have ended before they were complete.
func (t *target) cut(times int32) {
	t.cutAt.Store(time.Now().UnixNano())
	t.cuts.Add(times)
}

// continues returns an error when a watch may not go on from where it was, so that everything is listed
// anew: after an outage nobody knows whether the etcd was restored meanwhile, and has come further
// again than it was. A restored etcd needs its servers to be stopped, which takes longer.
func (t *target) continues() error {
	if t.aside || !t.source.ledger.outOfTouch(t, time.Now(), t.source.pace.grace) {
		return nil
	}
	return apierrors.NewResourceExpired("the server was out of reach, and may have been restored")
}

// precedes returns an error when the server has not come to a version. A server whose etcd was
// restored accepts a watch from there, and sends nothing until it has caught up. It refuses a list
// of at least that version, and the reflector then lists from the beginning.
func (t *target) precedes(ctx context.Context, version string) error {
	d, err := t.open(ctx, metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Limit: 1}, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err = d.list(); err != nil {
		return d.because(err)
	}
	return nil
}

// open begins to read a list, or to watch for longest at most. A server that is silent before all
// has come that there is has syncTimeout to go on.
func (t *target) open(ctx context.Context, options metav1.ListOptions, longest time.Duration) (*stream, error) {
	if options.Continue == "" {
		if err := t.paced.Wait(ctx); err != nil {
			return nil, err
		}
	}
	connection, err := t.source.verify(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{cancel: cancel, patience: t.source.section.SyncTimeout.D()}
	s.silence = time.AfterFunc(s.patience, func() { cancel(errSilent) })
	if longest > 0 {
		s.overtime = time.AfterFunc(longest, func() { cancel(errSilent) })
	}
	asked, query := time.Now(), t.query(options)
	resp, err := connection.get(ctx, t.path(t.namespace), query, t.accept(options.Watch)) //nolint:bodyclose // the decoder closes it
	t.source.log.Debug("objects asked for", "kind", t.kind.String(), "namespace", t.namespace, "query", query.Encode(), "took", time.Since(asked), "err", err)
	if err != nil {
		s.ctx = ctx
		err = s.because(err)
		s.stop()
		return nil, err
	}
	s.decoder = newDecoder(&counted{resp.Body, s}, t.kind == workloadEntry)
	s.choice, s.labels = t.source.choice, t.kind == namespaceKind
	if (longest == 0 || options.SendInitialEvents != nil) && t.source.ledger.mirrors(t) {
		s.fold = t.fold
	}
	s.ctx = ctx
	if longest > 0 && (options.SendInitialEvents == nil || !*options.SendInitialEvents) {
		s.silence.Stop() // nothing may happen for as long as it likes
		s.patience = 0
		return s, nil
	}
	if options.Continue == "" {
		t.room.Store(&budget{most: t.source.maxBytes(), whole: t.kind == namespaceKind})
	}
	s.budget = t.room.Load()
	return s, nil
}

func (t *target) query(o metav1.ListOptions) url.Values {
	q := url.Values{}
	set := func(key, value string) {
		if value != "" && value != "0" && value != "false" {
			q.Set(key, value)
		}
	}
	if t.selected {
		set("labelSelector", t.source.section.Selector)
	}
	set("resourceVersion", o.ResourceVersion)
	set("resourceVersionMatch", string(o.ResourceVersionMatch))
	set("continue", o.Continue)
	set("limit", strconv.FormatInt(o.Limit, 10))
	set("watch", strconv.FormatBool(o.Watch))
	set("allowWatchBookmarks", strconv.FormatBool(o.AllowWatchBookmarks))
	if o.SendInitialEvents != nil {
		set("sendInitialEvents", strconv.FormatBool(*o.SendInitialEvents))
	}
	if o.TimeoutSeconds != nil {
		set("timeoutSeconds", strconv.FormatInt(*o.TimeoutSeconds, 10))
	}
	return q
}

var errSilent = errors.New("the server is silent: it has sent nothing for syncTimeout, or not ended a watch in time")

// stream is a response that is being read.
type stream struct {
	*decoder
	ctx               context.Context
	cancel            context.CancelCauseFunc
	silence, overtime *time.Timer
	patience          time.Duration // 0: nothing need come
	// Of a watch: initial tells that all that there is comes first. closed is called at the end,
	// once, with whether it has come, and what went wrong, nil for an end as usual.
	initial bool
	whole   func() // called when it has come
	closed  func(complete bool, err error)
	once    sync.Once

	mu       sync.Mutex // guards all below
	complete bool
	err      error
}

// counted tells a stream of each read.
type counted struct {
	io.ReadCloser
	s *stream
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.s.patience > 0 {
		c.s.silence.Reset(c.s.patience)
	}
	return n, err
}

// Decode implements watch.Decoder.
func (s *stream) Decode() (watch.EventType, runtime.Object, error) {
	event, o, err := s.decoder.Decode()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if err = s.because(err); !errors.Is(err, io.EOF) && s.ctx.Err() == nil || errors.Is(err, errSilent) {
			s.err = err
		}
		return event, o, err
	}
	if event == watch.Error {
		s.err = apierrors.FromObject(o)
	}
	if b, ok := o.(*object); s.initial && ok && event == watch.Bookmark && b.annotations[metav1.InitialEventsAnnotationKey] == "true" {
		s.complete, s.patience, s.budget, s.fold = true, 0, nil, nil
		s.whole()
		s.silence.Stop()
	}
	return event, o, nil
}

// because returns why reading has ended, where the stream itself has ended it.
func (s *stream) because(err error) error {
	if errors.Is(context.Cause(s.ctx), errSilent) {
		return errSilent
	}
	return err
}

// Close implements watch.Decoder.
func (s *stream) Close() {
	s.once.Do(func() {
		s.stop()
		s.decoder.Close()
		if s.closed != nil {
			s.mu.Lock()
			complete, err := s.complete, s.err
			s.mu.Unlock()
			s.closed(complete, err)
		}
	})
}

func (s *stream) stop() {
	s.silence.Stop()
	if s.overtime != nil {
		s.overtime.Stop()
	}
	s.cancel(nil)
}
