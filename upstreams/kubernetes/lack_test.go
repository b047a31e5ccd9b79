package kubernetes

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

// lacksOnce has the next discovery find these resources only, as from a server that has just begun, behind
// the address of several.
func (s *apiServer) lacksOnce(resources string) {
	answered := false
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			s.Lock()
			defer s.Unlock()
			if r.URL.Path != "/apis" || answered {
				return false
			}
			answered = true
			_, err := io.WriteString(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"apiextensions.k8s.io"},"versions":[]},`+
				`{"metadata":{"name":"networking.istio.io"},"versions":[{"version":"v1","freshness":"Current","resources":[`+resources+`]}]}]}`)
			return err == nil
		}
	})
}

const sidecarsOnly = `{"resource":"sidecars","responseKind":{"kind":"Sidecar"},"scope":"Namespaced","verbs":["list","watch"]}`

// What is watched is served, whatever one answer of discovery lacks.
func TestADiscoveryThatLacksWhatIsWatchedChangesNothing_K4(t *testing.T) {
	for name, lack := range map[string]string{"all kinds": "", "one of two": sidecarsOnly} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			if lack != "" {
				s.Define("networking.istio.io", "Sidecar", "sidecars", "v1")
				s.Put("networking.istio.io/sidecars", fakekube.Object("shop", "s", `{}`))
			}
			s.entry("shop/a", "a.x")
			w := s.mirrors("", "  guard: {percent: 100}\n  staleness: {staleAfter: 1s, expireAfter: 1s}\n")
			w.synced()
			want := w.has()
			s.lacksOnce(lack)
			asked := s.Asked("/apis?")
			w.until("it is asked many times more", func() bool { // for longer than the pace's grace, and staleAfter
				if st := w.status(); st.State != upstreams.StateSynced || !slices.Equal(w.has(), want) {
					t.Fatalf("%s, %q: served %q, want %q", st.State, st.LastError, w.has(), want)
				}
				return s.Asked("/apis?") > asked+60
			})
			lists, watches := s.Asked("serviceentries", "sendInitialEvents"), s.Asked("serviceentries", "watch=true")
			s.Set(func() { s.Stops++ })
			w.until("the watch goes on", func() bool { return s.Asked("serviceentries", "watch=true") > watches })
			for i := range 3 {
				s.entry(fmt.Sprintf("shop/b%d", i), "b.x")
			}
			w.until("changes follow", func() bool { return len(w.has()) == len(want)+3 })
			if n := s.Asked("serviceentries", "sendInitialEvents") - lists; n > 0 {
				t.Errorf("an ordinary end of the watch has it listed %d times", n)
			}
		})
	}
}
