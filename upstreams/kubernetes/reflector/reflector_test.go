package reflector

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"meshrelay/upstreams/kubernetes/object"
)

// These are what an upgrade of client-go may change.
var (
	_ cache.ReflectorStore           = store{}
	_ cache.ListerWatcherWithContext = listerWatcher{}
	_ watch.Decoder                  = (*stream)(nil)
)

func TestAPauseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	<-endingClock{ctx: ctx}.After(time.Millisecond)
	long := endingClock{ctx: ctx}.After(time.Hour)
	cancel()
	<-long
	<-endingClock{ctx: ctx}.After(time.Hour)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drip sends spaces every ten seconds, and at last a text.
type drip struct {
	ctx    context.Context
	times  int // that it sends spaces
	spaces string
	text   string
}

func (d *drip) Read(p []byte) (int, error) {
	if d.times == 0 {
		n := copy(p, d.text)
		d.text = d.text[n:]
		return n, nil
	}
	d.times--
	select {
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	case <-time.After(10 * time.Second):
		return copy(p, d.spaces), nil
	}
}

func (d *drip) Close() error { return nil }

const forever = 1 << 30

// page returns a page of a list that drips like this.
func (r *Reflector) dripPage(t *testing.T, first bool, times, bytes int, text string) *stream {
	t.Helper()
	most, err := r.page(first)
	if err != nil {
		t.Fatal(err)
	}
	return r.dripping(t, mode{lists: true, most: most}, times, bytes, text)
}

// dripping returns a stream of spaces that are sent so many times, and then of a text.
func (r *Reflector) dripping(t *testing.T, m mode, times, bytes int, text string) *stream {
	t.Helper()
	s := r.newStream(t.Context(), m)
	s.Decoder = object.NewDecoder(&counted{ReadCloser: &drip{s.ctx, times, strings.Repeat(" ", bytes), text}, s: s})
	return s
}

func TestAServerThatDripsIsSilent_K8(t *testing.T) {
	for bytes, want := range map[int]time.Duration{1: 30 * time.Second, 300: 30 * time.Second, 512: time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := New(Config{SyncTimeout: 30 * time.Second}, nil)
			began := time.Now()
			s := r.dripPage(t, true, forever, bytes, "")
			_, err := s.List()
			err = s.cause(err)
			s.stop()
			if took := time.Since(began); took != want || !errors.Is(err, errSilent) {
				t.Errorf("%d bytes: after %v: %v", bytes, took, err)
			}
		})
	}
}

func TestAListThatHasNoEndEndsWithAllItsPages_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{SyncTimeout: 30 * time.Second}, nil)
		began := time.Now()
		for page := range 3 {
			s := r.dripPage(t, page == 0, 150, 512, `{"metadata":{"resourceVersion":"1","continue":"c"},"items":[]}`) // 25 minutes
			_, err := s.List()
			err = s.cause(err)
			s.stop()
			if last := page == 2; last != errors.Is(err, errSilent) || !last && err != nil {
				t.Fatalf("page %d: %v", page, err)
			}
		}
		if took := time.Since(began); took != maxList {
			t.Errorf("the list has ended after %v", took)
		}
	})
}

func TestAStreamingListThatHasNoEndEnds_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{SyncTimeout: 30 * time.Second}, nil)
		began, s := time.Now(), r.dripping(t, mode{lists: true, watches: true, most: 10*time.Minute + overtime}, forever, 512, "")
		_, _, err := s.Decode()
		s.stop()
		if took := time.Since(began); !errors.Is(err, errSilent) || took != 11*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestAListHasSoManyPages_K8(t *testing.T) {
	r := New(Config{SyncTimeout: time.Hour}, nil)
	for page := range maxPages + 1 {
		if _, err := r.page(page == 0); (page == maxPages) != (err != nil) {
			t.Fatalf("page %d: %v", page, err)
		}
	}
	if most, err := r.page(true); err != nil || most < maxList-time.Minute {
		t.Errorf("the next list has %v, %v", most, err)
	}
}
