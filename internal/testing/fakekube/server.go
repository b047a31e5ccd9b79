// Package fakekube is an API server of a cluster for tests. It serves discovery, lists in pages and
// as streams, and watches with bookmarks, and carries out writes. Tests can make it misbehave.
//
// The package is for tests only.
package fakekube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Server is an API server and an http.Handler. Any goroutine may call its methods. Change its fields
// only in Set.
type Server struct {
	sync.Mutex // guards all below

	UID string // of the namespace kube-system; empty: nobody may read it
	// Objects has the objects of each collection, "group/plural", by "namespace/name".
	Objects map[string]map[string]map[string]any
	Events  []Event // for watches
	Version int     // resourceVersion of the newest event
	Token   string  // that requests must have; empty: any
	// Fault may answer a request instead of the server: then it returns true. It is called without the lock.
	Fault func(w http.ResponseWriter, r *http.Request) bool
	// Sent is called with each response of a list or watch, with the lock held.
	Sent func(Sending)
	// NoStreams makes the server refuse streaming lists, as servers before 1.32 do. Cut ends such
	// streams in the middle.
	NoStreams, Cut bool
	NoAggregation  bool // discovery names groups only, as servers before 1.27 do
	Page           int  // limit of objects per page; 0: the limit of the request
	Silent         bool // watches send nothing, and do not end
	Stops          int  // an increment ends all watches normally
	Selects        bool // lists and watches heed label selectors
	NeedNamespaces bool // objects can be written only into namespaces that exist

	kinds    map[string][]string // plurals with versions, by group
	kind     map[string]string   // by "group/plural"
	oldest   int                 // events up to this version are compacted
	changed  chan struct{}       // closed at each change
	requests []string            // the newest maxRequests: method, path and query
	lists    map[string]rest     // unfinished lists, by token
	tokens   int
	uids     int
}

const (
	maxRequests = 1 << 16
	maxEvents   = 1 << 13 // older ones are compacted
	maxLists    = 64
)

// Event is a change of an object.
type Event struct {
	Version int
	Of      string // "group/plural"
	Kind    string // ADDED, MODIFIED or DELETED
	Object  map[string]any
	old     map[string]any // what it was before, nil if it was not
}

// Sending is the content of a response: events of a collection, or all its objects if Whole is set.
type Sending struct {
	Of     string
	Whole  bool
	Events []Event
}

// rest is the unread part of a list.
type rest struct {
	version int
	items   []map[string]any
}

// New returns a server with the kind ServiceEntry and no objects.
func New() *Server {
	s := &Server{
		UID: "one", kinds: map[string][]string{}, kind: map[string]string{}, Objects: map[string]map[string]map[string]any{},
		Version: 100, changed: make(chan struct{}), lists: map[string]rest{},
	}
	s.Define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	return s
}

// Define makes the server serve a kind in some versions, or stop serving it if there are none. Clients that watch
// definitions are told, if these are a kind that it serves.
func (s *Server) Define(group, kind, plural string, versions ...string) {
	const definitions = "customresourcedefinitions"
	tells := false
	s.Set(func() {
		s.kind[group+"/"+plural] = kind
		all := slices.DeleteFunc(s.kinds[group], func(v string) bool { return strings.HasPrefix(v, plural+" ") })
		for _, v := range versions {
			all = append(all, plural+" "+v)
		}
		s.kinds[group] = all
		tells = slices.Contains(s.kinds["apiextensions.k8s.io"], definitions+" v1") && plural != definitions
	})
	if tells {
		s.Put("apiextensions.k8s.io/"+definitions, map[string]any{"metadata": map[string]any{"name": plural + "." + group}})
	}
}

// Set changes fields of the server, and wakes the watches.
func (s *Server) Set(change func()) {
	s.Lock()
	defer s.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Put creates or changes an object of a collection, "group/plural".
func (s *Server) Put(of string, o map[string]any) {
	s.Set(func() { s.put(of, o) })
}

// put is Put with the lock held.
func (s *Server) put(of string, o map[string]any) {
	meta := o["metadata"].(map[string]any)
	key := fmt.Sprint(meta["namespace"], "/", meta["name"])
	if s.Objects[of] == nil {
		s.Objects[of] = map[string]map[string]any{}
	}
	kind, old := "ADDED", s.Objects[of][key]
	if old != nil {
		kind = "MODIFIED"
	}
	if meta["uid"] == nil && old != nil {
		meta["uid"] = old["metadata"].(map[string]any)["uid"]
	}
	if meta["uid"] == nil {
		s.uids++
		meta["uid"] = string(uidOf(s.uids))
	}
	s.Version++
	meta["resourceVersion"] = strconv.Itoa(s.Version)
	s.Objects[of][key] = o
	s.happened(Event{Version: s.Version, Of: of, Kind: kind, Object: o, old: old})
}

func uidOf(n int) types.UID { return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)) }

// Remove deletes the object with the key "namespace/name", if it exists.
func (s *Server) Remove(of, key string) {
	s.Set(func() { s.remove(of, key) })
}

