package mirror

import (
	"math/rand/v2"
	"testing"
)

func TestStoresWithTheSameResourcesHaveTheSameContentWhateverTheirPast(t *testing.T) {
	make := func(name, host string) *Resource { return entry(t, "east", name, host) }
	all := []*Resource{make("a", "1"), make("b", "1"), make("c", "1")}
	begun := NewStore()
	begun.Begin(append([]*Resource{make("a", "0")}, all...)) // of two with one key the last stays
	changed := NewStore()
	changed.Put(make("a", "old"))
	changed.Put(make("gone", "1"))
	for _, i := range rand.Perm(len(all)) {
		changed.Put(all[i])
	}
	changed.Remove(make("gone", "1").Key())
	if begun.Content() != changed.Content() || len(begun.Content()) != 32 {
		t.Errorf("%s, and %s", begun.Content(), changed.Content())
	}
	other := NewStore()
	other.Begin([]*Resource{make("a", "1"), make("b", "1"), make("d", "1")})
	if other.Content() == begun.Content() {
		t.Error("another resource is no other content")
	}
	if empty := NewStore().Content(); empty == begun.Content() {
		t.Error("an empty store has the same content")
	}
}
