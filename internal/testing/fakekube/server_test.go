package fakekube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

const (
	path    = "/apis/networking.istio.io/v1/serviceentries"
	entries = "networking.istio.io/serviceentries"
)

// page asks for a page of a list, and returns the names on it and the token of the next one.
func page(t *testing.T, s *Server, query string) (names []string, next string, code int) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path+"?"+query, nil))
	var list struct {
		Metadata struct{ Continue string }
		Items    []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	for _, o := range list.Items {
		names = append(names, o.Metadata.Name)
	}
	return names, list.Metadata.Continue, w.Code
}

func withEntries(names ...string) *Server {
	s := New()
	for _, name := range names {
		s.Put(entries, Object("shop", name, `{"hosts":["a.x"]}`))
	}
	return s
}

func TestAllPagesShowTheMomentOfTheFirst(t *testing.T) {
	s := withEntries("a", "b", "c", "d", "e")
	s.Page = 2
	var sent []string
	s.Sent = func(x Sending) {
		for _, e := range x.Events {
			sent = append(sent, fmt.Sprint(x.Whole, e.Object["metadata"].(map[string]any)["name"]))
		}
	}
	got, next, _ := page(t, s, "limit=500")
	s.Put(entries, Object("shop", "aa", `{}`))
	s.Remove(entries, "shop/d")
	for next != "" {
		var more []string
		if more, next, _ = page(t, s, "limit=500&continue="+next); len(more) > 2 {
			t.Errorf("a page has %q", more)
		}
		got = append(got, more...)
	}
	if fmt.Sprint(got) != "[a b c d e]" {
		t.Errorf("the pages have %q", got)
	}
	if fmt.Sprint(sent) != "[truea trueb truec trued truee]" {
		t.Errorf("it has told that it sent %q", sent)
	}
}

func TestACompactionEndsListsAndOldWatches(t *testing.T) {
	s := withEntries("a", "b", "c")
	_, next, _ := page(t, s, "limit=1")
	s.Compact()
	if _, _, code := page(t, s, "limit=1&continue="+next); code != http.StatusGone {
		t.Errorf("a list of before goes on: %d", code)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path+"?watch=true&resourceVersion=101", nil))
	if !strings.Contains(w.Body.String(), `"code":410`) {
		t.Errorf("a watch of before goes on: %s", w.Body)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s := New()
	for range maxEvents + 10 {
		s.Put(entries, Object("shop", "a", `{}`))
	}
	if n := len(s.Events); n > maxEvents || s.oldest == 0 || s.Events[0].Version != s.oldest+1 {
		t.Errorf("it has %d events since %d", n, s.oldest)
	}
}

// TestAMatchOfVersionsNeedsAVersion: a real server refuses such a list, too.
func TestAMatchOfVersionsNeedsAVersion(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	for query, want := range map[string]int{
		"?resourceVersionMatch=NotOlderThan": http.StatusUnprocessableEntity, "?resourceVersionMatch=NotOlderThan&resourceVersion=100": http.StatusOK,
	} {
		resp, err := http.Get(s.URL + "/apis/networking.istio.io/v1/serviceentries" + query)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", query, resp.StatusCode, want)
		}
	}
}

func TestADeletedObjectHasTheVersionOfItsDeletion(t *testing.T) {
	s := withEntries("a", "b")
	s.Remove(entries, "shop/a")
	var versions []any
	s.sendSince(0, entries, "", labels.Everything(), func(kind string, o any) {
		if kind == "DELETED" {
			versions = append(versions, of(o.(map[string]any), "metadata", "resourceVersion"))
		}
	})
	if len(versions) != 1 || versions[0] != fmt.Sprint(s.Version) {
		t.Errorf("versions %v, want %d: a watch would continue before the newest event of the object", versions, s.Version)
	}
}
