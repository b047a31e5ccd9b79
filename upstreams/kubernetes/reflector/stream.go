package reflector

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/upstreams/kubernetes/object"
)

// errSilent is the error of a server that takes too long.
var errSilent = errors.New("the server is silent: it has sent less than 1 KiB within 30 s, or not ended a watch, or a list with all its pages, in time")

// stream is a response that is being read. It ends with errSilent if the server is silent for too long, or if the
// response lasts too long.
type stream struct {
	*object.Decoder
	r                 *Reflector
	ctx               context.Context
	cancel            context.CancelCauseFunc
	silence, overtime *time.Timer
	watches           bool
	patience          time.Duration   // longest silence, 0 for no limit
	once              sync.Once       // for Close
	reading           *object.Reading // nil unless the response has a list

	mu     sync.Mutex // guards all below
	awaits bool       // a watch that sends all objects first, and has not sent all of them
	err    error      // error of a watch, nil for a usual end
}

// newStream returns a stream without a body.
func (r *Reflector) newStream(ctx context.Context, m mode) *stream {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{r: r, ctx: ctx, cancel: cancel, watches: m.watches, patience: syncTimeout, awaits: m.lists && m.watches}
	s.silence = time.AfterFunc(s.patience, func() { cancel(errSilent) })
	s.overtime = time.AfterFunc(m.most, func() { cancel(errSilent) })
	return s
}

// minRead is the number of bytes that restart the timer of a stream. A server that drips is silent.
const minRead = 1 << 10

// counted is a body that restarts the stream's timer.
type counted struct {
	io.ReadCloser
	s    *stream
	read int // bytes since the last restart
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.read += n; c.s.patience > 0 && c.read >= minRead {
		c.read = 0
		c.s.silence.Reset(c.s.patience)
	}
	return n, err
}

// mayPause removes the limit for silence.
func (s *stream) mayPause() {
	s.patience = 0
	s.silence.Stop()
}

// Decode implements watch.Decoder.
func (s *stream) Decode() (watch.EventType, runtime.Object, error) {
	event, o, err := s.Decoder.Decode()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if err = s.cause(err); !errors.Is(err, io.EOF) && s.ctx.Err() == nil || errors.Is(err, errSilent) {
			s.err = err
		}
		return event, o, err
	}
	if event == watch.Error {
		s.err = apierrors.FromObject(o)
	}
	if b, ok := o.(*object.Object); s.awaits && ok && event == watch.Bookmark && b.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		s.awaits, s.Prepare, s.Admit = false, nil, nil
		s.r.cuts.Store(0)
		s.mayPause()
	}
	return event, o, nil
}

// cause returns errSilent if that has ended the stream, and else err.
func (s *stream) cause(err error) error {
	if err != nil && errors.Is(context.Cause(s.ctx), errSilent) {
		return errSilent
	}
	return err
}

// Close implements watch.Decoder. client-go calls it in a goroutine of its own.
func (s *stream) Close() { s.once.Do(func() { s.r.contain(s.close) }) }

func (s *stream) close() {
	s.stop()
	s.Decoder.Close()
	if !s.watches {
		return
	}
	s.mu.Lock()
	awaits, err := s.awaits, s.err
	s.mu.Unlock()
	if awaits {
		s.reading.Close()
		s.r.cut(err)
	}
	s.r.ended.Store(err == nil && !awaits)
	s.r.sink.Lost(err)
}

func (s *stream) stop() {
	s.silence.Stop()
	s.overtime.Stop()
	s.cancel(nil)
}

// store implements cache.ReflectorStore. It keeps nothing.
type store struct{ *Reflector }

func (s store) Add(o any) error { return s.Update(o) }

func (s store) Update(o any) error {
	one := o.(*object.Object)
	s.sink.Prepare(one)
	s.sink.Put(one)
	return nil
}

func (s store) Delete(o any) error {
	s.sink.Delete(o.(*object.Object))
	return nil
}

func (s store) Replace(list []any, _ string) error {
	all := make([]*object.Object, len(list))
	for i := range list {
		all[i] = list[i].(*object.Object)
	}
	s.sink.Replace(all)
	s.reading.Load().Close()
	return nil
}

func (store) Resync() error { return nil }
