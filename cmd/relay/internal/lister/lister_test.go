package lister

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	seV1     = "networking.istio.io/v1/ServiceEntry"
	seAlpha  = "networking.istio.io/v1alpha3/ServiceEntry"
	widgetV1 = "example.com/v1/Widget"
)

var (
	serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	widget       = mirror.Kind{Group: "example.com", Kind: "Widget"}
)

func config(s *fakexds.Server) Config {
	return Config{
		Server:      s.Addr,
		Kinds:       []selection.Kind{{Kind: widget, TypeURLs: []string{widgetV1}}, {Kind: serviceEntry, TypeURLs: []string{seV1, seAlpha}}},
		Node:        adsclient.Node(adsclient.NodeConfig{Name: "t", Namespace: "istio-system", IP: "127.0.0.1", ClusterID: "t"}),
		Credentials: insecure.NewCredentials(),
		Timeout:     await.Limit,
	}
}

func entry(name, host string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{host}})
}

func names(resources []*mirror.Resource) (out []string) {
	for _, r := range resources {
		out = append(out, r.Key().String())
	}
	return out
}

func TestAnswersToAllSpellingsAreUnited_C1(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seV1, entry("shop/b", "v1.example.com"))
	s.Set(seAlpha, entry("shop/c", "c.example.com"), entry("shop/b", "alpha.example.com"), entry("bank/a", "a.example.com"))
	s.Set(widgetV1, fakexds.MCP("shop/w", &networking.Sidecar{}))
	got, problems, err := List(t.Context(), config(s))
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	want := []string{
		"example.com/Widget shop/w", "networking.istio.io/ServiceEntry bank/a", "networking.istio.io/ServiceEntry shop/b", "networking.istio.io/ServiceEntry shop/c",
	}
	if d := cmp.Diff(want, names(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	body := &networking.ServiceEntry{}
	if err := got[2].Body().UnmarshalTo(body); err != nil || body.GetHosts()[0] != "v1.example.com" {
		t.Errorf("the newest spelling should count: %v %v", body, err)
	}
	if got[2].SourceVersion() != "7" {
		t.Errorf("version %q", got[2].SourceVersion())
	}
}

// TestARelayIsAskedForOneSpellingOfAKind: it sends the same resources for each spelling.
func TestARelayIsAskedForOneSpellingOfAKind(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Set(seV1, entry("shop/b", "b.example.com"))
	s.Set(seAlpha, entry("shop/b", "b.example.com"))
	s.Set(widgetV1, fakexds.MCP("shop/w", &networking.Sidecar{}))
	got, problems, err := List(t.Context(), config(s))
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if d := cmp.Diff([]string{"example.com/Widget shop/w", "networking.istio.io/ServiceEntry shop/b"}, names(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, r := range s.Requests() {
		if r.TypeURL == seAlpha {
			t.Errorf("%s was asked for", seAlpha)
		}
	}
}

func TestTheNodeIsAWaypointOfTheAPIGenerator_C3_C12(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	if _, _, err := List(t.Context(), config(s)); err != nil {
		t.Fatal(err)
	}
	node := s.Requests()[0].Node
	if !strings.HasPrefix(node.GetId(), "waypoint~127.0.0.1~t.istio-system~") || node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "api" {
		t.Errorf("%v", node)
	}
}

func TestNothingIsListedBeforeEveryTypeIsAnswered_C21(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seV1, entry("shop/b", "b.example.com"))
	s.Withhold(seAlpha, true)
	cfg := config(s)
	cfg.Timeout = 2 * time.Second
	got, _, err := List(t.Context(), cfg)
	if len(got) > 0 || err == nil || !strings.Contains(err.Error(), "no answer within 2s for 1 of 3 types ("+seAlpha+")") {
		t.Errorf("%v, %v", names(got), err)
	}
}

func TestListNamesBadResourcesAndReturnsTheRest_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	bad := fakexds.MCP("shop/bad", &networking.ServiceEntry{})
	bad.Any.Value = append(bad.Any.Value, 0xff)
	s.Set(seV1, entry("shop/b", "b.example.com"), bad, entry("shop/b", "again.example.com"), fakexds.Resource{Any: &anypb.Any{TypeUrl: "x"}})
	got, problems, err := List(t.Context(), config(s))
	if err != nil || len(got) != 1 || got[0].FullName() != "shop/b" || len(problems) != 3 {
		t.Fatalf("%v, %v, %v", names(got), problems, err)
	}
	if !strings.Contains(problems[1].Error(), seV1+": shop/b: sent twice in one response") {
		t.Error(problems[1])
	}
}

func TestAServerThatCanNotBeReachedIsAnErrorAtOnce(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Stop()
	if _, _, err := List(t.Context(), config(s)); err == nil || !strings.Contains(err.Error(), s.Addr) {
		t.Error(err)
	}
}

func TestRefusalOfTheServerAdvises_C19(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Fail(status.Error(codes.Unauthenticated, "who are you"))
	if _, _, err := List(t.Context(), config(s)); err == nil || !strings.Contains(err.Error(), "who are you") || !strings.Contains(err.Error(), "token") {
		t.Error(err)
	}
}

func TestAnInterruptedListIsAnError(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Withhold(seV1, true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := List(ctx, config(s))
		done <- err
	}()
	s.Await("a subscription", func(fakexds.Request) bool { return true })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// watching is a running Watch.
type watching struct {
	events  chan string
	notices chan error
	stop    func()
	done    chan error
}

func startWatch(t *testing.T, cfg Config) *watching {
	w := &watching{events: make(chan string, 100), notices: make(chan error, 100), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	go func() {
		w.done <- Watch(ctx, cfg, func(events []Event) error {
			for _, e := range events {
				switch {
				case e.Old == nil:
					w.events <- "+" + e.Cur.FullName()
				case e.Cur == nil:
					w.events <- "-" + e.Old.FullName()
				default:
					w.events <- "~" + e.Cur.FullName()
				}
			}
			return nil
		}, func(err error) { w.notices <- err })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-w.done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *watching) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, e := range want {
		if got := await.Value(t, "event "+e, w.events); got != e {
			t.Errorf("event %s, want %s", got, e)
		}
	}
}

func TestChangesAreToldAsTheyCome(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seV1, entry("shop/b", "b"), entry("shop/a", "a"))
	w := startWatch(t, config(s))
	w.expect(t, "+shop/a", "+shop/b")

	s.Set(seV1, entry("shop/b", "other"), entry("shop/a", "a"), entry("shop/c", "c"))
	s.Push(seV1)
	w.expect(t, "~shop/b", "+shop/c")

	// The same content under another spelling is no change, and while one spelling has
	// a resource it is not gone.
	s.Set(seAlpha, entry("shop/c", "c"))
	s.Push(seAlpha)
	s.Set(seV1, entry("shop/a", "a"))
	s.Push(seV1)
	w.expect(t, "-shop/b")
	s.Set(seAlpha)
	s.Push(seAlpha)
	w.expect(t, "-shop/c")
}

func TestALostConnectionIsNoticedAndRestored_C16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seV1, entry("shop/a", "a"), entry("shop/b", "b"))
	w := startWatch(t, config(s))
	w.expect(t, "+shop/a", "+shop/b")
	s.Set(seV1, entry("shop/b", "b"), entry("shop/c", "c"))
	s.End(status.Error(codes.Unavailable, "max age"))
	w.expect(t, "-shop/a", "+shop/c")
	if err := <-w.notices; !strings.Contains(err.Error(), "reconnecting") {
		t.Error(err)
	}
}

func TestABadVersionOfAResourceIsNoDeletion_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seV1, entry("shop/a", "a"), entry("shop/b", "b"))
	w := startWatch(t, config(s))
	w.expect(t, "+shop/a", "+shop/b")
	broken := fakexds.MCP("shop/a", &networking.Sidecar{}) // not a ServiceEntry
	s.Set(seV1, broken, entry("shop/b", "other"))
	s.Push(seV1)
	w.expect(t, "~shop/b")
	if err := <-w.notices; !strings.Contains(err.Error(), "shop/a") {
		t.Error(err)
	}
	nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
	if !strings.Contains(nack.Error, "shop/a") {
		t.Errorf("%+v", nack)
	}
}

func TestObserverCanEndAWatch(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	enough := errors.New("enough")
	err := Watch(t.Context(), config(s), func([]Event) error { return enough }, func(error) {})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}
