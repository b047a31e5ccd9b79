package apiserver

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
)

// writes returns a connection to a server that answers writes with f.
func writes(t *testing.T, f http.HandlerFunc) *Conn {
	t.Helper()
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	path := t.TempDir() + "/kubeconfig"
	fakekube.WriteKubeconfig(t, path, server, "secret")
	c := NewClient(&Credentials{Cluster: config.Cluster{Kubeconfig: path}}, "test")
	t.Cleanup(c.Close)
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.Current()
}

func TestAWriteIsSentWithItsType(t *testing.T) {
	conn := writes(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode([]string{r.Method, r.URL.String(), r.Header.Get("Content-Type"), r.Header.Get("Accept"), string(body)})
	})
	var got []string
	err := conn.Write(t.Context(), Write{Method: http.MethodPatch, Path: "/a/b", Query: map[string][]string{"force": {"true"}}, Type: TypeApply, Body: []byte("{}"), Accept: AcceptMetadata}, &got)
	if want := "PATCH /a/b?force=true " + TypeApply + " " + AcceptMetadata + " {}"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%q, %v", got, err)
	}
}

// TestAWriteDoesNotWaitForRetryAfter: who writes must know when its Lease ends.
func TestAWriteDoesNotWaitForRetryAfter(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"of an API server": func(w http.ResponseWriter) { fakekube.Fail(w, http.StatusTooManyRequests, "TooManyRequests") },
		"of a proxy":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := fakekube.New()
			s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Retry-After", "77")
				answer(w)
				return true
			}
			began := time.Now()
			err := NewConn("https://127.0.0.1", s).Write(t.Context(), Write{Method: http.MethodDelete, Path: "/a"}, nil)
			if seconds, wait := apierrors.SuggestsClientDelay(err); !wait || seconds != 77 || apierrors.ReasonForError(err) != metav1.StatusReasonTooManyRequests {
				t.Errorf("%s: %v, %d s", name, err, seconds)
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("%s: it took %v", name, d)
			}
		})
	}
}

func TestAnAnswerToAWriteIsBounded(t *testing.T) {
	conn := writes(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `"`+strings.Repeat("x", maxAnswer)+`"`)
	})
	var got string
	if err := conn.Write(t.Context(), Write{Method: http.MethodPost, Path: "/a", Type: TypeJSON, Body: []byte("{}")}, &got); err == nil {
		t.Errorf("%d bytes are read", len(got))
	}
}

func TestAFailedRequestTellsWhatToDo(t *testing.T) {
	resource := schema.GroupResource{Group: "networking.istio.io", Resource: "gateways"}
	forbidden, absent := apierrors.NewForbidden(resource, "a", errors.New("no")), apierrors.NewNotFound(resource, "a")
	for _, tc := range []struct {
		verb, namespace, name string
		err                   error
		want                  string
	}{
		{"patch", "shop", "a", forbidden, "patch gateways.networking.istio.io shop/a: gateways.networking.istio.io \"a\" is forbidden: no: allow the identity to patch gateways.networking.istio.io; check with: kubectl auth can-i patch gateways.networking.istio.io/a -n shop"},
		{"create", "shop", "a", forbidden, "check with: kubectl auth can-i create gateways.networking.istio.io -n shop"},
		{"list", "", "", forbidden, "check with: kubectl auth can-i list gateways.networking.istio.io -A"},
		{"create", "shop", "a", absent, "create the namespace shop, or name the right one"},
		{"get", "shop", "a", apierrors.NewUnauthorized("no"), "renew the credentials"},
	} {
		if err := Failed(tc.verb, resource.String(), tc.namespace, tc.name, tc.err); !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
	if err := Failed("get", "gateways", "shop", "a", nil); err != nil {
		t.Error(err)
	}
}
