package kubernetes

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshrelay/events"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
)

// Whoever looks at the journal learns why an API server was lost, also one that was never reached.
func TestTheJournalTellsWhyAServerIsOutOfContact_K9(t *testing.T) {
	answers := func(code int, reason string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, code, reason); return true }
	}
	ends := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	tells := func(w *world, of events.Type, what, why string) {
		w.t.Helper()
		w.until("the journal tells "+what+" "+why, func() bool {
			all := w.events(of)
			return len(all) > 0 && strings.HasPrefix(all[0], what) && strings.Contains(all[0], why)
		})
	}
	for name, tc := range map[string]struct {
		fault     func(http.ResponseWriter, *http.Request) bool
		of        events.Type
		what, why string
	}{
		"errors":               {answers(500, "InternalError"), events.Lost, "contact lost", "scripted"},
		"connections that end": {ends, events.Lost, "contact lost", "INTERNAL_ERROR"},
		"credentials":          {answers(401, "Unauthorized"), events.Denied, "the upstream refuses the relay's identity", "does not accept the relay's identity"},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x")
			w := s.mirrors("", "")
			w.synced()
			s.Set(func() { s.Fault = tc.fault })
			s.drop()
			tells(w, tc.of, tc.what, tc.why)
		})
	}
	inBubble(t, "never reached, and then denied", func(t *testing.T) {
		s := newAPIServer(t)
		s.Set(func() { s.Fault = ends })
		w := s.mirrors("", "")
		tells(w, events.Lost, "not reached", "INTERNAL_ERROR")
		s.Set(func() { s.Fault = answers(401, "Unauthorized") })
		tells(w, events.Denied, "the upstream refuses", "does not accept the relay's identity")
		if all := w.events(events.Lost); len(all) != 1 {
			t.Errorf("one outage is told %d times: %q", len(all), all)
		}
	})
	inBubble(t, "another cluster", func(t *testing.T) {
		s := newAPIServer(t)
		w := s.mirrors("", "")
		w.synced()
		other := newAPIServer(t)
		other.UID = "two"
		fakekube.WriteKubeconfig(t, w.path, other.http, "t")
		w.until("the other kubeconfig is used", func() bool { return w.detail().Rotations == 1 })
		s.drop()
		tells(w, events.Failed, "the upstream can not be used", "this is another cluster")
	})
}

// A kind that is denied for ever is asked for for ever, by lists and watches in turns, and told once.
func TestADeniedKindIsLoggedOnce_K9(t *testing.T) {
	var log bytes.Buffer
	s := &Source{st: newStatus(), log: slog.New(slog.NewTextHandler(&log, nil)), complaints: loglimit.New(20, time.Second)}
	one := &collection{Resource: discovery.Resource{Kind: serviceEntry}, source: s, entry: &ledger.Entry{}}
	for _, verb := range []string{"watch", "list", "watch", "list"} {
		s.enter(one, Denied, apierrors.NewForbidden(schema.GroupResource{Resource: "serviceentries"}, "", errors.New("cannot "+verb)))
	}
	if n := strings.Count(log.String(), "kind is not followed"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
	s.enter(one, Following, nil)
	s.enter(one, Denied, apierrors.NewForbidden(schema.GroupResource{Resource: "serviceentries"}, "", errors.New("cannot list")))
	if n := strings.Count(log.String(), "kind is not followed"); n != 2 {
		t.Errorf("another time is logged %d times:\n%s", n, log.String())
	}
}
