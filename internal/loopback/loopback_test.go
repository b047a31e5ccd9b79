package loopback

import (
	"net"
	"testing"
)

// TestTheSourceOfASidecarsPassthroughIsNotLoopback: behind 127.0.0.6 is every client of a mesh.
func TestTheSourceOfASidecarsPassthroughIsNotLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.0.0.7:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true,
		"127.0.0.6:1": false, "[::ffff:127.0.0.6]:1": false, "[::6]:1": false, "10.0.0.1:1": false, "@": false, "": false,
	} {
		if got := Text(addr); got != want {
			t.Errorf("%q: %t", addr, got)
		}
	}
	if Is(nil) || !Is(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}) || Is(&net.UnixAddr{Name: "/x", Net: "unix"}) {
		t.Error("an address of a connection")
	}
}
