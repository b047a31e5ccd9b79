package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"meshrelay/config"
	"meshrelay/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// logged is a log that several goroutines write.
type logged struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

// receiver is a webhook that answers as it is told.
type receiver struct {
	bodies  chan []byte
	answers chan int // the next statuses; 200 where there is none
	header  chan http.Header
}

func newReceiver() *receiver {
	return &receiver{bodies: make(chan []byte, 100), answers: make(chan int, 100), header: make(chan http.Header, 100)}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.header <- req.Header
	select {
	case code := <-r.answers:
		if code == 0 { // it hangs
			<-req.Context().Done()
			return
		}
		w.WriteHeader(code)
		if code >= 300 {
			return
		}
	default:
	}
	r.bodies <- body
}

func (r *receiver) next(t *testing.T) (m Message) {
	t.Helper()
	select {
	case body := <-r.bodies:
		if err := json.Unmarshal(body, &m); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
	case <-time.After(patience):
		t.Fatal("nothing is received")
	}
	return m
}

func hook(name, url string) config.Notify {
	return config.Notify{Name: name, URL: url, Format: config.NotifyJSON, On: []string{"held", "nack"}, Timeout: config.Duration(5 * time.Second)}
}

// running runs a Notifier until the test, or the function, ends it.
func running(t *testing.T, j *events.Journal, log io.Writer, hooks ...config.Notify) (*Notifier, func()) {
	t.Helper()
	n := New(Options{Journal: j, Relay: "hub", Logger: slog.New(slog.NewTextHandler(log, nil))}, hooks)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return n, stop
}

func held(hold string) events.Event {
	return events.Event{Type: events.Held, Upstream: "east", By: events.ByGuard, Hold: hold, Text: "40 deletions of 100 resources held", Command: "relay held east"}
}

func holds(m Message) (out []string) {
	for _, e := range m.Events {
		out = append(out, e.Hold)
	}
	return out
}

// TestAReceiverIsToldWithWhatToRun: of the events that it wants and of no others.
func TestAReceiverIsToldWithWhatToRun(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	j := events.New(events.Limits{})
	j.Record(held("before")) // nobody wanted it then
	n, _ := running(t, j, io.Discard, hook("oncall", server.URL))
	j.Record(events.Event{Type: events.Frozen, Upstream: "east"})
	j.Record(held("7f3a"))
	m := r.next(t)
	if m.Relay != "hub" || !slices.Equal(holds(m), []string{"7f3a"}) {
		t.Fatalf("%+v", m)
	}
	want := []string{"relay held east", `relay release east --hold 7f3a --reason "…"`, `relay freeze east --for 4h --reason "…"`}
	if e := m.Events[0]; !slices.Equal(e.Commands, want) || e.Summary != "relay hub: upstream east held: 40 deletions of 100 resources held" {
		t.Errorf("%q %q", e.Commands, e.Summary)
	}
	for testutil.ToFloat64(n.sent.WithLabelValues("oncall")) != 1 {
		<-time.After(time.Millisecond)
	}
}

// TestAReceiverThatFailsIsToldAgain: one that answers with errors, one that hangs, one that is not
// there; and nobody waits for it.
func TestAReceiverThatFailsIsToldAgain(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	r.answers <- 500
	r.answers <- 0 // hangs
	h := hook("oncall", server.URL)
	h.Timeout = config.Duration(100 * time.Millisecond)
	var log logged
	j := events.New(events.Limits{})
	n, _ := running(t, j, &log, h)
	j.Record(held("a"))
	began := time.Now()
	for i := range 1000 {
		j.Record(held(fmt.Sprint(i)))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("recording took %v", took)
	}
	if m := r.next(t); m.Events[0].Hold != "a" {
		t.Errorf("%+v", m)
	}
	if got := testutil.ToFloat64(n.failed.WithLabelValues("oncall")); got != 2 {
		t.Errorf("%v failures", got)
	}
	if text := log.String(); !strings.Contains(text, "500 Internal Server Error") || !strings.Contains(text, "no answer in time") {
		t.Error(text)
	}
}

