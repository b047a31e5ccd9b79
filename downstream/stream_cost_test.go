//go:build !race

package downstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"meshrelay/mirror"
)

// streamClients, in the environment, makes this binary a process of clients: "address number".
const streamClients = "TEST_STREAM_CLIENTS"

func init() {
	if what := os.Getenv(streamClients); what != "" {
		if err := runStreamClients(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// mostIdle is the most bytes of heap and stacks that an idle delta stream costs, on a connection of its
// own, with 16 types. Its five goroutines have 23 KB of stacks: gRPC has four, one of them waits.
const mostIdle = 42_000

// TestIdleStreamCostsLittle holds an idle stream to mostIdle. The clients are another process.
func TestIdleStreamCostsLittle(t *testing.T) {
	const n = 300
	r := startRelay(t, true)
	r.put(many(20, "s-%02d", func(int) string { return "a.example" })...)
	before := settledMemory()
	goroutines := runtime.NumGoroutine()
	stop := startStreamClients(t, r.addr, n)
	r.eventually(t, "all clients have everything", func() bool { return synchronized(r.server) == n })
	after := settledMemory()
	heap, stacks := perStream(after.HeapAlloc, before.HeapAlloc, n), perStream(after.StackInuse, before.StackInuse, n)
	t.Logf("each of %d streams of %d types: %d bytes of heap, %d of stacks, %.1f goroutines", n, len(idleTypes()), heap, stacks, float64(runtime.NumGoroutine()-goroutines)/float64(n))
	if each := float64(runtime.NumGoroutine()-goroutines) / float64(n); each > 5.05 {
		t.Errorf("an idle stream has %.2f goroutines", each)
	}
	if heap+stacks > mostIdle {
		t.Errorf("an idle stream costs %d bytes, more than %d", heap+stacks, mostIdle)
	}
	stop()
}

// idleTypes are those that an istiod subscribes to without the Gateway API.
func idleTypes() (typeURLs []string) {
	for _, kind := range mirror.Kinds() {
		if !strings.HasPrefix(kind.Kind.Group, "gateway.") {
			typeURLs = append(typeURLs, kind.Kind.PreferredTypeURL())
		}
	}
	return typeURLs
}

func perStream(after, before uint64, n int) int { return (int(after) - int(before)) / n }

// settledMemory returns the memory in use once stacks have shrunk: each collection halves them at most.
func settledMemory() (m runtime.MemStats) {
	for range 6 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}

// synchronized returns how many clients have acknowledged everything that they subscribe to.
func synchronized(s *Server) (n int) {
	for _, c := range s.Clients() {
		ok := len(c.Types) == len(idleTypes())
		for _, st := range c.Types {
			ok = ok && st.Synced
		}
		if ok {
			n++
		}
	}
	return n
}

// startStreamClients starts a process with n clients, and returns what ends it.
func startStreamClients(t *testing.T, addr string, n int) (stop func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", streamClients, addr, n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// runStreamClients is the process of clients. It ends with its input.
func runStreamClients(what string) error {
	var addr string
	var n int
	if _, err := fmt.Sscan(what, &addr, &n); err != nil {
		return err
	}
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(context.Background())
		if err != nil {
			return err
		}
		for _, typeURL := range idleTypes() {
			if err := stream.Send(subscribeDelta(typeURL)); err != nil {
				return err
			}
		}
		go func() {
			for {
				resp, err := stream.Recv()
				if err != nil {
					return
				}
				_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce})
			}
		}()
	}
	_, err := io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	return err
}
