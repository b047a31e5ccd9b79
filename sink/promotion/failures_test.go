package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func TestFailuresTellWhatToDo(t *testing.T) {
	forbid := func(method, part string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == method && strings.Contains(r.URL.Path, part) {
				fakekube.Fail(w, http.StatusForbidden, "Forbidden")
				return true
			}
			return false
		}
	}
	for want, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"kubectl auth can-i list httproutes.gateway.networking.k8s.io -A":               forbid(http.MethodGet, "httproutes"),
		"kubectl auth can-i patch serviceentries.networking.istio.io/a":                 forbid(http.MethodPatch, "serviceentries"),
		"kubectl auth can-i create leases.coordination.k8s.io -n istio-system":          forbid(http.MethodPost, "leases"),
		"kubectl auth can-i get leases.coordination.k8s.io/meshrelay-sink-dr -n istio-": forbid(http.MethodGet, "leases/"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			fill(t, s, 2)
			s.Set(func() { s.Fault = fault })
			err := both(t.Context(), options(t, connOf(s)))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			s.Set(func() { s.Fault = nil })
			if err := both(t.Context(), options(t, connOf(s))); err != nil || len(left(s)) > 0 {
				t.Errorf("%v; %v", left(s), err)
			}
		})
	}
}

// both promotes a sink and disowns its objects.
func both(ctx context.Context, o Options) error {
	if err := Promote(ctx, o); err != nil {
		return err
	}
	_, err := Disown(ctx, o)
	return err
}

// An API server that was killed serves before it has read its definitions.
func TestAServerThatStartsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		hold(s)
		if err := Promote(t.Context(), options(t, connOf(s))); err != nil {
			t.Fatal(err)
		}
		starts := time.Now()
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				starting := time.Since(starts) < 3*time.Second
				switch {
				case starting && r.URL.Path == "/readyz":
					w.WriteHeader(http.StatusInternalServerError)
					_, _ = io.WriteString(w, "[-]poststarthook/crd-informer-synced failed")
				case starting && r.URL.Path == "/apis":
					w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
					_, _ = io.WriteString(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
{"metadata":{"name":"apiextensions.k8s.io"},"versions":[{"version":"v1","freshness":"Current","resources":[{"resource":"customresourcedefinitions","responseKind":{"group":"","version":"","kind":"CustomResourceDefinition"},"scope":"Cluster","verbs":["list","watch"]}]}]}]}`)
				default:
					return false
				}
				return true
			}
		})
		report, err := Disown(t.Context(), options(t, connOf(s)))
		if n := len(left(s)); err != nil || report.Changed == 0 || n > 0 {
			t.Errorf("%+v, %v, %d objects have something of the relay", report, err, n)
		}
	})
}

func TestRetryAfterAndConflictsAreHeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		var asked []time.Time
		edits := 0
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPatch || r.Header.Get("Content-Type") != apiserver.TypeJSONPatch {
				return false
			}
			if asked = append(asked, time.Now()); len(asked) == 1 {
				w.Header().Set("Retry-After", "7")
				fakekube.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
				return true
			}
			if edits < 3 { // between what the command has read and what it writes
				edits++
				parts := strings.Split(r.URL.Path, "/")
				kind := map[string]string{"serviceentries": "ServiceEntry", "virtualservices": "VirtualService", "httproutes": "HTTPRoute"}[parts[6]]
				if err := apply(t.Context(), connOf(s), kind, parts[7], "kubectl", "", fmt.Sprintf(`{"edits":%d}`, edits)); err != nil {
					t.Error(err)
				}
			}
			return false
		}
		if err := both(t.Context(), options(t, connOf(s))); err != nil || len(left(s)) > 0 {
			t.Errorf("%v; %v", left(s), err)
		}
		if d := asked[1].Sub(asked[0]); d < 7*time.Second {
			t.Errorf("asked again after %v", d)
		}
		if text, _ := json.Marshal(metadataOf(s, true)); !strings.Contains(string(text), `"edits":3`) {
			t.Error("the edit of a person is lost")
		}
	})
}

// TestACommandEndsSoonWhenTheServerHasGone, after one round of tries, and tells how often it has tried.
func TestACommandEndsSoonWhenTheServerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		var gone time.Time
		err := both(t.Context(), options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			if gone.IsZero() && r.Method == http.MethodPatch {
				gone = time.Now()
			}
			if !gone.IsZero() {
				return nil, errors.New("connection refused")
			}
			return s.RoundTrip(r)
		}))))
		if d := time.Since(gone); err == nil || strings.Count(err.Error(), "tried 10 times") != 1 || d > time.Minute {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

// TestAnAnswerThatBreaksOffIsAskedForAgain: a server that is killed ends the answers that are under way.
func TestAnAnswerThatBreaksOffIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		broken := map[string]bool{}
		err := both(t.Context(), options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := s.RoundTrip(r)
			if what := r.Method + r.URL.Path; err == nil && resp.StatusCode < 300 && !broken[what] {
				broken[what] = true
				resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, 10), iotest.ErrReader(io.ErrUnexpectedEOF)))
			}
			return resp, err
		}))))
		if err != nil || len(left(s)) > 0 {
			t.Errorf("%v; %v", err, left(s))
		}
	})
}
