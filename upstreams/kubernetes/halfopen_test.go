package kubernetes

import (
	"io"
	"net"
	"sync"
	"testing"
)

// valve is a way to a server on which all that is sent can get lost while connections stay open, as
// behind a firewall that has forgotten them.
type valve struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu    sync.Mutex // guards the next two
	lost  chan struct{}
	conns []net.Conn
}

func newValve(t *testing.T, to string) *valve {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{listener: l, to: to, lost: make(chan struct{})}
	v.running.Go(v.accept)
	t.Cleanup(func() {
		l.Close()
		v.mu.Lock()
		for _, c := range v.conns {
			c.Close()
		}
		v.mu.Unlock()
		v.running.Wait()
	})
	return v
}

func (v *valve) accept() {
	for {
		near, err := v.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", v.to)
		if err != nil {
			near.Close()
			continue
		}
		v.mu.Lock()
		lost := v.lost
		v.conns = append(v.conns, near, far)
		v.mu.Unlock()
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			v.running.Go(func() { carry(way[0], way[1], lost) })
		}
	}
}

// carry copies what comes, and drops it once it gets lost.
func carry(from, to net.Conn, lost <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-lost:
			_, _ = io.Copy(io.Discard, from)
			return
		default:
		}
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			from.Close()
			to.Close()
			return
		}
	}
}

// shut has all get lost that goes over the connections of now. Others work.
func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.lost)
	v.lost = make(chan struct{})
}

// A watch may be silent for as long as it likes, so that only a ping tells that its connection is dead.
func TestAConnectionThatIsHalfOpenIsNoticed_K4(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1") // half a minute
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")      // 15 s
	s := newAPIServer(t)
	v := newValve(t, s.http.Listener.Addr().String())
	s.http.URL = "https://" + v.listener.Addr().String()
	s.entry("shop/a", "a.x")
	w := s.mirrors("", "")
	w.synced()
	v.shut()
	s.entry("shop/b", "b.x") // nobody is told
	w.eventually("the change is there", func() bool {
		has := w.has()
		if len(has) == 0 || has[0] != "ServiceEntry shop/a" {
			t.Fatalf("served: %q", has)
		}
		return len(has) == 2
	})
	w.synced()
}
