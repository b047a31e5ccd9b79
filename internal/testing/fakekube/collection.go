package fakekube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// serves reports whether a kind is served in a version. The caller holds the lock.
func (s *Server) serves(p place) bool {
	return slices.Contains(s.kinds[p.group], p.plural+" "+p.version)
}

// Collection answers a request for the objects of a kind, in one namespace, or in all if it is empty.
func (s *Server) Collection(w http.ResponseWriter, r *http.Request, group, version, plural, namespace string) {
	s.Lock()
	serves := func() bool { return s.serves(place{group: group, version: version, plural: plural}) }
	served := serves()
	noStreams, newest, selects := s.NoStreams, s.Version, s.Selects
	s.Unlock()
	of, q := group+"/"+plural, r.URL.Query()
	selected, err := labels.Parse(q.Get("labelSelector"))
	if !selects {
		selected = labels.Everything()
	}
	from, match := q.Get("resourceVersion"), q.Get("resourceVersionMatch")
	if at, _ := strconv.Atoi(from); at > newest && match == "NotOlderThan" {
		w.WriteHeader(http.StatusGatewayTimeout)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","code":504,"reason":"Timeout","message":"Too large resource version","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]}}`)
		return
	}
	switch {
	case err != nil:
		Fail(w, http.StatusBadRequest, "BadRequest")
	case match != "" && from == "" && q.Get("watch") != "true":
		Fail(w, http.StatusUnprocessableEntity, "Invalid") // a match needs a version
	case !served:
		Fail(w, http.StatusNotFound, "NotFound")
	case q.Get("watch") == "true" && q.Get("sendInitialEvents") == "true" && noStreams:
		Fail(w, http.StatusUnprocessableEntity, "Invalid")
	case q.Get("watch") != "true" && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;"):
		Fail(w, http.StatusNotAcceptable, "NotAcceptable") // as a real server does for any other named form
	case q.Get("watch") == "true":
		s.watch(w, r, of, namespace, selected, serves)
	default:
		s.list(w, q.Get("limit"), q.Get("continue"), of, namespace, selected)
	}
}

func in(o map[string]any, namespace string) bool {
	return namespace == "" || o["metadata"].(map[string]any)["namespace"] == namespace
}

// has reports whether the labels of an object are selected.
func has(o map[string]any, selected labels.Selector) bool {
	u := unstructured.Unstructured{Object: o}
	return selected.Empty() || selected.Matches(labels.Set(u.GetLabels()))
}

// all returns the objects of a collection, sorted by name. The caller holds the lock.
func (s *Server) all(of, namespace string, selected labels.Selector) (items []map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(s.Objects[of])) {
		if o := s.Objects[of][key]; in(o, namespace) && has(o, selected) {
			items = append(items, o)
		}
	}
	return items
}

// tellWhole calls Sent with all objects of a collection. The caller holds the lock.
func (s *Server) tellWhole(of string, items []map[string]any) {
	if s.Sent == nil {
		return
	}
	sending := Sending{Of: of, Whole: true}
	for _, o := range items {
		sending.Events = append(sending.Events, Event{Version: s.Version, Of: of, Kind: "ADDED", Object: o})
	}
	s.Sent(sending)
}

// list answers a page of a list. All pages have the objects that existed at the first request.
func (s *Server) list(w http.ResponseWriter, limit, token, of, namespace string, selected labels.Selector) {
	s.Lock()
	defer s.Unlock()
	left, known := s.lists[token]
	switch {
	case token == "":
		left = rest{version: s.Version, items: s.all(of, namespace, selected)}
		s.tellWhole(of, left.items)
	case !known:
		Fail(w, http.StatusGone, "Expired")
		return
	}
	items, next := left.items, ""
	n, _ := strconv.Atoi(limit)
	if s.Page > 0 {
		n = min(n, s.Page)
	}
	if n > 0 && len(items) > n {
		if len(s.lists) >= maxLists {
			clear(s.lists)
		}
		s.tokens++
		next = strconv.Itoa(s.tokens)
		items, s.lists[next] = items[:n], rest{left.version, items[n:]}
	}
	if items == nil {
		items = []map[string]any{}
	}
	write(w, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(left.version), "continue": next}, "items": items})
}

// watch answers with the events of a collection until the client leaves or the server ends the watch.
// The server also ends it when it stops serving the collection.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, of, namespace string, selected labels.Selector, serves func() bool) {
	enc := json.NewEncoder(w)
	send := func(kind string, o any) {
		_ = enc.Encode(map[string]any{"type": kind, "object": o}) // the client may be gone
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.Lock()
	defer s.Unlock()
	stops := s.Stops
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		items := s.all(of, namespace, selected)
		for _, o := range items {
			send("ADDED", o)
		}
		if s.Cut {
			return
		}
		at = s.Version
		s.tellWhole(of, items)
		send("BOOKMARK", map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(at), "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}})
	}
	for s.Stops == stops && serves() {
		if at < s.oldest && !s.Silent {
			send("ERROR", map[string]any{"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"})
			return
		}
		if !s.Silent {
			at = s.sendSince(at, of, namespace, selected, send)
		}
		changed := s.changed
		s.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-changed:
		}
		s.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

// sendSince sends the events after a version, and returns the version to continue from. A watch from a
// future version waits for it. The caller holds the lock.
func (s *Server) sendSince(at int, of, namespace string, selected labels.Selector, send func(kind string, o any)) int {
	sending := Sending{Of: of}
	first, _ := slices.BinarySearchFunc(s.Events, at+1, func(e Event, version int) int { return e.Version - version })
	for _, e := range s.Events[first:] {
		if e.Of != of || !in(e.Object, namespace) {
			continue
		}
		switch was, is := e.old != nil && has(e.old, selected), e.Kind != "DELETED" && has(e.Object, selected); {
		case was && !is:
			send("DELETED", e.Object)
		case is && !was:
			send("ADDED", e.Object)
		case is:
			send(e.Kind, e.Object)
		}
		if has(e.Object, selected) {
			sending.Events = append(sending.Events, e)
		}
	}
	if s.Sent != nil && len(sending.Events) > 0 {
		s.Sent(sending)
	}
	return max(at, s.Version)
}
