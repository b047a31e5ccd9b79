package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/internal/testing/await"
)

// serving runs the server of a fixture on a listener that the test dials.
func (f *fixture) serving(t *testing.T) (address string) {
	address, stop := f.running(t)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return address
}

// open opens connections from a loopback address, and sends the same over each.
func open(t *testing.T, address, from string, n int, text string) (all []net.Conn) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range n {
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, text) // the server may have closed it
		all = append(all, c)
	}
	return all
}

func healthy(t *testing.T, address string) {
	t.Helper()
	c := http.Client{Timeout: await.Limit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok\n" {
		t.Errorf("%q, %v", body, err)
	}
}

// TestIdleAndSlowConnectionsLeaveAPlaceForProbes: of another peer, and of the same.
func TestIdleAndSlowConnectionsLeaveAPlaceForProbes(t *testing.T) {
	const get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	for name, text := range map[string]string{"silent": "", "slow headers": get, "kept alive": get + "\r\n", "slow body": "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"} {
		for _, from := range []string{"127.0.0.1", "127.0.0.9"} {
			t.Run(name+" from "+from, func(t *testing.T) {
				address := newFixture(t, Config{}).serving(t)
				open(t, address, from, maxConnections+100, text)
				healthy(t, address)
			})
		}
	}
}

// TestOnePeerHasThreeQuartersOfThePlaces, and the connection that has waited longest for a request goes first.
// One whose request is handled keeps its place.
func TestOnePeerHasThreeQuartersOfThePlaces(t *testing.T) {
	p := newPlaces(nil, 8)
	begin := time.Now()
	at := func(peer string, seconds int) *place {
		c, other := net.Pipe()
		t.Cleanup(func() { c.Close(); other.Close() })
		return &place{Conn: c, of: p, peer: peer, waits: begin.Add(time.Duration(seconds) * time.Second)}
	}
	has := func(c *place) bool { _, is := p.taken[c]; return is }
	var a []*place
	for i := range 6 {
		a = append(a, at("a", i))
		if !p.enter(a[i]) {
			t.Fatalf("connection %d is not let in", i)
		}
	}
	a[0].wait(time.Time{})
	if seventh := at("a", 6); !p.enter(seventh) || !has(seventh) || has(a[1]) || !has(a[0]) {
		t.Error("the seventh does not take the place of the second")
	}
	if _, err := a[1].Write([]byte("x")); err == nil {
		t.Error("the second is open")
	}
	b := at("b", 7)
	if !p.enter(b) || !p.enter(at("c", 8)) || !has(a[2]) {
		t.Error("there is no place for others")
	}
	if !p.enter(at("d", 9)) || has(a[2]) || len(p.taken) != 8 {
		t.Error("when all places are taken, not the oldest of all goes")
	}
	for c := range p.taken {
		c.wait(time.Time{})
	}
	if p.enter(at("e", 10)) || len(p.taken) != 8 {
		t.Error("a connection whose request is handled has lost its place")
	}
	a[0].Close()
	a[0].Close()
	if !p.enter(at("e", 11)) || len(p.taken) != 8 {
		t.Error("a closed connection keeps its place")
	}
}

// TestSlowReadersOfMetricsLoseTheirPlaces: the time for an answer does not grow with each part that is read.
func TestSlowReadersOfMetricsLoseTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		for i := range 500 {
			f.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: fmt.Sprintf("filler_%d", i), Help: strings.Repeat("x", 200)}, func() float64 { return 1 }))
		}
		lis := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Serve(ctx, lis) }()
		begin := time.Now()
		var slow []net.Conn
		for range maxDebugRequests {
			c := lis.dial()
			slow = append(slow, c)
			fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
			go func() {
				buf := make([]byte, 512)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					await.Pass(time.Second)
				}
			}()
		}
		status := func() string {
			c := lis.dial()
			defer c.Close()
			fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.Status
		}
		synctest.Wait()
		if got := status(); !strings.HasPrefix(got, "503") {
			t.Errorf("with %d readers: %s", maxDebugRequests, got)
		}
		await.Pass(answerTimeout - time.Since(begin) + time.Second)
		if got := status(); !strings.HasPrefix(got, "200") {
			t.Errorf("after %v: %s", answerTimeout, got)
		}
		for _, c := range slow {
			c.Close()
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// pipes is a listener of connections in memory, which have addresses on loopback.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return loopbackAddr }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- pipe{server}
	return client
}

type pipe struct{ net.Conn }

var loopbackAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 15014}

func (pipe) LocalAddr() net.Addr  { return loopbackAddr }
func (pipe) RemoteAddr() net.Addr { return loopbackAddr }

// TestAnEventStreamOutlivesTheTimeOfAnAnswer, as long as its client reads, and does not delay the shutdown.
func TestAnEventStreamOutlivesTheTimeOfAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := journaled(t, 1)
		lis := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Serve(ctx, lis) }()
		c := lis.dial()
		fmt.Fprint(c, "GET /debug/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		begin, lines := time.Now(), bufio.NewScanner(resp.Body)
		for time.Since(begin) < 2*operatorTimeout {
			if !lines.Scan() {
				t.Fatalf("it has ended after %v: %v", time.Since(begin), lines.Err())
			}
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		ending := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(ending); took >= shutdownTimeout {
			t.Errorf("the stream has delayed the end by %v", took)
		}
		resp.Body.Close()
		c.Close()
	})
}
