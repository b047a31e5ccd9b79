package adsclient

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

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

// resolving has the client connect as by default, but for where it looks names up.
func resolving(r *net.Resolver, tried func(address string)) func(*Config) {
	return func(c *Config) {
		c.Protocol, c.SyncTimeout, c.FailbackAfter = SotW, -1, -1
		d := net.Dialer{Resolver: r, Control: func(_, address string, _ syscall.RawConn) error {
			tried(address)
			return nil
		}}
		c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}))
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

// throughProxy is the environment variable that makes this process the client of
// TestAProxyIsUsed: the proxy of a process is read once.
const throughProxy = "ADSCLIENT_TEST_THROUGH_PROXY"

// TestAProxyIsUsed goes through a CONNECT proxy, which HTTPS_PROXY names.
func TestAProxyIsUsed(t *testing.T) {
	const server = "istiod.mesh.test:15010"
	if os.Getenv(throughProxy) != "" {
		h := newRecorder()
		c := start(t, h, sotw, server)
		awaitSync(t, h, c, server)
		return
	}
	s := fakexds.Start(t, &fakexds.Server{})
	w := startProxy(t, s.Addr)
	asked := make(chan *http.Request, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		conn, rest, err := out.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		select {
		case asked <- req:
		default:
		}
		if _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err == nil {
			w.Carry(&earlyReader{Conn: conn, r: rest.Reader})
		}
	}))
	t.Cleanup(func() { w.Cut(); proxy.Close() })
	client := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAProxyIsUsed$")
	client.Env = append(os.Environ(), throughProxy+"=yes", "NO_PROXY=", "HTTPS_PROXY="+strings.Replace(proxy.URL, "http://", "http://me:secret@", 1))
	if out, err := client.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	req := await.Value(t, "the request to the proxy", asked)
	if user, password, _ := (&http.Request{Header: http.Header{"Authorization": req.Header["Proxy-Authorization"]}}).BasicAuth(); req.Method != http.MethodConnect || req.Host != server || user != "me" || password != "secret" {
		t.Errorf("asked %s %s as %s:%s", req.Method, req.Host, user, password)
	}
}

// earlyReader is a connection whose first bytes are in a reader.
type earlyReader struct {
	net.Conn
	r *bufio.Reader
}

func (c *earlyReader) Read(b []byte) (int, error) { return c.r.Read(b) }

var errNoDial = errors.New("not dialled in this test")

// countingDialer makes connections fail, and tells what they would be to.
func countingDialer(dialled func(address string)) grpc.DialOption {
	return grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
		dialled(address)
		return nil, errNoDial
	})
}
