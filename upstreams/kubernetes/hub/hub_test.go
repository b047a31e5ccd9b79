package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

var quick = Pace{Poll: 2 * time.Millisecond, Retry: 2 * time.Millisecond, RetryMost: 10 * time.Millisecond}

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

// told is what a hub tells: the objects of one list, or an error.
type told struct {
	names []string
	parts map[string]string
	err   string
}

// follows runs a Hub, and returns what it tells.
func (s *server) follows(of Collection) <-chan told {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(s.t, path, s.http, "t")
	hub := New(&apiserver.Credentials{Cluster: config.Cluster{Kubeconfig: path}}, "test", quick)
	ctx, cancel := context.WithCancel(context.Background())
	ch, done := make(chan told, 1000), make(chan struct{})
	go func() {
		defer close(done)
		hub.Follow(ctx, of, func(all []*object.Object, err error) {
			one := told{parts: map[string]string{}}
			if err != nil {
				one.err = err.Error()
			}
			for _, o := range all {
				one.names = append(one.names, o.Namespace+"/"+o.Name)
				one.parts[o.Namespace+"/"+o.Name] = string(o.Data) + string(o.Status)
			}
			slices.Sort(one.names)
			ch <- one
		})
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		hub.Close()
	})
	return ch
}

// until returns the first that is told for which ok is true.
func until(t *testing.T, ch <-chan told, what string, ok func(told) bool) told {
	t.Helper()
	var last told
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

func hasNames(t *testing.T, ch <-chan told, want ...string) told {
	t.Helper()
	return until(t, ch, fmt.Sprint(want), func(o told) bool { return o.err == "" && slices.Equal(o.names, want) })
}

func TestAListOfAHubHasSoManyPages(t *testing.T) {
	s := newServer(t)
	s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`)
		return true
	}
	ch := s.follows(Collection{Path: "/api/v1/namespaces/istio-system/secrets"})
	until(t, ch, "the pages have no end", func(o told) bool { return strings.Contains(o.err, "secrets has more than 1000 pages") })
}

// secrets has a server serve Secrets, and returns their collection.
func (s *server) secrets() Collection {
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
	return Collection{Path: "/api/v1/namespaces/istio-system/secrets", Selector: "istio/multiCluster=true"}
}

func (s *server) secret(name, data string) {
	s.Put("/secrets", fakekube.Object("istio-system", name, "null", `{"data":`+data+`}`))
}

func TestAHubTellsAllObjectsAfterEachChange(t *testing.T) {
	s := newServer(t)
	for i := range 250 { // several pages
		s.secret(fmt.Sprintf("a%03d", i), `{"east":"eA=="}`)
	}
	ch := s.follows(s.secrets())
	all := until(t, ch, "all", func(o told) bool { return len(o.names) == 250 })
	var data map[string][]byte
	if err := json.Unmarshal([]byte(all.parts["istio-system/a007"]), &data); err != nil || string(data["east"]) != "x" {
		t.Errorf("%v: %q", err, all.parts["istio-system/a007"])
	}
	for i := range 249 {
		s.Remove("/secrets", fmt.Sprintf("istio-system/a%03d", i))
	}
	hasNames(t, ch, "istio-system/a249")
	s.secret("b", `{}`)
	hasNames(t, ch, "istio-system/a249", "istio-system/b")
	if s.Asked("labelSelector=istio%2FmultiCluster%3Dtrue") == 0 {
		t.Error("the selector was not sent")
	}
}

func TestAHubThatFailsIsTriedAgainAndTellsNoObjects(t *testing.T) {
	for name, code := range map[string]int{"401": 401, "403": 403, "404": 404, "410": 410, "500": 500} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			of := s.secrets()
			s.secret("a", `{}`)
			ch := s.follows(of)
			hasNames(t, ch, "istio-system/a")
			former := s.Fault
			s.Set(func() {
				s.Fault = func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, code, "Failure"); return true }
				s.Stops++
			})
			until(t, ch, "an error", func(o told) bool {
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
	of := s.secrets()
	items := strings.TrimSuffix(strings.Repeat(`{"metadata":{"name":"a"}},`, pageSize), ",")
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1","continue":"more"},"items":[%s]}`, items)
			return true
		}
	})
	until(t, s.follows(of), "the bound", func(o told) bool {
		return strings.Contains(o.err, "more than 5000 objects or keys, or more than 64 MiB")
	})
}

// TestAPageOfAHubIsBounded: a server need not heed the limit that it is asked for.
func TestAPageOfAHubIsBounded(t *testing.T) {
	s := newServer(t)
	of := s.secrets()
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
	until(t, s.follows(of), "the bound", func(o told) bool {
		return strings.Contains(o.err, "more than 5000 objects or keys, or more than 64 MiB")
	})
	if n := await.Value(t, "the answer has ended", sent); n == 1000 {
		t.Error("all of a million objects was read")
	}
}

// Entries count, not only their texts.
func TestAHubIsBoundedByWhatItsObjectsTake(t *testing.T) {
	s := newServer(t)
	of := s.secrets()
	var entries []string
	for i := range 4000 {
		entries = append(entries, fmt.Sprintf(`"a%d":""`, i))
	}
	one := `{"metadata":{"name":"a","annotations":{` + strings.Join(entries, ",") + `}}}`
	s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s%s]}`, strings.Repeat(one+",", 199), one) // 9 MiB of text
		return true
	}
	until(t, s.follows(of), "it has too much", func(o told) bool { return strings.Contains(o.err, "select fewer") })
}

func TestTheKeysOfAHubAreCounted(t *testing.T) {
	s := newServer(t)
	of := s.secrets()
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
	ch := s.follows(of)
	until(t, ch, "all that there is room for", func(o told) bool { return len(o.parts) == 5 && o.err == "" })
	s.Put("/secrets", fakekube.Object("istio-system", "more", `{}`, data(1)))
	until(t, ch, "the bound", func(o told) bool { return strings.Contains(o.err, "more than 5000 objects or keys") })
}
