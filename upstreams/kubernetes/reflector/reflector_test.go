package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

// These are what an upgrade of client-go may change.
var (
	_ cache.ReflectorStore = store{}
	_ watch.Decoder        = (*stream)(nil)
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
	ctx, cancel := context.WithTimeout(d.ctx, 10*time.Second)
	defer cancel()
	if <-ctx.Done(); d.ctx.Err() != nil {
		return 0, d.ctx.Err()
	}
	return copy(p, d.spaces), nil
}

func (d *drip) Close() error { return nil }

const forever = 1 << 30

// dripPage returns a page of a list that drips like this.
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
			r := New(Config{}, nil)
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
		r := New(Config{}, nil)
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
		r := New(Config{}, nil)
		began, s := time.Now(), r.dripping(t, mode{lists: true, watches: true, most: 10*time.Minute + overtime}, forever, 512, "")
		_, _, err := s.Decode()
		s.stop()
		if took := time.Since(began); !errors.Is(err, errSilent) || took != 11*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// connect returns Config.Connect for a server in memory.
func connect(t *testing.T, server *httptest.Server) func(context.Context) (*apiserver.Conn, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, path, server, "t")
	client := apiserver.NewClient(&apiserver.Credentials{Cluster: config.Cluster{Kubeconfig: path}}, "test")
	client.Dial = fakekube.Dial
	t.Cleanup(client.Close)
	if err := client.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func(context.Context) (*apiserver.Conn, error) { return client.Current(), nil }
}

// failures is a Sink that counts failed requests.
type failures struct {
	Sink
	n int
}

func (s *failures) Failed(error) { s.n++ }

func TestAListHasSoManyPages_K8(t *testing.T) {
	server := fakekube.New()
	server.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/services" {
			return false
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`)
		return true
	}
	sink := &failures{}
	r := New(Config{
		Path: "/api/v1/services", Log: slog.New(slog.DiscardHandler),
		Connect: connect(t, server.StartInMemory(t)),
		Begin:   func() *object.Reading { return object.NewBudget(0).Begin(false) },
	}, sink)
	page := func(more string) error {
		_, err := r.listed(t.Context(), metav1.ListOptions{Continue: more})
		return err
	}
	if err := errors.Join(page(""), page("more"), page("more")); err != nil || r.pages.Load() != 3 {
		t.Fatalf("%d pages, %v", r.pages.Load(), err)
	}
	r.pages.Store(maxPages - 1)
	if err := page("more"); err != nil {
		t.Errorf("the last page: %v", err)
	}
	if err := page("more"); err == nil || !strings.Contains(err.Error(), "more than 1000 pages of one list") || sink.n != 1 || !r.endless.Load() {
		t.Errorf("one page more: %v, %d failures", err, sink.n)
	}
	if err := page(""); err != nil {
		t.Errorf("the next list: %v", err)
	}
}

func TestAListThatFailsTakesNoRoom_K7(t *testing.T) {
	server := fakekube.New()
	fails := false
	server.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path != "/api/v1/services":
			return false
		case fails:
			http.Error(w, "no", http.StatusInternalServerError)
		default:
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[{"metadata":{"name":"a"},"spec":{"a":"`+strings.Repeat("b", 1500)+`"}}]}`)
		}
		return true
	}
	lists := object.NewBudget(2000)
	sink := &failures{Sink: brittle{}}
	r := New(Config{
		Path: "/api/v1/services", Log: slog.New(slog.DiscardHandler),
		Connect: connect(t, server.StartInMemory(t)),
		Begin:   func() *object.Reading { return lists.Begin(false) },
	}, sink)
	fits := func() bool { // whether nothing is charged
		reading := lists.Begin(true)
		defer reading.Close()
		return reading.Admit(&object.Object{Spec: make([]byte, 3500)}) == nil
	}
	if !fits() {
		t.Fatal("an empty budget has no room")
	}
	if _, err := r.listed(t.Context(), metav1.ListOptions{}); err != nil || fits() {
		t.Errorf("a list of one page is not counted, %v", err)
	}
	server.Set(func() { fails = true })
	if _, err := r.listed(t.Context(), metav1.ListOptions{Continue: "more"}); err == nil || !fits() {
		t.Errorf("a list whose second page has failed is counted, %v", err)
	}
	server.Set(func() { fails = false })
	if err := r.precedes(t.Context(), "1"); err != nil || !fits() {
		t.Errorf("the object of a check is counted, %v", err)
	}
}
