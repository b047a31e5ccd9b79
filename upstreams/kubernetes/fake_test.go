package kubernetes

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// apiServer is an API server in this process, as far as a source asks it: discovery, lists in pages
// and as streams, watches with bookmarks, and what goes wrong with them.
type apiServer struct {
	pace pace // of the sources that mirror it
	t    *testing.T
	http *httptest.Server

	mu       sync.Mutex
	uid      string              // of kube-system, empty for one that we may not read
	kinds    map[string][]string // plurals with versions, by group
	kind     map[string]string   // by "group/plural"
	objects  map[string]map[string]map[string]any
	events   []fakeEvent
	rv       int
	oldest   int           // events up to this version are compacted
	changed  chan struct{} // closed at each change
	token    string        // empty: any
	requests []string
	// fault, where it returns true, has answered a request.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// noStreams is a server of before streaming lists; cut ends such streams in the middle.
	noStreams, cut bool
	noAggregation  bool
	stops          int  // of the server: each ends the watches as usual
	tells          bool // that a definition has changed
}

type fakeEvent struct {
	rv     int
	of     string // "group/plural"
	kind   string
	object map[string]any
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		pace: quick, t: t, uid: "one", kinds: map[string][]string{}, kind: map[string]string{}, objects: map[string]map[string]map[string]any{},
		rv: 100, changed: make(chan struct{}),
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.EnableHTTP2 = true
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.http.StartTLS()
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	return s
}

// define has the server serve a kind in some versions, none to serve it no longer.
func (s *apiServer) define(group, kind, plural string, versions ...string) {
	s.set(func() { s.defineLocked(group, kind, plural, versions) })
	if s.tells {
		s.put("apiextensions.k8s.io/customresourcedefinitions", map[string]any{"metadata": map[string]any{"name": plural + "." + group}})
	}
}

func (s *apiServer) defineLocked(group, kind, plural string, versions []string) {
	s.kind[group+"/"+plural] = kind
	all := slices.DeleteFunc(s.kinds[group], func(v string) bool { return strings.HasPrefix(v, plural+" ") })
	for _, v := range versions {
		all = append(all, plural+" "+v)
	}
	s.kinds[group] = all
}

// tellsDefinitions has the server let definitions be watched.
func (s *apiServer) tellsDefinitions() {
	s.define("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", "v1")
	s.tells = true
}

// namespace creates or changes a namespace.
func (s *apiServer) namespace(name, labels string) {
	s.put("/namespaces", map[string]any{"metadata": merged(map[string]any{"name": name, "creationTimestamp": "2024-02-03T04:05:06Z"}, `{"labels":`+labels+`}`)})
}

func merged(o map[string]any, text string) map[string]any {
	merge(o, text)
	return o
}

