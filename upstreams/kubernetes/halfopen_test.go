package kubernetes

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

// A watch may be silent for as long as it likes, so that only a ping tells that its connection is dead.
func TestAConnectionThatIsHalfOpenIsNoticed_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.pace = usual
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		served := w.has()
		await.Pass(time.Hour)
		if st := w.status(); st.State != upstreams.StateSynced || !st.InContact {
			t.Errorf("after an hour of silence: %s: %s", st.State, st.LastError)
		}
		fakekube.Freeze(s.http)
		s.entry("shop/b", "b.x") // nobody is told
		await.Pass(time.Minute + usual.grace)
		if st := w.status(); st.State != upstreams.StateDisconnected || !slices.Equal(w.has(), served) {
			t.Errorf("after a minute of a half-open connection: %s: %s, served: %q, want %q", st.State, st.LastError, w.has(), served)
		}
		fakekube.Thaw(s.http)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.synced()
	})
}
