package promotion

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestTooManyObjectsAreRefusedBeforeAnythingChanges(t *testing.T) {
	s := newServer()
	n := 0
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "serviceentries") {
			var items []string
			for range 2000 {
				n++
				items = append(items, fmt.Sprintf(`{"metadata":{"name":"a%d","uid":"u%d"}}`, n, n))
			}
			fmt.Fprintf(w, `{"metadata":{"continue":"%d"},"items":[%s]}`, n, strings.Join(items, ","))
			return true
		}
		return false
	}
	version := s.Version
	_, err := Promote(t.Context(), options(t, connOf(s)))
	if err == nil || !strings.Contains(err.Error(), "sink dr has more than 100000 objects") || s.Version != version || n > 110_000 {
		t.Errorf("%d objects are read, %v", n, err)
	}
}

func TestListsHaveAsManyObjectsAsMayBePromoted(t *testing.T) {
	s := newServer()
	r := newRun(options(t, connOf(s)))
	found := map[uint64]object{}
	add := func(n int) (int, error) {
		for range n {
			found[uint64(len(found))*0x9E3779B97F4A7C15] = object{}
		}
		return r.enlist(t.Context(), found)
	}
	for _, n := range []int{1, perList - 1, 1, 50_000 - 1, 50_000 - perList} {
		if all, err := add(n); err != nil || all != len(found) {
			t.Fatal(all, err)
		}
		version := s.Version
		if all, err := add(0); err != nil || all != len(found) || s.Version != version {
			t.Fatal(all, err)
		}
	}
	for len(found) < MaxObjects {
		if _, err := add(MaxObjects - len(found)); err != nil {
			t.Fatal(err)
		}
	}
	lists, err := r.lists(t.Context())
	if set := listed(lists); err != nil || len(set) != MaxObjects {
		t.Errorf("%d objects, %v", len(set), err)
	}
	for _, l := range lists {
		if text, _ := json.Marshal(l.BinaryData); len(text) > 512<<10+64 {
			t.Errorf("%s has %d bytes", l.Metadata.Name, len(text))
		}
	}
	if _, err := add(1); err == nil {
		t.Error("one more is listed")
	}
	lists[1].BinaryData = map[string][]byte{"mine": []byte("x")}
	if err := lists[1].save(t.Context(), r.Conn()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.lists(t.Context()); err == nil || !strings.Contains(err.Error(), "is not a list of sink dr") {
		t.Error(err)
	}
}
