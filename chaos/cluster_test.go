package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// lists asks a cluster for all pages of a kind, without a network in between.
func lists(t *testing.T, c *cluster, kind int) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/"+kinds[kind].group+"/v1/"+collections[kind], nil)
	r.Header.Set("Authorization", "Bearer "+c.token())
	if c.serve(w, r); w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
}

// newest returns what a source has sent of a key last.
func newest(s *source, key int) entry {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.items[key].newest
}

func TestAnAPIServerRecordsWhatItSendsOfItsSource(t *testing.T) {
	w := newWorld([]string{"east"}, 40, 1, newJournal(t.Output()))
	c, err := newCluster("east", w.sources[0], "127.0.0.1:0", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(key int) {
		t.Helper()
		do(w.put(0, key))
		do(c.follow(key))
	}
	is := func(what string, key, seq int, gone bool) {
		t.Helper()
		if e := newest(c.source, key); e.seq != seq || e.gone != gone {
			t.Errorf("%s: it has sent %+v last", what, e)
		}
	}
	put(0)
	put(4)
	is("nobody has asked", 0, 0, true)
	lists(t, c, 0)
	is("a list", 0, 1, false)

	do(c.spoil(func(key int) bool { return key == 0 }))
	put(0)
	lists(t, c, 0)
	is("a content that can not be decoded", 0, 1, false)
	do(c.spoil(nil))
	lists(t, c, 0)
	is("a content that can be decoded again", 0, 2, false)

	for _, uid := range []string{ownUID, otherUID} {
		do(c.stray(uid, 1))
		put(8)
		lists(t, c, 0)
		is("a server that went astray", 0, 2, false)
		is("a server that went astray", 8, 0, true)
		w.remove(0, 8, 0)
		do(c.follow(8))
		do(c.restore(1000))
	}
	w.remove(0, 0, 0)
	do(c.follow(0))
	is("nobody has asked again", 0, 2, false)
	lists(t, c, 0)
	is("a list without it", 0, 2, true)
	is("a list", 4, 1, false)
}

func TestOnlyContentsThatAreSpoiltAreMarked(t *testing.T) {
	c := &cluster{source: &source{name: "east"}, spoils: func(key int) bool { return key != 1 }}
	for how := range 5 {
		c.how = how
		o, err := c.object(0, 1)
		if err != nil || o[spoiltField] == nil {
			t.Errorf("%d: %v, %v", how, o, err)
		}
	}
	if o, err := c.object(1, 1); err != nil || o[spoiltField] != nil {
		t.Errorf("%v, %v", o, err)
	}
}
