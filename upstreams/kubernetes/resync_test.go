package kubernetes

import (
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

// TestALostDeletionIsFoundByTheNextList_K4: a server, or a proxy before it, has swallowed the event.
func TestALostDeletionIsFoundByTheNextList_K4(t *testing.T) {
	for name, lists := range map[string]func(w *world) error{
		"by an order": func(w *world) error {
			_, err := w.manager.Order(t.Context(), "east", "resync", intake.Order{})
			return err
		},
		"within hours": func(*world) error { await.Pass(6 * time.Hour); return nil },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.pace = usual
			s.entry("shop/a", "a.x")
			s.entry("shop/b", "b.x")
			w := s.mirrors("", "  guard: {percent: 100}\n")
			w.synced()
			s.Set(func() { delete(s.Objects[entries], "shop/a") })
			w.arrives("c")
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/c")
			if err := lists(w); err != nil {
				t.Fatal(err)
			}
			w.serves("ServiceEntry shop/b", "ServiceEntry shop/c")
		})
	}
}
