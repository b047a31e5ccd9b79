package kubernetes

import (
	"net"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams"
)

// A watch may be silent for as long as it likes, so that only a ping tells that its connection is dead.
func TestAConnectionThatIsHalfOpenIsNoticed_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &freezer{}
		f.frozen.Store(&atomic.Bool{})
		s := newAPIServer(t, func(h *httptest.Server) { f.Listener, h.Listener = h.Listener, f })
		s.pace = usual
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		served := w.has()
		await.Pass(time.Hour)
		if st := w.status(); st.State != upstreams.StateSynced || !st.InContact {
			t.Errorf("after an hour of silence: %s: %s", st.State, st.LastError)
		}
		f.frozen.Load().Store(true)
		s.entry("shop/b", "b.x") // nobody is told
		await.Pass(time.Minute + usual.grace)
		if st := w.status(); st.State != upstreams.StateDisconnected || !slices.Equal(w.has(), served) {
			t.Errorf("after a minute of a half-open connection: %s: %s, served: %q, want %q", st.State, st.LastError, w.has(), served)
		}
		f.frozen.Store(&atomic.Bool{})
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.synced()
	})
}

// freezer has what a server writes to frozen connections arrive nowhere.
type freezer struct {
	net.Listener
	frozen atomic.Pointer[atomic.Bool] // of the connections that begin now
}

// Accept implements net.Listener.
func (f *freezer) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	return frosty{c, f.frozen.Load()}, err
}

type frosty struct {
	net.Conn
	frozen *atomic.Bool
}

// Write implements net.Conn.
func (c frosty) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}
