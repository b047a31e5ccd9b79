package kubernetes

import (
	"slices"
	"testing"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/testing/fakenet"
	"meshrelay/upstreams"
)

// A watch may be silent for as long as it likes, so that only a ping tells that its connection is dead.
func TestAConnectionThatIsHalfOpenIsNoticed_K4(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1") // half a minute
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")      // 15 s
	s := newAPIServer(t)
	direct := s.http.URL
	p := fakenet.Start(t, s.http.Listener.Addr().String())
	s.http.URL = "https://" + p.Addr
	s.entry("shop/a", "a.x")
	w := s.mirrors("", "")
	w.synced()
	served := w.has()
	p.Freeze()
	s.entry("shop/b", "b.x") // nobody is told
	w.eventually("it is noticed", func() bool {
		if has := w.has(); !slices.Equal(has, served) {
			t.Fatalf("served: %q, want %q", has, served)
		}
		return w.status().State == upstreams.StateDisconnected
	})
	s.http.URL = direct
	fakekube.WriteKubeconfig(t, w.path, s.http, "t")
	w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	w.synced()
}
