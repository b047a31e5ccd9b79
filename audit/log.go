package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	// maxQueue bounds the lines that wait to be written, in bytes. With the line before them that tells how
	// many are missing, they fit into the smallest file.
	maxQueue = 1<<20 - 4<<10
	// interval is the time between two attempts to write while nothing comes, and between two looks for counts.
	interval = time.Second
	// askPatience bounds the wait of Ask.
	askPatience = 5 * time.Second
)

// Options configure a Log. Without File and Output, the Log writes nothing.
type Options struct {
	// File is a path. MaxBytes is the size at which a new file begins, MaxFiles the number of files.
	// Output is the place instead of a File.
	File     string
	MaxBytes int64
	MaxFiles int
	Output   io.Writer
	// Required makes Ask fail while the log can not be written.
	Required bool
	// Relay is the name of the relay in each line.
	Relay  string
	Logger *slog.Logger
}

// Log is the audit log. Any goroutine may call its methods. Record never waits: Run writes. Run must run for
// lines to be written. A nil Log takes lines and writes nothing.
type Log struct {
	prometheus.Collector // its metrics

	options Options
	log     *slog.Logger
	out     sink // only Run uses it
	place   string
	written *prometheus.CounterVec
	lost    prometheus.Counter
	healthy prometheus.GaugeFunc
	wake    chan struct{} // one slot
	ended   chan struct{} // closed when Run has ended

	mu     sync.Mutex // guards all below
	floods floods
	queue  []byte
	asks   []chan<- error // of lines in queue; each has room for one
	over   uint64         // lines that came when the queue was full
	// missing counts the lines that were lost since a line told it, and trouble why, since since.
	missing uint64
	trouble error
	since   time.Time
}

// sink is where lines go. append returns the bytes of the whole lines that were written.
type sink interface {
	append(lines []byte, durable bool) (n int, err error)
	close()
}

var (
	errFull  = errors.New("lines come faster than they can be written")
	errEnded = errors.New("the relay is shutting down")
)

// New returns a Log. It opens nothing: a file that can not be written does not keep the relay from serving.
func New(o Options) *Log {
	metrics := prometheus.NewRegistry()
	to := promauto.With(metrics)
	l := &Log{
		Collector: metrics,
		options:   o, log: o.Logger, wake: make(chan struct{}, 1), ended: make(chan struct{}), floods: floods{},
		written: to.NewCounterVec(prometheus.CounterOpts{Name: "relay_audit_lines_total", Help: "Lines of the audit log that were made, by event."}, []string{"event"}),
		lost:    to.NewCounter(prometheus.CounterOpts{Name: "relay_audit_lines_lost_total", Help: "Lines of the audit log that could not be written, and are lost."}),
	}
	l.healthy = to.NewGaugeFunc(prometheus.GaugeOpts{Name: "relay_audit_healthy", Help: "1 if the audit log is written or not configured, 0 if it can not be written."}, func() float64 {
		if l.Problem() != "" {
			return 0
		}
		return 1
	})
	for _, e := range Events() {
		l.written.WithLabelValues(string(e))
	}
	switch {
	case o.File != "":
		l.out, l.place = &file{path: o.File, maxBytes: o.MaxBytes, maxFiles: o.MaxFiles}, o.File
	case o.Output != nil:
		l.out, l.place = stream{o.Output}, "standard output"
	}
	return l
}

// Record adds a line. It does not wait, and does not fail: a line that can not be written is counted.
func (l *Log) Record(line Line) {
	if l != nil && l.out != nil {
		_ = l.record(line, nil)
	}
}

// Ask adds the line of an action that is about to be carried out, if the log is required, and waits until the
// line is on the disk. The error tells why the action must not be carried out, and what to do.
func (l *Log) Ask(ctx context.Context, line Line) error {
	if l == nil || l.out == nil || !l.options.Required {
		return nil
	}
	done := make(chan error, 1)
	err := l.record(line, done)
	if err == nil {
		patience := time.NewTimer(askPatience)
		defer patience.Stop()
		select {
		case err = <-done:
		case <-patience.C:
			err = fmt.Errorf("not written within %v", askPatience)
		case <-ctx.Done():
			return ctx.Err()
		case <-l.ended:
			err = errEnded
		}
	}
	if err != nil {
		err = fmt.Errorf("nothing was done, because the audit log can not be written (%s: %w), and audit.required is true: mend that, and ask again", l.place, err)
	}
	return err
}

