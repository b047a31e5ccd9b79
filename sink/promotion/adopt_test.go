package promotion

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// promoting begins a promotion. The channel tells its end.
func promoting(t *testing.T, o Options) chan error {
	ended := make(chan error)
	go func() {
		_, err := Promote(t.Context(), o)
		ended <- err
	}()
	return ended
}

// areAllOfTheSink looks that all objects, but those of a person, have the label of the sink.
func areAllOfTheSink(t *testing.T, s *fakekube.Server) {
	t.Helper()
	for name, o := range metadataOf(s, true) {
		if text := fmt.Sprint(o["metadata"]); !strings.HasSuffix(name, " person") && !strings.Contains(text, "meshrelay.io/sink") {
			t.Errorf("%s is not the sink's: %s", name, text)
		}
	}
}

// TestAnAdoptionThatDiesWhileItWaitsIsCompletedAfterTheWait, because the promotion may have a request under way.
func TestAnAdoptionThatDiesWhileItWaitsIsCompletedAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 5)
		var patches atomic.Int32
		slow := options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && patches.Add(1) == 3 {
				await.Pass(apiserver.WriteTimeout - time.Millisecond) // on its way through the network
			}
			return s.RoundTrip(r)
		})))
		slow.By = "the promoter"
		ended := promoting(t, slow)
		for patches.Load() < 3 {
			await.Pass(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Adopt(ctx, options(t, connOf(s))); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := Adopt(t.Context(), options(t, connOf(s))); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "another command") {
			t.Error(err)
		}
		areAllOfTheSink(t, s)
	})
}

// TestAnAdoptionWaitsForAPromotionWhoseAnswersAreSlow: it has asked just before whether it may go on.
func TestAnAdoptionWaitsForAPromotionWhoseAnswersAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		patched, asked := false, make(chan struct{})
		slow := options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := s.RoundTrip(r)
			switch patch := r.Method == http.MethodPatch; {
			case patch && !patched:
				patched = true
				await.Pass(guardEvery)
			case patched && patch: // it was on its way before the answer
				await.Pass(time.Millisecond)
			case patched && r.Method == http.MethodGet:
				if strings.HasSuffix(r.URL.Path, "/configmaps/meshrelay-sink-dr") && asked != nil {
					close(asked)
					asked = nil
				}
				await.Pass(apiserver.ReadTimeout - time.Millisecond)
			}
			return resp, err
		})))
		began := asked
		ended := promoting(t, slow)
		<-began
		if _, err := Adopt(t.Context(), options(t, connOf(s))); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "another command") {
			t.Error(err)
		}
		areAllOfTheSink(t, s)
	})
}

// TestAPromotionThatHadNoContactLooksWhetherItWasOvertaken before it goes on.
func TestAPromotionThatHadNoContactLooksWhetherItWasOvertaken(t *testing.T) {
	for away := 40 * time.Second; away < 100*time.Second; away += 5 * time.Second {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			fill(t, s, 2)
			var gone time.Time
			cut := make(chan struct{})
			slow := options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
				if gone.IsZero() && r.Method == http.MethodPatch {
					gone = time.Now()
					close(cut)
					await.Pass(guardEvery)
				}
				if !gone.IsZero() && time.Since(gone) < away {
					return nil, errors.New("no route to host")
				}
				return s.RoundTrip(r)
			})))
			slow.Tell = func(string, ...any) {}
			ended := promoting(t, slow)
			<-cut
			if _, err := Adopt(t.Context(), options(t, connOf(s))); err != nil {
				t.Error(err)
			}
			if err := <-ended; err == nil {
				t.Error("it went on")
			}
			if areAllOfTheSink(t, s); t.Failed() {
				t.Fatalf("away for %v", away)
			}
		})
	}
}

