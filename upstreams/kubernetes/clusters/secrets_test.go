package clusters

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// server is an API server of a test.
type server struct {
	*fakekube.Server
	t    *testing.T
	http *httptest.Server
}

func newServer(t *testing.T) *server {
	s := fakekube.New()
	return &server{s, t, s.Start(t)}
}

// listed is what a reader tells: the Secrets of the entries of one list, or an error.
type listed struct {
	names []string
	keys  int
	err   string
}

// follows runs a reader, and returns what it tells.
func (s *server) follows() <-chan listed {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(s.t, path, s.http, "t")
	r := readerOf(config.Clusters{Secrets: &config.ClusterSecrets{
		Cluster: config.Cluster{Kubeconfig: path}, Namespace: "istio-system", Selector: "istio/multiCluster=true",
	}}, quick)
	ctx, cancel := context.WithCancel(context.Background())
	ch, done := make(chan listed, 1000), make(chan struct{})
	go func() {
		defer close(done)
		r.follow(ctx, func(all []registry.Entry, err error) {
			one := listed{keys: len(all)}
			if err != nil {
				one.err = err.Error()
			}
			for _, e := range all {
				one.names = append(one.names, strings.TrimPrefix(e.Origin, "secret "))
			}
			slices.Sort(one.names)
			one.names = slices.Compact(one.names)
			ch <- one
		})
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		r.client.Close()
	})
	return ch
}

// until returns the first that is told for which ok is true.
func until(t *testing.T, ch <-chan listed, what string, ok func(listed) bool) listed {
	t.Helper()
	var last listed
	await.Until(t, what, func() bool {
		for {
			select {
			case last = <-ch:
				if ok(last) {
					return true
				}
			default:
				return false
			}
		}
	}, func() any { return last })
	return last
}

func hasNames(t *testing.T, ch <-chan listed, want ...string) {
	t.Helper()
	until(t, ch, fmt.Sprint(want), func(o listed) bool { return o.err == "" && slices.Equal(o.names, want) })
}

func TestAListOfAHubHasSoManyPages(t *testing.T) {
	s := newServer(t)
	s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`)
		return true
	}
	ch := s.follows()
	until(t, ch, "the pages have no end", func(o listed) bool { return strings.Contains(o.err, "secrets has more than 1000 pages") })
}

// secrets has a server serve Secrets.
func (s *server) secrets() {
	s.Define("", "Secret", "secrets", "v1")
	before := s.Fault
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if before != nil && before(w, r) {
			return true
		}
		if r.URL.Path != "/api/v1/namespaces/istio-system/secrets" {
			return false
		}
		s.Collection(w, r, "", "v1", "secrets", "istio-system")
		return true
	}
}

func (s *server) secret(name, data string) {
	s.Put("/secrets", fakekube.Object("istio-system", name, "null", `{"data":`+data+`}`))
}

func TestAHubTellsAllObjectsAfterEachChange(t *testing.T) {
	s := newServer(t)
	for i := range 250 { // several pages
		s.secret(fmt.Sprintf("a%03d", i), `{"east":"eA=="}`)
	}
	s.secrets()
	ch := s.follows()
	until(t, ch, "all", func(o listed) bool { return len(o.names) == 250 })
	for i := range 249 {
		s.Remove("/secrets", fmt.Sprintf("istio-system/a%03d", i))
	}
	hasNames(t, ch, "istio-system/a249")
	s.secret("b", `{"west":"eA=="}`)
	hasNames(t, ch, "istio-system/a249", "istio-system/b")
	if s.Asked("labelSelector=istio%2FmultiCluster%3Dtrue") == 0 {
		t.Error("the selector was not sent")
	}
}

func TestAHubThatFailsIsTriedAgainAndTellsNoObjects(t *testing.T) {
	for name, code := range map[string]int{"401": 401, "403": 403, "404": 404, "410": 410, "500": 500} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.secrets()
			s.secret("a", `{"east":"eA=="}`)
			ch := s.follows()
			hasNames(t, ch, "istio-system/a")
			former := s.Fault
			s.Set(func() {
				s.Fault = func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, code, "Failure"); return true }
				s.Stops++
			})
			until(t, ch, "an error", func(o listed) bool {
				if o.err == "" && len(o.names) != 1 {
					t.Errorf("it tells %q", o.names)
				}
				return o.err != ""
			})
			s.Set(func() { s.Fault = former })
			hasNames(t, ch, "istio-system/a")
		})
	}
}

func TestAHubIsBounded(t *testing.T) {
	s := newServer(t)
	s.secrets()
	items := strings.TrimSuffix(strings.Repeat(`{"metadata":{"name":"a"}},`, pageSize), ",")
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[%s]}`, items)
			return true
		}
	})
	until(t, s.follows(), "the bound", func(o listed) bool {
		return strings.Contains(o.err, "more than 5000 objects or keys, or more than 64 MiB")
	})
}

// TestAPageOfAHubIsBounded: a server need not heed the limit that it is asked for.
func TestAPageOfAHubIsBounded(t *testing.T) {
	s := newServer(t)
	s.secrets()
	items, sent := strings.Repeat(`{"metadata":{"name":"a"}},`, 1000), make(chan int, 1000)
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[`)
			n := 0
			for ; n < 1000 && r.Context().Err() == nil; n++ {
				if _, err := fmt.Fprint(w, items); err != nil {
					break
				}
			}
			fmt.Fprint(w, `{"metadata":{"name":"a"}}]}`)
			sent <- n
			return true
		}
	})
	until(t, s.follows(), "the bound", func(o listed) bool {
		return strings.Contains(o.err, "more than 5000 objects or keys, or more than 64 MiB")
	})
	if n := await.Value(t, "the answer has ended", sent); n == 1000 {
		t.Error("all of a million objects was read")
	}
}

// Entries count, not only their texts.
func TestAHubIsBoundedByWhatItsObjectsTake(t *testing.T) {
	s := newServer(t)
	s.secrets()
	var entries []string
	for i := range 4000 {
		entries = append(entries, fmt.Sprintf(`"a%d":""`, i))
	}
	one := `{"metadata":{"name":"a","annotations":{` + strings.Join(entries, ",") + `}}}`
	s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s%s]}`, strings.Repeat(one+",", 199), one) // 9 MiB of text
		return true
	}
	until(t, s.follows(), "it has too much", func(o listed) bool { return strings.Contains(o.err, "select fewer") })
}

func TestTheKeysOfAHubAreCounted(t *testing.T) {
	s := newServer(t)
	s.secrets()
	data := func(n int) string {
		var keys []string
		for i := range n {
			keys = append(keys, fmt.Sprintf(`"a%d":""`, i))
		}
		return `{"data":{` + strings.Join(keys, ",") + `}}`
	}
	for i := range 5 {
		s.Put("/secrets", fakekube.Object("istio-system", fmt.Sprint("s", i), `{}`, data(1000)))
	}
	ch := s.follows()
	until(t, ch, "all that there is room for", func(o listed) bool { return len(o.names) == 5 && o.keys == 5000 && o.err == "" })
	s.Put("/secrets", fakekube.Object("istio-system", "more", `{}`, data(1)))
	until(t, ch, "the bound", func(o listed) bool { return strings.Contains(o.err, "more than 5000 objects or keys") })
}
