package adsclient

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhatIsNotAcknowledgedBreaksAConnection_C17: gRPC sets the option itself only on
// connections that nobody wraps.
func TestWhatIsNotAcknowledgedBreaksAConnection_C17(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	c := newClient(t, newRecorder(), nil, lis.Addr().String())
	conn, err := c.cfg.dialer.dial(t.Context(), lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ms int
	if failed := raw.Control(func(fd uintptr) {
		ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if ms != 10_000 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms", ms)
	}
}
