package attacks

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

const (
	entryType   = "networking.istio.io/v1/ServiceEntry"
	serviceType = "networking.istio.io/v1/VirtualService"
	meshType    = "core/v1alpha1/MeshConfig"

	// Each party has an address of its own, because limits of a peer count by address.
	attacker  = "127.0.0.1"
	bystander = "127.0.0.2"
	newcomer  = "127.0.0.3"
	operator  = "127.0.0.4"

	// mostAddresses bounds the address space of the relay, in bytes. It has some 1.3 GB from the beginning.
	mostAddresses = 3 << 30
)

// binary is the relay, built as it is shipped.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "attacks")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "relay")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "meshrelay/cmd/relay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the relay: %v\n%s", err, out)
	} else {
		flag.Parse()
		if err := flag.Set("test.parallel", "6"); err != nil { // most of the time each of them waits
			panic(err)
		}
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// stage is a relay in a process of its own, two kinds of upstreams, and the clients.
//
// The upstream "east" is honest: what the bystander sees is its. The upstreams "west-0" and so on
// are the attacker's: one server for all of them, or a directory for each.
type stage struct {
	*testing.T
	ctx        context.Context
	dir        string
	address    string
	restricted string // a listener with a view that shows the namespace "public" only
	admin      string
	east       *fakexds.Server
	west       []*fakexds.Server
	north      *apiServer    // an honest one
	apis       []*apiServer  // of the attacker
	hub        *apiServer    // of the attacker: in its objects clusters are found
	begun      chan struct{} // closed when the attack of API servers begins
	memory     string
	asks       http.Client // of the operator
	cmd        *exec.Cmd
	ended      chan error
	most       int64         // bytes that were resident
	used       time.Duration // that the relay has computed
	log        *lockedBuffer

	received atomic.Int64 // bytes that the attacker was sent

	mu    sync.Mutex
	told  strings.Builder    // what the attacker was told
	conns []*grpc.ClientConn // of the attacker
}

func newStage(t *testing.T, a *attack, n int) *stage {
	ctx, cancel := context.WithCancel(context.Background())
	ports := freePorts(t, 3)
	s := &stage{T: t, ctx: ctx, dir: t.TempDir(), address: ports[0], restricted: ports[1], admin: ports[2], memory: a.memory, log: &lockedBuffer{}, begun: make(chan struct{}), asks: clientFrom(operator, await.Limit)}
	if a.edge && n > 1 || !a.edge && !a.upstreams {
		s.memory = manifest
	}
	s.east = fakexds.Start(t, &fakexds.Server{})
	s.setEast(0, a.resources)
	t.Cleanup(func() {
		cancel()
		if log := s.log.String(); t.Failed() {
			t.Logf("the log begins with\n%.4000s", log)
		}
	})
	s.configure(a, n)
	s.start()
	return s
}

func (s *stage) start() {
	// An attack that succeeds takes the relay, and not the machine.
	s.cmd = exec.Command("sh", "-c", fmt.Sprintf("ulimit -v %d && exec \"$@\"", mostAddresses>>10), "sh", binary, "serve", "-c", filepath.Join(s.dir, "relay.yaml"))
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GO") }), "GOMEMLIMIT="+s.memory)
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	cmd, ended := s.cmd, make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.ended = ended
	s.Cleanup(s.kill)
}

// kill ends the relay as a crash would.
func (s *stage) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	s.ended <- <-s.ended
}

// gone reports whether the relay has ended by itself.
func (s *stage) gone() bool {
	select {
	case err := <-s.ended:
		s.ended <- err
		return true
	default:
		return false
	}
}

// tell notes what the attacker was told.
func (s *stage) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.Len() < 1<<20 {
		fmt.Fprintf(&s.told, format+"\n", args...)
	}
}

// allTold returns what the relay has told the attacker and its operator.
func (s *stage) allTold() string {
	_, ready := s.get("/ready")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told.String() + s.log.String() + ready
}

// get asks the relay's admin address.
func (s *stage) get(path string, header ...string) (int, string) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+s.admin+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := s.asks.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	_, _ = body.ReadFrom(resp.Body) // it may be cut off
	return resp.StatusCode, body.String()
}

// clientFrom returns an HTTP client that connects from an address, and waits so long for a whole answer.
func clientFrom(address string, most time.Duration) http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return http.Client{Timeout: most, Transport: &http.Transport{DialContext: dialer.DialContext, IdleConnTimeout: time.Second}}
}

// residentMost returns the most memory of its own that a process has had resident, in bytes: without the
// pages of its program file, which the kernel can take back at any time.
func residentMost(pid int) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // empty when it has ended
	return kilobytes(status, "VmHWM:") - kilobytes(status, "RssFile:")
}

// kilobytes returns a field of a process's status, in bytes.
func kilobytes(status []byte, field string) int64 {
	_, after, _ := strings.Cut(string(status), field)
	kB, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	n, _ := strconv.ParseInt(kB, 10, 64)
	return n << 10
}

// rss returns the most memory of its own that the relay has had resident when rss was called, in bytes.
func (s *stage) rss() int64 {
	s.most = max(s.most, residentMost(s.cmd.Process.Pid))
	return s.most
}

