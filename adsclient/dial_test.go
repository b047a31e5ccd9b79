package adsclient

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/fakexds"
)

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// names is a DNS server.
type names struct {
	mu      sync.Mutex
	records map[string][]string // IPv4 addresses
	asked   int
}

func (n *names) set(name string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records[name] = addresses
}

// resolver starts the server, and returns what asks it.
func (n *names) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := n.answer(buf[:size]); answer != nil {
				conn.WriteTo(answer, from) //nolint:errcheck // it asks again
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (n *names) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	q := m.Questions[0]
	addresses, known := n.records[strings.TrimSuffix(q.Name.String(), ".")]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true}
	m.Additionals = nil
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addresses {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				// The record may be kept for an hour, and is not.
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 3600},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(a).To4())},
			})
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

func resolving(r *net.Resolver, tried func(address string)) func(*Config) {
	return func(c *Config) {
		impatient(c)
		d := newDialer(pingTimeout)
		d.proxy, d.net.Resolver = noProxy, r
		control := d.net.Control
		d.net.Control = func(network, address string, conn syscall.RawConn) error {
			tried(address)
			return control(network, address, conn)
		}
		c.dialer = d
	}
}

// TestAllAddressesOfANameAreTried: the first record may be of a host that is gone.
func TestAllAddressesOfANameAreTried(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	deadFirst := false
	for _, records := range [][]string{{"127.0.0.2", "127.0.0.1"}, {"127.0.0.1", "127.0.0.2"}} {
		n := &names{records: map[string][]string{"istiod.mesh.test": records}}
		var mu sync.Mutex
		var tried []string
		h := newRecorder()
		c := start(t, h, resolving(n.resolver(t), func(address string) {
			mu.Lock()
			defer mu.Unlock()
			tried = append(tried, address)
		}), "istiod.mesh.test:"+port)
		awaitSync(t, h, c, "istiod.mesh.test:"+port)
		h.mu.Lock()
		if h.has(at("istiod.mesh.test:"+port, Disconnected)) {
			t.Errorf("records %v: states %v", records, h.states)
		}
		h.mu.Unlock()
		mu.Lock()
		deadFirst = deadFirst || len(tried) == 2 && tried[0] == "127.0.0.2:"+port
		mu.Unlock()
	}
	if !deadFirst {
		t.Error("the dead address was never tried first: the test shows nothing")
	}
}

func TestAChangedRecordIsFollowedAfterADisconnect(t *testing.T) {
	first := fakexds.Start(t, &fakexds.Server{})
	_, port, err := net.SplitHostPort(first.Addr)
	if err != nil {
		t.Fatal(err)
	}
	second := fakexds.Start(t, &fakexds.Server{}, "127.0.0.2:"+port)
	n := &names{records: map[string][]string{"istiod.mesh.test": {"127.0.0.1"}}}
	h := newRecorder()
	c := start(t, h, resolving(n.resolver(t), func(string) {}), "istiod.mesh.test:"+port)
	awaitSync(t, h, c, "istiod.mesh.test:"+port)
	n.set("istiod.mesh.test", "127.0.0.2")
	first.End(status.Error(codes.Unavailable, "max age")) // it still listens
	second.Await("the stream", func(r fakexds.Request) bool { return r.TypeURL == vsURL })
	if n := first.Streams(); n != 1 {
		t.Errorf("%d streams to what the name was before", n)
	}
}

// TestAProxyIsUsed goes through a CONNECT proxy, as gRPC's own dialer would.
func TestAProxyIsUsed(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	w := newWire(t, s.Addr)
	for _, tc := range []struct{ name, status, says string }{
		{"open", "HTTP/1.1 200 OK\r\n\r\n", ""},
		{"closed", "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403 Forbidden"},
		{"no proxy", "SSH-2.0\r\n\r\n", "CONNECT"},
		{"a flood", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 4*maxProxyAnswer), "CONNECT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			asked := make(chan *http.Request, 100)
			var work sync.WaitGroup
			work.Go(func() {
				for {
					conn, err := lis.Accept()
					if err != nil {
						return
					}
					work.Go(func() {
						defer conn.Close()
						r := bufio.NewReader(conn)
						req, err := http.ReadRequest(r)
						if err != nil {
							return
						}
						select {
						case asked <- req:
						default:
						}
						if _, err := conn.Write([]byte(tc.status)); err == nil && tc.says == "" {
							w.carry(&earlyReader{Conn: conn, r: r})
						}
					})
				}
			})
			t.Cleanup(func() { lis.Close(); w.cut(); work.Wait() })
			h := newRecorder()
			c := start(t, h, func(c *Config) {
				impatient(c)
				c.dialer = newDialer(pingTimeout)
				c.dialer.proxy = func(r *http.Request) (*url.URL, error) {
					return &url.URL{Scheme: "http", Host: lis.Addr().String(), User: url.UserPassword("me", "secret")}, nil
				}
			}, "istiod.mesh.test:15010")
			if tc.says == "" {
				awaitSync(t, h, c, "istiod.mesh.test:15010")
			} else {
				h.await(t, "the reason", func() bool {
					return h.has(func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), tc.says) })
				})
				h.mu.Lock()
				for _, s := range h.states {
					if s.Err != nil && (strings.Contains(s.Err.Error(), "secret") || len(s.Err.Error()) > 2*maxErrorText) {
						t.Errorf("error %v", s.Err)
					}
				}
				h.mu.Unlock()
			}
			req := <-asked
			if user, password, _ := (&http.Request{Header: http.Header{"Authorization": req.Header["Proxy-Authorization"]}}).BasicAuth(); req.Method != http.MethodConnect || req.Host != "istiod.mesh.test:15010" || user != "me" || password != "secret" {
				t.Errorf("asked %s %s as %s:%s", req.Method, req.Host, user, password)
			}
		})
	}
}

// earlyReader is a connection whose first bytes are in a reader.
type earlyReader struct {
	net.Conn
	r *bufio.Reader
}

func (c *earlyReader) Read(b []byte) (int, error) { return c.r.Read(b) }

func TestWhatComesWithTheProxysAnswerIsNotLost(t *testing.T) {
	ours, theirs := net.Pipe()
	var work sync.WaitGroup
	work.Go(func() {
		defer theirs.Close()
		if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
			theirs.Write([]byte("HTTP/1.1 200 OK\r\n\r\nearly, ")) //nolint:errcheck // the reader misses it
			theirs.Write([]byte("late"))                           //nolint:errcheck // likewise
		}
	})
	conn, err := openTunnel(ours, &url.URL{Scheme: "http", Host: "proxy"}, "istiod:15012")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if string(got) != "early, late" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	work.Wait()
}

func TestOtherProxiesAreRefusedInWords(t *testing.T) {
	d := newDialer(pingTimeout)
	d.proxy = func(*http.Request) (*url.URL, error) { return url.Parse("socks5://me:secret@127.0.0.1:1080") }
	_, err := d.dial(t.Context(), "istiod:15012")
	if err == nil || !strings.Contains(err.Error(), "want http://host:port") || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}