// TestARestartForgetsNoEvent: what a receiver has not taken goes to it after a restart, from the lines
// of the disk, and what the disk knows it has taken does not. A repeat from before the restart, of a request
// whose answer came late, is within the promise: the receiver of after the restart is another one.
func TestARestartForgetsNoEvent(t *testing.T) {
	before, after := newReceiver(), newReceiver()
	server := httptest.NewServer(before)
	url := server.URL
	j := events.New(events.Limits{})
	_, stop := running(t, j, io.Discard, hook("oncall", url))
	j.Record(held("taken"))
	before.next(t)
	for {
		if seq, _ := j.Reader("notify/oncall"); seq == j.Newest().Seq {
			break
		}
		<-time.After(time.Millisecond)
	}
	server.Close() // the receiver goes, and then the relay
	j.Record(held("missed"))
	stop()

	again := restarted(t, j)
	lis, err := net.Listen("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	back := httptest.NewUnstartedServer(after)
	back.Listener.Close()
	back.Listener = lis
	back.Start()
	defer back.Close()
	running(t, again, io.Discard, hook("oncall", url))
	if got := holds(after.next(t)); !slices.Equal(got, []string{"missed"}) {
		t.Errorf("%v", got)
	}
}

// TestAKillRepeatsAndLosesNothing: a receiver took an event, and the relay was killed before the disk knew
// that. It is told again, with what came after.
func TestAKillRepeatsAndLosesNothing(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	j := events.New(events.Limits{})
	New(Options{Journal: j, Relay: "hub", Logger: slog.New(slog.DiscardHandler)}, []config.Notify{hook("oncall", server.URL)})
	j.Record(held("taken"))
	j.Record(held("missed"))
	again := restarted(t, j) // the last lines before the kill
	for name, journal := range map[string]*events.Journal{"before": j, "after": again} {
		_, stop := running(t, journal, io.Discard, hook("oncall", server.URL))
		if got := holds(r.next(t)); !slices.Equal(got, []string{"taken", "missed"}) {
			t.Errorf("%s the kill: %v", name, got)
		}
		stop()
	}
}

// restarted returns the journal of a process that follows, from the lines that the disk has.
func restarted(t *testing.T, j *events.Journal) *events.Journal {
	t.Helper()
	disk := j.Take()
	j.Done(true)
	again := events.New(events.Limits{})
	if bad := again.Load(bytes.Split(bytes.TrimSpace(disk), []byte("\n"))); bad != 0 {
		t.Fatalf("%d bad lines", bad)
	}
	return again
}

// TestARequestThatAReceiverRefusesIsGivenUp, so that it does not keep back the next.
func TestARequestThatAReceiverRefusesIsGivenUp(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	for range maxRefusals {
		r.answers <- 400
	}
	j := events.New(events.Limits{})
	n, _ := running(t, j, io.Discard, hook("oncall", server.URL))
	j.Record(held("wrong"))
	for testutil.ToFloat64(n.dropped.WithLabelValues("oncall")) == 0 {
		<-time.After(time.Millisecond)
	}
	j.Record(held("next"))
	if got := holds(r.next(t)); !slices.Equal(got, []string{"next"}) {
		t.Errorf("%v", got)
	}
}

// TestNoSecretIsTold: neither the URL nor the token is in a log, a note or a body.
func TestNoSecretIsTold(t *testing.T) {
	const canary = "T0KEN-canary"
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	r.answers <- 302
	good := hook("good", "")
	good.URLFile, good.TokenFile = write("url", server.URL+"/services/"+canary+"\n"), write("token", canary)
	gone := hook("gone", "")
	gone.URLFile = write("gone", "http://127.0.0.1:1/"+canary+"?x="+canary)
	wrong := hook("wrong", "")
	wrong.URLFile = write("wrong", "ftp://x/%zz"+canary)
	var log logged
	j := events.New(events.Limits{})
	n, _ := running(t, j, &log, good, gone, wrong)
	j.Record(held("a"))
	m := r.next(t)
	<-r.header
	if got := (<-r.header).Get("Authorization"); got != "Bearer "+canary {
		t.Errorf("authorization %q", got)
	}
	for testutil.ToFloat64(n.failed.WithLabelValues("gone")) == 0 || testutil.ToFloat64(n.failed.WithLabelValues("wrong")) == 0 {
		<-time.After(time.Millisecond)
	}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(n.Notes(), "\n")
	for _, text := range []string{log.String(), notes, string(body)} {
		if strings.Contains(text, canary) {
			t.Errorf("a secret is in: %s", text)
		}
	}
	if !strings.Contains(notes, "receiver gone not reached since") || !strings.Contains(log.String(), "302 Found") {
		t.Errorf("%s\n%s", notes, &log.out)
	}
}

// TestReceiversAreReplaced: those that stay go on where they are, and new ones begin now.
func TestReceiversAreReplaced(t *testing.T) {
	a, b := newReceiver(), newReceiver()
	one, two := httptest.NewServer(a), httptest.NewServer(b)
	defer one.Close()
	defer two.Close()
	j := events.New(events.Limits{})
	n, _ := running(t, j, io.Discard, hook("one", one.URL))
	j.Record(held("first"))
	a.next(t)
	n.SetReceivers([]config.Notify{hook("one", one.URL), hook("two", two.URL)})
	j.Record(held("second"))
	if got := holds(b.next(t)); !slices.Equal(got, []string{"second"}) {
		t.Errorf("%v", got)
	}
	for { // at least once
		if got := holds(a.next(t)); slices.Contains(got, "second") {
			break
		}
	}
	n.SetReceivers(nil)
	if _, known := j.Reader("notify/one"); known {
		t.Error("a receiver that is gone is remembered")
	}
}

// TestTLSOfAReceiver: roots of a file, and no other.
func TestTLSOfAReceiver(t *testing.T) {
	r := newReceiver()
	server := httptest.NewUnstartedServer(r)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	h := hook("oncall", server.URL)
	if err := send(t.Context(), h, "document"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown roots: %v", err)
	}
	h.TLS = &config.NotifyTLS{CAFile: ca}
	if err := send(t.Context(), h, "document"); err == nil {
		t.Error("without the file of the roots")
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), h, "document"); err != nil {
		t.Error(err)
	}
	h.TLS.ServerName = "other.example"
	if err := send(t.Context(), h, "document"); err == nil {
		t.Error("another server name")
	}
}