// cpu returns how long the relay has computed; of one that has ended, until the last call before.
func (s *stage) cpu() time.Duration {
	const clock = 2 // of a process, on each CPU; from clock_getcpuclockid
	var used unix.Timespec
	if unix.ClockGettime(int32(^s.cmd.Process.Pid<<3|clock), &used) == nil { // it is so by definition
		s.used = max(s.used, time.Duration(used.Nano()))
	}
	return s.used
}

// allocated returns how many bytes the relay has allocated since it started; of one that is gone, 0. It counts
// work as CPU does, and is the same however busy the machine is.
func (s *stage) allocated() int64 {
	code, metrics := s.get("/metrics")
	for line := range strings.Lines(metrics) {
		if of, ok := strings.CutPrefix(line, "go_memstats_alloc_bytes_total "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(of), 64)
			if err != nil {
				s.Error(err)
			}
			return int64(n)
		}
	}
	if !s.gone() {
		s.Errorf("the relay does not tell what it allocates: %d %.200s", code, metrics)
	}
	return 0
}

// computes reports whether a thread of the relay computes, or waits for a CPU.
func (s *stage) computes() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
	return slices.ContainsFunc(threads, func(file string) bool {
		stat, _ := os.ReadFile(file) // empty when it has ended
		return bytes.Contains(stat, []byte(") R "))
	})
}

// settle waits until the relay has next to nothing to do, and reports whether it came to that.
func (s *stage) settle() bool {
	const window = 100 * time.Millisecond
	quiet, since, used := 0, time.Now(), s.cpu()
	var never late
	await.Until(&never, "the relay has next to nothing to do", func() bool {
		passed := time.Since(since)
		if passed < window {
			return false
		}
		s.rss()
		if quiet++; s.cpu()-used > passed/10 || s.computes() {
			quiet = 0
		}
		since, used = time.Now(), s.cpu()
		return quiet == 2 || s.gone()
	})
	return !bool(never)
}

// late is set when a wait was in vain.
type late bool

func (l *late) Fatalf(string, ...any) { *l = true }

// soft fails a test, and lets it go on: waits may be in any goroutine.
type soft struct{ *stage }

func (s soft) Fatalf(format string, args ...any) { s.Errorf(format, args...) }

// await waits until ok returns true, or the relay is gone, which is an error. ok may ask the relay: it is called
// less often than others are.
func (s *stage) await(what string, ok func() bool) {
	is, looks := false, 0
	await.Until(soft{s}, what, func() bool {
		if looks++; looks%5 == 1 {
			is = ok()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.rss()
			s.cpu()
		}
		return is || s.gone()
	})
	if !is && s.gone() {
		s.Errorf("the relay is gone; waited for: %s", what)
	}
}

// client is a client that means well, and has all ServiceEntries and VirtualServices.
type client struct {
	mu  sync.Mutex
	has map[string]string // by name; the body
	err error             // that has ended the stream
}

// connect starts a client, and waits until it has what there is of both types.
func (s *stage) connect(from, cluster string) (*client, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	inVain := time.AfterFunc(await.Limit, cancel)
	defer inVain.Stop()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(s.dial(from, s.address)).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		cancel()
		return nil, err
	}
	node := &corev3.Node{Id: "sidecar~10.0.0.9~c.ns~ns.svc.cluster.local"}
	if cluster != "" {
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CLUSTER_ID": structpb.NewStringValue(cluster)}}
	}
	c := &client{has: map[string]string{}}
	answered := make(chan string, 1000)
	go func() {
		defer cancel()
		err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: entryType})
		if err == nil {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: serviceType})
		}
		for {
			resp, rerr := stream.Recv()
			if rerr != nil {
				c.mu.Lock()
				c.err = rerr
				c.mu.Unlock()
				close(answered)
				return
			}
			c.mu.Lock()
			for _, r := range resp.Resources {
				c.has[r.Name] = string(r.Resource.GetValue())
			}
			for _, name := range resp.RemovedResources {
				delete(c.has, name)
			}
			c.mu.Unlock()
			if err == nil {
				err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce})
			}
			select {
			case answered <- resp.TypeUrl:
			default:
			}
		}
	}()
	for types := map[string]bool{}; len(types) < 2; {
		t, ok := <-answered
		if !ok {
			return nil, c.err
		}
		types[t] = true
	}
	return c, nil
}

// all returns what the client has, and whether its stream is still open.
func (c *client) all() (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.has), c.err
}

func (c *client) get(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.has[name]
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// freePorts returns addresses on which nobody listens, from below the ports that the system gives
// to connections.
func freePorts(t *testing.T, n int) (addresses []string) {
	for range 1000 {
		address := fmt.Sprintf("%s:%d", attacker, 10_000+rand.IntN(8000))
		if _, taken := given.LoadOrStore(address, true); taken {
			continue
		}
		lis, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		lis.Close()
		if addresses = append(addresses, address); len(addresses) == n {
			return addresses
		}
	}
	t.Fatal("no free ports")
	return nil
}

// given are the addresses that freePorts has returned, or tried: the relays of other stages may not listen yet.
var given sync.Map