// remove is Remove with the lock held.
func (s *Server) remove(of, key string) {
	o := s.Objects[of][key]
	if o == nil {
		return
	}
	s.Version++
	delete(s.Objects[of], key)
	gone, meta := maps.Clone(o), maps.Clone(o["metadata"].(map[string]any))
	meta["resourceVersion"] = strconv.Itoa(s.Version) // a watch continues from there
	gone["metadata"] = meta
	s.happened(Event{Version: s.Version, Of: of, Kind: "DELETED", Object: gone, old: o})
}

// happened records an event. The caller holds the lock.
func (s *Server) happened(e Event) {
	if s.Events = append(s.Events, e); len(s.Events) > maxEvents {
		cut := len(s.Events) / 2
		s.oldest = s.Events[cut-1].Version
		s.Events = append(s.Events[:0:0], s.Events[cut:]...)
	}
}

// Compact makes the server forget all events and unfinished lists.
func (s *Server) Compact() {
	s.Set(func() {
		s.Version++ // a watch from the newest version is refused as well
		s.oldest, s.Events = s.Version, nil
		clear(s.lists)
	})
}

// Backup returns a function that has the server have what it has now, with the versions of now, as after a restore of its
// etcd. It ends all watches.
func (s *Server) Backup() (restore func()) {
	s.Lock()
	defer s.Unlock()
	version, was := s.Version, map[string]map[string]map[string]any{}
	for of, all := range s.Objects {
		was[of] = maps.Clone(all)
	}
	return func() {
		s.Set(func() {
			s.Version, s.Objects, s.Events = version, was, nil
			clear(s.lists)
			s.Stops++
		})
	}
}

// Asked returns the number of requests that contain all parts.
func (s *Server) Asked(parts ...string) (n int) {
	s.Lock()
	defer s.Unlock()
	for _, r := range s.requests {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(r, part) }) {
			n++
		}
	}
	return n
}

// Fail answers a request with a Status.
func Fail(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"scripted"}`, code, reason)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	if s.requests = append(s.requests, r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery); len(s.requests) > maxRequests {
		s.requests = append(s.requests[:0:0], s.requests[maxRequests/2:]...)
	}
	fault, token, uid := s.Fault, s.Token, s.UID
	s.Unlock()
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		Fail(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	if fault != nil && fault(w, r) {
		return
	}
	if r.Method != http.MethodGet {
		s.change(w, r)
		return
	}
	p, ok := placeOf(r.URL.Path)
	switch {
	case r.URL.Path == "/readyz":
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"gitVersion":"v1.99.1"}`)
	case r.URL.Path == "/api/v1/namespaces/kube-system":
		if uid == "" {
			Fail(w, http.StatusForbidden, "Forbidden")
			return
		}
		fmt.Fprintf(w, `{"metadata":{"name":"kube-system","uid":%q}}`, uid)
	case r.URL.Path == "/apis":
		s.discovery(w)
	case ok && p.name != "":
		s.object(w, p.of(), p.key(p.name))
	case ok:
		s.Collection(w, r, p.group, p.version, p.plural, p.namespace)
	default:
		Fail(w, http.StatusNotFound, "NotFound")
	}
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// object answers a request for one object.
func (s *Server) object(w http.ResponseWriter, of, key string) {
	s.Lock()
	defer s.Unlock()
	if o := s.Objects[of][key]; o != nil {
		write(w, o)
		return
	}
	_, name, _ := strings.Cut(key, "/")
	group, plural, _ := strings.Cut(of, "/")
	refuse(w, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: plural}, name))
}

// refuse answers a request with an error.
func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(err.ErrStatus.Code))
	_ = json.NewEncoder(w).Encode(err.ErrStatus) // the client may be gone
}

// RoundTrip answers a request without a network, and without a goroutine: a test with synctest can use it.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	s.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func (s *Server) discovery(w http.ResponseWriter) {
	s.Lock()
	defer s.Unlock()
	type m = map[string]any
	items := []any{m{"metadata": m{"name": "apiextensions.k8s.io"}, "versions": []any{}}}
	groups := []any{m{"name": "apiextensions.k8s.io"}}
	for _, group := range slices.Sorted(maps.Keys(s.kinds)) {
		if group == "" || group == "apiextensions.k8s.io" {
			continue
		}
		var versions, names []any
		for _, pv := range s.kinds[group] {
			plural, version, _ := strings.Cut(pv, " ")
			versions = append(versions, m{"version": version, "freshness": "Current", "resources": []any{m{
				"resource": plural, "responseKind": m{"kind": s.kind[group+"/"+plural]}, "scope": "Namespaced", "verbs": []string{"get", "list", "watch"},
			}}})
			names = append(names, m{"groupVersion": group + "/" + version, "version": version})
		}
		if len(versions) > 0 {
			items = append(items, m{"metadata": m{"name": group}, "versions": versions})
			groups = append(groups, m{"name": group, "versions": names})
		}
	}
	if s.NoAggregation {
		write(w, m{"kind": "APIGroupList", "groups": groups})
		return
	}
	write(w, m{"kind": "APIGroupDiscoveryList", "items": items})
}