// set changes fields of the server.
func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func objectOf(namespace, name, spec string, more ...string) map[string]any {
	text := fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"creationTimestamp":"2024-02-03T04:05:06Z"},"spec":%s}`, namespace, name, spec)
	o := map[string]any{}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	for _, m := range more { // JSON to merge
		merge(o, m)
	}
	return o
}

func merge(into map[string]any, text string) {
	var from map[string]any
	if err := json.Unmarshal([]byte(text), &from); err != nil {
		panic(err)
	}
	var deep func(to, from map[string]any)
	deep = func(to, from map[string]any) {
		for k, v := range from {
			if m, ok := v.(map[string]any); ok {
				if sub, ok := to[k].(map[string]any); ok {
					deep(sub, m)
					continue
				}
			}
			to[k] = v
		}
	}
	deep(into, from)
}

const entries = "networking.istio.io/serviceentries"

// put creates or changes an object of a collection, "group/plural".
func (s *apiServer) put(of string, o map[string]any) {
	s.set(func() {
		meta := o["metadata"].(map[string]any)
		key := fmt.Sprint(meta["namespace"], "/", meta["name"])
		if s.objects[of] == nil {
			s.objects[of] = map[string]map[string]any{}
		}
		kind := "ADDED"
		if s.objects[of][key] != nil {
			kind = "MODIFIED"
		}
		s.rv++
		meta["resourceVersion"] = strconv.Itoa(s.rv)
		s.objects[of][key] = o
		s.events = append(s.events, fakeEvent{rv: s.rv, of: of, kind: kind, object: o})
	})
}

// entry creates or changes a ServiceEntry.
func (s *apiServer) entry(name, host string, more ...string) {
	namespace, name, _ := strings.Cut(name, "/")
	s.put(entries, objectOf(namespace, name, fmt.Sprintf(`{"hosts":[%q]}`, host), more...))
}

// remove deletes an object.
func (s *apiServer) remove(of, key string) {
	s.set(func() {
		s.rv++
		s.events = append(s.events, fakeEvent{rv: s.rv, of: of, kind: "DELETED", object: s.objects[of][key]})
		delete(s.objects[of], key)
	})
}

// compact has the server know no events of before.
func (s *apiServer) compact() {
	s.set(func() { s.oldest, s.events = s.rv, nil })
}

// asked returns how many requests have all of some parts.
func (s *apiServer) asked(parts ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(r, part) }) {
			n++
		}
	}
	return n
}

func fail(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"scripted"}`, code, reason)
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.URL.Path+"?"+r.URL.RawQuery)
	fault, token, uid := s.fault, s.token, s.uid
	s.mu.Unlock()
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		fail(w, 401, "Unauthorized")
		return
	}
	if fault != nil && fault(w, r) {
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/readyz":
	case r.URL.Path == "/api/v1/namespaces/kube-system":
		if uid == "" {
			fail(w, 403, "Forbidden")
			return
		}
		fmt.Fprintf(w, `{"metadata":{"name":"kube-system","uid":%q}}`, uid)
	case r.URL.Path == "/apis":
		s.discovery(w)
	case parts[0] == "api" && len(parts) == 3:
		s.collection(w, r, "", parts[1], parts[2], "")
	case parts[0] == "api" && len(parts) == 5:
		s.collection(w, r, "", parts[1], parts[4], parts[3])
	case len(parts) == 3:
		s.resources(w, parts[1], parts[2])
	case len(parts) == 4:
		s.collection(w, r, parts[1], parts[2], parts[3], "")
	case len(parts) == 6:
		s.collection(w, r, parts[1], parts[2], parts[5], parts[4])
	default:
		fail(w, 404, "NotFound")
	}
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *apiServer) discovery(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	if s.noAggregation {
		write(w, m{"kind": "APIGroupList", "groups": groups})
		return
	}
	write(w, m{"kind": "APIGroupDiscoveryList", "items": items})
}

// resources is discovery as older servers have it.
func (s *apiServer) resources(w http.ResponseWriter, group, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type m = map[string]any
	var all []any
	for _, pv := range s.kinds[group] {
		if plural, v, _ := strings.Cut(pv, " "); v == version {
			all = append(all, m{"name": plural, "kind": s.kind[group+"/"+plural], "namespaced": true, "verbs": []string{"get", "list", "watch"}},
				m{"name": plural + "/status", "kind": s.kind[group+"/"+plural], "namespaced": true, "verbs": []string{"get"}})
		}
	}
	write(w, m{"kind": "APIResourceList", "resources": all})
}

