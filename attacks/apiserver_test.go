package attacks

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"meshrelay/internal/testing/fakekube"
)

const entriesOf = "networking.istio.io/serviceentries"

// evil answers a request in place of an honest API server, if it returns true. It returns when the answer is
// sent, or the relay reads no more of it.
type evil func(w http.ResponseWriter, r *http.Request) bool

// apiServer is an API server over TLS, which the relay can follow.
type apiServer struct {
	*fakekube.Server
	web  *httptest.Server
	done atomic.Int64 // answers of its evil, or all if it is honest
}

// apiServer starts an honest API server, and writes the kubeconfig "config" for it into a directory of that name.
func (s *stage) apiServer(name string) *apiServer {
	a := &apiServer{Server: fakekube.New()}
	a.UID = name
	a.web = a.Start(s.T)
	s.mkdir(name)
	fakekube.WriteKubeconfig(s.T, filepath.Join(s.dir, name, "config"), a.web, "token-of-"+name)
	return a
}

// hostile starts an API server of the attacker. It answers nothing before the attack begins, and a watch that its
// evil has answered stays open.
func (s *stage) hostile(name string, does evil) *apiServer {
	a := s.apiServer(name)
	for kind, plural := range plurals {
		a.Define("networking.istio.io", kind, plural, "v1")
	}
	a.Define("example.com", "Widget", "widgets", "v1")
	a.Define("", "Namespace", "namespaces", "v1")
	a.Define("", "Service", "services", "v1")
	a.Define("", "Pod", "pods", "v1")
	a.Define("", "Node", "nodes", "v1")
	a.Define("discovery.k8s.io", "EndpointSlice", "endpointslices", "v1")
	a.Define("networking.k8s.io", "Ingress", "ingresses", "v1")
	a.Define("networking.k8s.io", "IngressClass", "ingressclasses", "v1")
	a.Namespace("selected", `{"mesh":"yes"}`)
	a.Set(func() {
		a.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			select {
			case <-s.begun:
			case <-r.Context().Done():
				return true
			}
			if does == nil {
				a.done.Add(1)
				return false
			}
			if !does(w, r) {
				return false
			}
			w.(http.Flusher).Flush()
			a.done.Add(1)
			if r.URL.Query().Get("watch") == "true" {
				<-r.Context().Done()
			}
			return true
		}
	})
	return a
}

// strike begins the attack of API servers, and waits until each has made it once.
func strike(s *stage, _ int) {
	close(s.begun)
	for i, a := range s.apis {
		s.await(fmt.Sprintf("the attack of west-%d", i), func() bool { return a.done.Load() > 0 })
	}
}

// changeNorth changes the object of the honest API server, and waits until a client has the change.
func (s *stage) changeNorth(c *client, n int) {
	was := c.get("north/orders")
	s.north.Put(entriesOf, fakekube.Object("north", "orders", fmt.Sprintf(`{"hosts":["orders.example"],"ports":[{"number":%d,"name":"http"}]}`, 81+n)))
	s.await("a later change of the honest API server to be served", func() bool { return c.get("north/orders") != was })
}

// path makes an attack of an answer to the requests for a path.
func path(suffix string, answer func(w http.ResponseWriter, r *http.Request)) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, suffix) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
		return true
	}
}

// answer is an answer of these parts.
func answer(parts ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { send(w, parts...) }
}

// send sends the parts of an answer. It reports whether the relay reads on.
func send(w http.ResponseWriter, parts ...string) bool {
	for _, part := range parts {
		if _, err := io.WriteString(w, part); err != nil {
			return false
		}
	}
	return true
}

// asked is what the relay asks for of a collection.
type asked int

const (
	askedNothing asked = iota // or for what an honest server answers: one object at most, or changes
	askedList
	askedStream // a list, as the events of a watch
)

func askedOf(r *http.Request, plural string) asked {
	q := r.URL.Query()
	streams := q.Get("sendInitialEvents") == "true"
	switch {
	case !strings.HasSuffix(r.URL.Path, "/"+plural):
		return askedNothing
	case streams:
		return askedStream
	case q.Get("watch") == "true", q.Get("resourceVersionMatch") != "":
		return askedNothing
	}
	return askedList
}

// bookmark ends the list in a stream.
const bookmark = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"200","annotations":{"k8s.io/initial-events-end":"true"}}}}`

// anyOf makes one attack of several: the first one that fits a request answers it.
func anyOf(some ...evil) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		return slices.ContainsFunc(some, func(does evil) bool { return does(w, r) })
	}
}

// objects makes an attack of a list of n objects.
func objects(plural string, n int, one func(i int) string) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch askedOf(r, plural) {
		case askedNothing:
			return false
		case askedStream:
			for i := range n {
				if !send(w, `{"type":"ADDED","object":`, one(i), "}\n") {
					return true
				}
			}
			send(w, bookmark)
		case askedList:
			send(w, `{"kind":"List","metadata":{"resourceVersion":"200"},"items":[`)
			for i := range n {
				if i > 0 && !send(w, ",") || !send(w, one(i)) {
					return true
				}
			}
			send(w, `]}`)
		}
		return true
	}
}

// events makes an attack of n events after a list of nothing.
func events(plural string, n int, one func(i int) string) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch askedOf(r, plural) {
		case askedStream:
			send(w, bookmark)
			for i := range n {
				if !send(w, one(i), "\n") {
					return true
				}
			}
			return true
		case askedList:
			send(w, `{"kind":"List","metadata":{"resourceVersion":"200"},"items":[]}`)
			return true
		}
		return false
	}
}

// named returns an object with a name, and more of its metadata and of itself.
func named(namespace, name, metadata, more string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q%s}%s}`, namespace, name, metadata, more)
}