// TestASecondAdoptionDoesNotMissTheListsThatTheFirstHasDeleted.
func TestASecondAdoptionDoesNotMissTheListsThatTheFirstHasDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 20)
		if _, err := Promote(t.Context(), options(t, connOf(s))); err != nil {
			t.Fatal(err)
		}
		first := options(t, connOf(s))
		first.WritesPerSecond = 20
		ended := make(chan error)
		go func() {
			_, err := Adopt(t.Context(), first)
			ended <- err
		}()
		await.Pass(time.Second) // it gives objects back
		if _, err := Adopt(t.Context(), options(t, connOf(s))); err == nil || !strings.Contains(err.Error(), "another command changes the promotion") {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestAdoptGivesNothingBackWhileAListIsLost: the sink would not know the objects that it named.
func TestAdoptGivesNothingBackWhileAListIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		if _, err := Promote(t.Context(), options(t, connOf(s))); err != nil {
			t.Fatal(err)
		}
		var list map[string]any
		s.Set(func() { list = s.Objects["/configmaps"][namespace+"/meshrelay-sink-dr-0"] })
		s.Remove("/configmaps", namespace+"/meshrelay-sink-dr-0")
		if err := apply(t.Context(), connOf(s), "VirtualService", "late", "meshrelay-sink-dr", labels, `{}`); err != nil {
			t.Fatal(err)
		}
		if r, err := Promote(t.Context(), options(t, connOf(s))); err != nil || r.Changed != 1 { // which needs no list
			t.Errorf("%+v, %v", r, err)
		}
		for range 2 {
			_, err := Adopt(t.Context(), options(t, connOf(s)))
			if err == nil || !strings.Contains(err.Error(), "the lists of sink dr name 1 of 6 promoted objects: restore the ConfigMap istio-system/meshrelay-sink-dr-0") {
				t.Fatal(err)
			}
		}
		if Check(t.Context(), connOf(s), namespace, "dr") == nil {
			t.Error("the sink may write")
		}
		s.Put("/configmaps", list)
		if r, err := Adopt(t.Context(), options(t, connOf(s))); err != nil || r.Changed != 6 || len(s.Objects["/configmaps"]) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestAdoptOfASinkThatIsNotPromotedTellsItFromAWrongName: the sink has its Lease in the namespace, and no lists are there.
func TestAdoptOfASinkThatIsNotPromotedTellsItFromAWrongName(t *testing.T) {
	s := newServer()
	fill(t, s, 1)
	adopt := func(namespace string) string {
		t.Helper()
		version, told := s.Version, ""
		o := options(t, connOf(s))
		o.Namespace, o.Tell = namespace, func(format string, args ...any) { told += fmt.Sprintf(format, args...) }
		r, err := Adopt(t.Context(), o)
		if s.Version != version || r != (Report{}) {
			t.Errorf("%+v, something has changed", r)
		}
		if err != nil {
			told = "error: " + err.Error()
		}
		return told
	}
	for _, row := range []struct {
		put             func()
		namespace, want string
	}{
		{func() {}, namespace, "error: sink dr is not promoted: there is neither a ConfigMap nor a Lease istio-system/meshrelay-sink-dr"},
		{func() {
			s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-dr", `{"renewTime":"then"}`))
		}, namespace, "sink dr is not promoted: there is nothing to adopt"},
		{func() {}, "mesh", "error: the Lease meshrelay-sink-dr is in the namespace istio-system, too: use --namespace istio-system"},
		{func() {
			list := newConfigMap(namespace, "meshrelay-sink-dr-0")
			list.BinaryData = map[string][]byte{digests: {}}
			if err := list.save(t.Context(), connOf(s)); err != nil {
				t.Fatal(err)
			}
		}, namespace, "error: somebody has deleted the ConfigMap istio-system/meshrelay-sink-dr, and the lists of sink dr are there: run relay sink promote dr"},
	} {
		row.put()
		if told := adopt(row.namespace); !strings.HasPrefix(told, row.want) {
			t.Errorf("%q, want %q", told, row.want)
		}
	}
}