func (s *apiServer) collection(w http.ResponseWriter, r *http.Request, group, version, plural, namespace string) {
	s.mu.Lock()
	served := slices.Contains(s.kinds[group], plural+" "+version)
	noStreams, newest := s.noStreams, s.rv
	s.mu.Unlock()
	of, q := group+"/"+plural, r.URL.Query()
	if at, _ := strconv.Atoi(q.Get("resourceVersion")); at > newest && q.Get("resourceVersionMatch") == "NotOlderThan" {
		w.WriteHeader(http.StatusGatewayTimeout)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","code":504,"reason":"Timeout","message":"Too large resource version","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]}}`)
		return
	}
	switch {
	case !served:
		fail(w, 404, "NotFound")
	case q.Get("watch") == "true" && q.Get("sendInitialEvents") == "true" && noStreams:
		fail(w, 422, "Invalid")
	case q.Get("watch") == "true":
		s.watch(w, r, of, namespace)
	default:
		s.list(w, q.Get("limit"), q.Get("continue"), of, namespace)
	}
}

func in(o map[string]any, namespace string) bool {
	return namespace == "" || o["metadata"].(map[string]any)["namespace"] == namespace
}

func (s *apiServer) list(w http.ResponseWriter, limit, after, of, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ := strconv.Atoi(limit)
	items, next := []any{}, ""
	for _, key := range slices.Sorted(maps.Keys(s.objects[of])) {
		if key <= after || !in(s.objects[of][key], namespace) {
			continue
		}
		if n > 0 && len(items) == n {
			break
		}
		items = append(items, s.objects[of][key])
		if next = ""; n > 0 && len(items) == n {
			next = key
		}
	}
	if next != "" && next == slices.Max(slices.Collect(maps.Keys(s.objects[of]))) {
		next = ""
	}
	write(w, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.rv), "continue": next}, "items": items})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, of, namespace string) {
	enc := json.NewEncoder(w)
	send := func(kind string, o any) {
		_ = enc.Encode(map[string]any{"type": kind, "object": o})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	stops := s.stops
	if initial {
		for _, key := range slices.Sorted(maps.Keys(s.objects[of])) {
			if in(s.objects[of][key], namespace) {
				send("ADDED", s.objects[of][key])
			}
		}
		if s.cut {
			s.mu.Unlock()
			return
		}
		at = s.rv
		send("BOOKMARK", map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(at), "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}})
	}
	for {
		if s.stops != stops {
			s.mu.Unlock()
			return
		}
		if at < s.oldest {
			send("ERROR", map[string]any{"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"})
			s.mu.Unlock()
			return
		}
		for _, e := range s.events {
			if e.rv > at && e.of == of && in(e.object, namespace) {
				send(e.kind, e.object)
			}
		}
		at = max(at, s.rv) // a watch from what is not yet waits for it
		changed := s.changed
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		s.mu.Lock()
	}
}

// drop ends all connections.
func (s *apiServer) drop() { s.http.CloseClientConnections() }

// kubeconfig writes a kubeconfig for the server.
func (s *apiServer) kubeconfig(token string) string {
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	writeKubeconfig(s.t, path, s.http, token)
	return path
}

func writeKubeconfig(t *testing.T, path string, server *httptest.Server, token string) {
	t.Helper()
	ca := filepath.Join(filepath.Dir(path), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: east, cluster: {server: %q, certificate-authority: ca.crt}}]
users: [{name: relay, user: {token: %q}}]
contexts: [{name: east, context: {cluster: east, user: relay}}]
current-context: east
`, server.URL, token)
	for name, data := range map[string][]byte{ca: block, path: []byte(text)} {
		// A source reads at any time, and half a certificate would be another one.
		if err := os.WriteFile(name+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
}

// world is a relay's upstream of an API server.
type world struct {
	*apiServer
	t         *testing.T
	manager   *upstreams.Manager
	aggregate *mirror.Aggregate
	source    *Source
	path      string // of the kubeconfig
}

// quick is a pace for tests.
var quick = pace{
	look: 5 * time.Millisecond, discover: 20 * time.Millisecond, soon: 5 * time.Millisecond, reread: 10 * time.Millisecond,
	gone: 50 * time.Millisecond, verified: time.Millisecond, retry: 4 * time.Millisecond, retryMost: 50 * time.Millisecond, grace: 20 * time.Millisecond, forgive: time.Hour,
}

// mirrors runs an upstream of the server. settings are YAML of the section, and more of the upstream.
func (s *apiServer) mirrors(settings, more string) *world {
	s.t.Helper()
	w := &world{apiServer: s, t: s.t, aggregate: mirror.NewAggregate()}
	w.path = s.kubeconfig("t")
	cfg := w.config(settings, more)
	kind := Kind()
	kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		w.source = New(u, env)
		w.source.pace = s.pace
		return w.source, nil
	}
	var err error
	w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	w.run(w.manager.Run, w.aggregate.Run)
	return w
}

// config returns a config with that upstream.
func (w *world) config(settings, more string) *config.Config {
	w.t.Helper()
	text := fmt.Sprintf("upstreams:\n- name: east\n  kubernetes: {kubeconfig: %q%s}\n%sdownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\nnode: {id: hub}\n", w.path, settings, more)
	cfg, err := config.Parse("relay.yaml", []byte(text), &Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// reload applies another config of the upstream.
func (w *world) reload(settings, more string) {
	w.t.Helper()
	if err := w.manager.Apply(w.config(settings, more)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status() upstreams.Status { return w.manager.Status()[0] }

// has returns what is served: "group/Kind namespace/name=version" where versions is true.
func (w *world) has() (all []string) {
	for _, kind := range w.aggregate.Kinds() {
		for _, r := range w.aggregate.List(kind, "") {
			all = append(all, kind.Kind+" "+r.FullName())
		}
	}
	slices.Sort(all)
	return all
}

// eventually waits for a condition.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	deadline, tick := time.After(20*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			w.t.Fatalf("%s: it is not so: %s: served %q, status %+v", w.t.Name(), what, w.has(), w.status())
		case <-tick.C:
		}
	}
}

func (w *world) serves(want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.eventually(fmt.Sprintf("it serves %q", want), func() bool { return slices.Equal(w.has(), want) })
}

func (w *world) synced() {
	w.t.Helper()
	w.eventually("it is synced", func() bool { return w.status().State == upstreams.StateSynced })
}
