package attacks

import (
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"meshrelay/internal/testing/await"
)

// adminPort are the attacks of who reaches the admin port.
func adminPort() []*attack {
	return []*attack{
		{finding: "D6", name: "1,000 connections of one address that send nothing", once: true, run: idle("", "")},
		{finding: "D6", name: "1,000 connections of one address that are idle", once: true, run: idle("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "ok\n")},
		{finding: "D6", name: "1,000 connections of one address that drip", once: true, run: idle("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", "")},
		{finding: "D14", name: "slow readers of /metrics", once: true, empty: 60, run: slowReaders},
	}
}

// idle opens 1,000 connections that send a text, and wait for its answer. Then it looks whether a probe is
// answered within a second.
func idle(text, want string) func(*stage, int) {
	return func(s *stage, _ int) {
		for range 1000 {
			s.attackAdmin(nil, text)
		}
		if want != "" {
			s.settle() // as many are answered as there is room for
		}
		probe := clientFrom(bystander, time.Second)
		for range 10 {
			began := time.Now()
			status, body, err := healthOf(probe, s.admin)
			for range 2 { // a busy machine may be late once; a place that the attacker takes is not free so soon
				if err != nil {
					status, body, err = healthOf(probe, s.admin)
				}
			}
			switch {
			case err != nil:
				s.Errorf("/healthz after %v: %v", time.Since(began), err)
				return
			case status != http.StatusOK || body != "ok\n":
				s.Errorf("/healthz: %d %s", status, body)
			}
			probe.CloseIdleConnections()
		}
	}
}

// healthOf asks for /healthz.
func healthOf(probe http.Client, admin string) (status int, text string, err error) {
	resp, err := probe.Get("http://" + admin + "/healthz")
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// attackAdmin opens a connection to the admin port, which stays open, and sends a text.
func (s *stage) attackAdmin(control func(network, address string, c syscall.RawConn) error, text string) net.Conn {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}, Control: control}
	conn, err := dialer.DialContext(s.ctx, "tcp", s.admin)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	_, _ = io.WriteString(conn, text) // it may be closed
	return conn
}

// slowReaders asks for /metrics as often as the relay answers at once, and reads slowly. Then it looks whether
// somebody else is answered.
func slowReaders(s *stage, _ int) {
	small := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2304)  // the least
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 200) // so that the relay buffers little
		})
	}
	for range 16 {
		conn := s.attackAdmin(small, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
		go func() {
			b := make([]byte, 1024)
			for pace := rate.NewLimiter(rate.Every(time.Second), 1); pace.Wait(s.ctx) == nil; {
				if _, err := conn.Read(b); err != nil {
					return
				}
			}
		}()
	}
	s.settle()
	other := clientFrom(bystander, await.Limit)
	s.await("/metrics to be answered", func() bool {
		resp, err := other.Get("http://" + s.admin + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		n, _ := io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != http.StatusOK {
			s.tell("%s", resp.Status)
			return false
		}
		s.tell("%d bytes of metrics", n)
		return true
	})
}