// TestFormats: an Alertmanager gets alerts, and their ends with the same labels; Slack gets a text.
func TestFormats(t *testing.T) {
	j := events.New(events.Limits{})
	e := held("7f3a")
	e.Time, e.Reason = time.Date(2026, 11, 22, 3, 12, 44, 0, time.UTC), "<b> & co"
	j.Record(e)
	over := events.Event{Type: events.Released, Upstream: "east", Time: e.Time.Add(time.Minute)}
	j.Record(over)
	batch := j.Read(events.Query{}).Events
	h := hook("am", "http://127.0.0.1:1/prefix/")
	h.Format = config.NotifyAlertmanager
	if got, err := addressOf(h); err != nil || got != "http://127.0.0.1:1/prefix/api/v2/alerts" {
		t.Errorf("%s %v", got, err)
	}
	if got := wanted(h); !slices.Contains(got, events.Released) || !slices.Contains(got, events.NACK) || slices.Contains(got, events.Synced) {
		t.Errorf("%v", got)
	}
	alerts := payload(h, "hub", batch, e.Time).([]alert)
	if len(alerts) != 2 || fmt.Sprint(alerts[0].Labels) != fmt.Sprint(alerts[1].Labels) || alerts[0].Labels["alertname"] != "RelayHeld" ||
		!alerts[0].StartsAt.Equal(e.Time) || !alerts[1].EndsAt.Equal(over.Time) || alerts[0].Annotations["hold"] != "7f3a" {
		t.Errorf("%+v", alerts)
	}
	h.Format = config.NotifySlack
	text := payload(h, "hub", batch[:1], e.Time).(map[string]string)["text"]
	want := "*relay hub: upstream east held: 40 deletions of 100 resources held (&lt;b&gt; &amp; co)*\n`relay held east`\n"
	if !strings.HasPrefix(text, want) {
		t.Errorf("%q", text)
	}
}

// TestAReceiverThatBreaksOffIsComplainedAboutOnce: each attempt is from another port.
func TestAReceiverThatBreaksOffIsComplainedAboutOnce(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0) // a reset
			c.Close()
		}
	}()
	said := map[string]bool{}
	for range 20 {
		err := send(t.Context(), hook("oncall", "http://"+lis.Addr().String()), "document")
		if err == nil {
			t.Fatal("it was taken")
		}
		if strings.Contains(err.Error(), "->") {
			t.Errorf("the port of this end is in it: %v", err)
		}
		said[err.Error()] = true
	}
	lis.Close()
	<-done
	if len(said) > 4 { // read, write, and the end of the file
		t.Errorf("%d texts: %v", len(said), said)
	}
}

// TestARemovedReceiverIsForgotten, also when it takes a request meanwhile: added again, it is told of what
// happens from then on.
func TestARemovedReceiverIsForgotten(t *testing.T) {
	j := events.New(events.Limits{})
	var n *Notifier
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.SetReceivers(nil) }))
	defer server.Close()
	h := hook("oncall", server.URL)
	n = New(Options{Journal: j, Relay: "hub", Logger: slog.New(slog.DiscardHandler)}, []config.Notify{h})
	j.Record(held("a"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.run(ctx, h) }()
	for testutil.ToFloat64(n.sent.WithLabelValues("oncall")) != 1 {
		<-time.After(time.Millisecond)
	}
	cancel()
	<-done
	if seq, known := j.Reader("notify/oncall"); known {
		t.Errorf("the journal has it at %d", seq)
	}
}

// TestAnAnswerIsNotRepeatedAtLength: what a receiver writes ends in logs and notes.
func TestAnAnswerIsNotRepeatedAtLength(t *testing.T) {
	for name, head := range map[string]string{
		"a status": "HTTP/1.1 500 " + strings.Repeat("x", 20_000), "no status": strings.Repeat("y", 20_000), "a refusal": "HTTP/1.1 400 " + strings.Repeat("z", 20_000),
	} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := lis.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Read(make([]byte, 64<<10))
			_, _ = io.WriteString(c, head+"\r\n\r\n")
		}()
		err = send(t.Context(), hook("long", "http://"+lis.Addr().String()), "document")
		lis.Close()
		<-done
		if err == nil || len(err.Error()) > 1024 || isRefusal(err) != (name == "a refusal") {
			t.Errorf("%s: an error of %d bytes", name, len(fmt.Sprint(err)))
		}
	}
}
