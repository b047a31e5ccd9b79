package sink

import (
	"testing"
	"testing/synctest"

	"meshrelay/mirror"
)

// TestASinkWritesNoAllocatedAddresses: the cluster allocates its own.
func TestASinkWritesNoAllocatedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := entry(t, "east", "shop", "db", "db.x", nil).Spec()
		s.Annotations = map[string]string{mirror.AllocatedAnnotation: "240.240.0.1"}
		s.Body.Value = append(s.Body.Value, "\x12\x0b240.240.0.1\x12\x0810.0.0.1"...)
		r, err := mirror.New(s)
		if err != nil {
			t.Fatal(err)
		}
		w.stores["east"].Put(r)
		w.start().settled()
		o := w.object("db")
		if got, _ := at(o, "spec", "addresses").([]any); len(got) != 1 || got[0] != "10.0.0.1" {
			t.Errorf("it has written %v", o["spec"])
		}
		if at(o, "metadata", "annotations", mirror.AllocatedAnnotation) != nil {
			t.Error("it has written the annotation")
		}
	})
}