// record adds a line to the queue. done gets the result of writing it.
func (l *Log) record(line Line, done chan<- error) error {
	now := time.Now()
	line.Time, line.Relay = now.UTC(), l.options.Relay
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.floods.admits(&line, now) {
		return nil
	}
	return l.add(line, done)
}

// add adds a line to the queue, unless it is full. The caller holds mu.
func (l *Log) add(line Line, done chan<- error) error {
	l.written.WithLabelValues(string(line.Event)).Inc()
	encoded := line.encode()
	if len(l.queue)+len(encoded) > maxQueue {
		l.over++
		l.lost.Inc()
		l.fails(errFull)
		return errFull
	}
	l.queue = append(l.queue, encoded...)
	if done != nil {
		l.asks = append(l.asks, done)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// Run writes lines until ctx ends, and then those that wait. Call it once, and end it after all that record.
func (l *Log) Run(ctx context.Context) error {
	defer close(l.ended)
	if l.out == nil {
		<-ctx.Done()
		return nil
	}
	defer l.out.close()
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			l.write(true)
			return nil
		case <-l.wake:
		case <-again.C:
		}
		l.write(false)
	}
}

// write writes what waits. At the end, it writes the counts of the last window, too.
func (l *Log) write(end bool) {
	now := time.Now()
	l.mu.Lock()
	for _, line := range l.floods.over(now, end) {
		line.Time, line.Relay = now.UTC(), l.options.Relay
		_ = l.add(line, nil) // it is counted
	}
	var told []byte
	if l.missing > 0 {
		told = Line{Time: now.UTC(), Relay: l.options.Relay, Event: LinesLost, Count: l.missing, Error: fmt.Sprint(l.trouble)}.encode()
	}
	lines, asks, over := l.queue, l.asks, l.over
	l.queue, l.asks, l.over = nil, nil, 0
	l.mu.Unlock()

	var n int
	var err error
	if len(told)+len(lines) > 0 {
		n, err = l.out.append(append(told, lines...), len(asks) > 0)
	}
	for _, done := range asks {
		done <- err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(told) > 0 && n >= len(told) {
		l.written.WithLabelValues(string(LinesLost)).Inc()
		l.log.Info("audit log is written again", "to", l.place, "lost", l.missing)
		l.missing, l.trouble = 0, nil
	}
	lost := uint64(bytes.Count(lines[min(max(n-len(told), 0), len(lines)):], []byte("\n")))
	l.lost.Add(float64(lost))
	l.missing += lost + over
	switch {
	case err != nil:
		l.fails(err)
	case over > 0: // they came after those that were written
		l.trouble = errFull
		select {
		case l.wake <- struct{}{}:
		default:
		}
	case len(lines) > 0 && l.missing == 0 && l.over == 0:
		l.trouble = nil
	}
}

// fails notes why lines are lost, and logs it once. The caller holds mu.
func (l *Log) fails(err error) {
	if l.trouble == nil {
		l.since = time.Now()
		l.log.Error("audit log not written", "to", l.place, "err", err)
	}
	l.trouble = err
}

// Problem returns why the log is not written at present, and how many lines are lost, or "".
func (l *Log) Problem() string {
	if l == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble == nil {
		return ""
	}
	text := fmt.Sprintf("audit log: not written since %s, lines lost: %d: %s: %v; make room, or mend what the error names: the relay tries again by itself",
		l.since.UTC().Format(time.RFC3339), l.missing+l.over, l.place, cmp.Or(l.trouble, errFull))
	if l.options.Required {
		text += "; until then, actions of operators are refused (audit.required)"
	}
	return text
}
