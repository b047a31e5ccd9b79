//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
	"meshrelay/state/local"
)

// process is a relay in its own process, which a test can kill.
type process struct {
	running
	t     *testing.T
	dir   string
	env   []string // in addition to that of the test
	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

func newProcess(t *testing.T, config string) *process {
	t.Helper()
	ports := freePorts(t, 2)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "relay.log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		running: running{xds: fmt.Sprintf("127.0.0.1:%d", ports[0]), admin: fmt.Sprintf("127.0.0.1:%d", ports[1])},
		t:       t, dir: dir, log: log,
	}
	p.write(config)
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
		if t.Failed() {
			t.Logf("log:\n%s", p.logged())
		}
		log.Close()
	})
	return p
}

// logged returns the logs of all starts.
func (p *process) logged() string {
	p.t.Helper()
	b, err := os.ReadFile(p.log.Name())
	if err != nil {
		p.t.Error(err)
	}
	return string(b)
}

// write writes this config, and the addresses of the relay, to the config file.
func (p *process) write(config string) {
	p.t.Helper()
	text := fmt.Sprintf("node: {id: relay-1}\nadmin: {address: %q, socket: admin.sock}\n", p.admin) +
		strings.ReplaceAll(config, "LISTEN", fmt.Sprintf("listeners: [{address: %q, plaintext: true}]", p.xds))
	if err := os.WriteFile(filepath.Join(p.dir, "relay.yaml"), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command("relay", "serve", "-c", filepath.Join(p.dir, "relay.yaml"))
	p.cmd.Stderr, p.cmd.Env = p.log, append(os.Environ(), p.env...)
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.ended = make(chan error, 1)
	go func(cmd *exec.Cmd) { p.ended <- cmd.Wait() }(p.cmd)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%v: %v", s, err)
	}
}

// kill ends the process without a warning.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	if err := <-p.ended; err == nil {
		p.t.Log("it had ended by itself")
	}
	p.cmd = nil
}

// wait returns the exit of the process.
func (p *process) wait() error {
	p.t.Helper()
	err := await.Value(p.t, "the relay ends", p.ended)
	p.cmd = nil
	return err
}

func (p *process) readiness() admin.Readiness {
	r, err := admin.Client{Address: p.admin}.Ready(p.t.Context())
	if err != nil {
		return admin.Readiness{}
	}
	return r
}

// watcher is a delta client of one type.
type deltaWatch struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

const entryType = "networking.istio.io/v1/ServiceEntry"

// dial returns a connection, which ends with the test, to a relay that may not listen yet.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}, MinConnectTimeout: await.Limit}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// openDelta opens a delta stream, which ends with the test.
func openDelta(t *testing.T, address string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, address)).DeltaAggregatedResources(await.Context(t), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func watchEntries(t *testing.T, address string) *deltaWatch {
	t.Helper()
	stream := openDelta(t, address)
	w := &deltaWatch{t: t, stream: stream}
	w.send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~10.0.0.9~c.ns~ns.svc.cluster.local"}, TypeUrl: entryType})
	return w
}

func (w *deltaWatch) send(req *discoveryv3.DeltaDiscoveryRequest) {
	w.t.Helper()
	if err := w.stream.Send(req); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the names that the next response adds or changes, and those that it removes. It acknowledges it.
func (w *deltaWatch) next() (changed, removed []string) {
	w.t.Helper()
	resp, err := w.stream.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	w.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: entryType, ResponseNonce: resp.Nonce})
	for _, r := range resp.Resources {
		changed = append(changed, r.Name)
	}
	slices.Sort(changed)
	slices.Sort(resp.RemovedResources)
	return changed, resp.RemovedResources
}

func hosts(names ...string) (out []fakexds.Resource) {
	for _, n := range names {
		name, host, _ := strings.Cut(n, "=")
		out = append(out, fakexds.MCP("shop/"+name, &networking.ServiceEntry{Hosts: []string{host}}))
	}
	return out
}

func TestServesFromStateWithEveryUpstreamDown(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, hosts("a=a.example", "b=b.example", "c=c.example")...)
	p := newProcess(t, fmt.Sprintf("state: {dir: state}\nupstreams: [{name: east, required: true, guard: {percent: 100}, xds: {addresses: [%q], plaintext: true}}]\ndownstream: {LISTEN}\n", source.Addr))
	p.start()
	p.awaitOnDisk(3)
	p.kill()
	source.Stop()

	p.start()
	w := watchEntries(t, p.xds)
	if changed, _ := w.next(); !slices.Equal(changed, []string{"shop/a", "shop/b", "shop/c"}) {
		t.Fatalf("served from the state: %v", changed)
	}
	await.Until(t, "the log has the origin", func() bool { return strings.Contains(p.logged(), "synced=0 fromDisk=1 notSynced=0") })
	r := p.readiness()
	if r.Ready || !strings.Contains(strings.Join(r.Reasons, "\n"), "stale since") {
		t.Errorf("a required upstream is stale, and the readiness is %+v", r)
	}

	// It comes back with one change and one deletion: only these are pushed.
	again := fakexds.Start(t, &fakexds.Server{}, source.Addr)
	again.Set(entryType, hosts("a=a.example", "b=b2.example")...)
	changed, removed := w.next()
	for len(removed) == 0 { // they may come one after the other
		var more []string
		more, removed = w.next()
		changed = append(changed, more...)
	}
	if !slices.Equal(changed, []string{"shop/b"}) || !slices.Equal(removed, []string{"shop/c"}) {
		t.Errorf("pushed after the source has come back: changed %v, removed %v", changed, removed)
	}
	await.Until(t, "it is ready", func() bool { r := p.readiness(); return r.Ready && len(r.Reasons) == 0 })
}

// awaitOnDisk waits until the newest revision of east has so many resources, and it is known on
// disk that these were all.
func (p *process) awaitOnDisk(resources int) {
	p.t.Helper()
	await.Until(p.t, fmt.Sprintf("%d resources are on disk", resources), func() bool {
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.dir, "admin.sock"))
		}
		client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
		resp, err := client.Get("http://relay/state/backup")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		f, err := readBackup(p.t, resp.Body)
		return err == nil && len(f.Sources) == 1 && f.Sources[0].Meta.Synced && len(f.Sources[0].Records) == resources
	})
}

// readBackup reads a backup as one that was unpacked into an empty directory.
func readBackup(t *testing.T, backup io.Reader) (*state.File, error) {
	dir := t.TempDir()
	unpack := exec.Command("tar", "-xf", "-", "-C", dir)
	unpack.Stdin = backup
	if out, err := unpack.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return local.ReadFile(local.Path(dir))
}

func TestSIGTERMWritesWhatIsKeptAndExits0(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, hosts("a=a.example", "b=b.example")...)
	p := newProcess(t, fmt.Sprintf("state: {dir: state}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\ndownstream: {LISTEN}\n", source.Addr))
	p.start()
	w := watchEntries(t, p.xds)
	if changed, _ := w.next(); len(changed) != 2 {
		t.Fatalf("served: %v", changed)
	}
	p.signal(syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("it ended with %v, want exit code 0", err)
	}
	f, err := local.ReadFile(local.Path(filepath.Join(p.dir, "state")))
	if err != nil || len(f.Sources) != 1 || len(f.Sources[0].Records) != 2 {
		t.Errorf("on disk: %+v, err %v", f, err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "admin.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestASecondSignalEndsItAtOnce(t *testing.T) {
	p := newProcess(t, "upstreams: [{name: files, file: {path: .}}]\ndownstream: {LISTEN}\n")
	p.start()
	await.Until(t, "it is ready", func() bool { return p.readiness().Ready })
	// The shutdown waits some seconds for a slow request of an operator.
	get := func(path string) string {
		resp, err := http.Get("http://" + p.admin + path)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // it may be cut off
		return string(body)
	}
	asked := make(chan struct{})
	go func() { defer close(asked); get("/debug/pprof/profile?seconds=60") }()
	defer func() { <-asked }()
	await.Until(t, "the request is under way", func() bool { return strings.Contains(get("/debug/pprof/goroutine?debug=1"), "pprof.Profile") })
	p.signal(syscall.SIGTERM)
	await.Until(t, "it is shutting down", func() bool { return strings.Contains(p.logged(), "shutting down") })
	p.signal(syscall.SIGTERM)
	err := p.wait()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want by the signal", err)
	}
}

func TestSIGHUPTakesOverTheConfigAndABadOneChangesNothing(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, hosts("a=a.example", "b=b.example")...)
	config := fmt.Sprintf("upstreams: [{name: east, xds: {addresses: [%q], plaintext: true}%%s}]\ndownstream: {LISTEN}\n", source.Addr)
	p := newProcess(t, fmt.Sprintf(config, ""))
	p.start()
	w := watchEntries(t, p.xds)
	if changed, _ := w.next(); len(changed) != 2 {
		t.Fatalf("served: %v", changed)
	}
	p.write(fmt.Sprintf(config, `, import: {expression: 'name == "b"'}`))
	p.signal(syscall.SIGHUP)
	if _, removed := w.next(); !slices.Equal(removed, []string{"shop/a"}) {
		t.Errorf("removed: %v", removed)
	}
	p.write("upstreams: [{name: east, xsd: {}}]\ndownstream: {LISTEN}\n")
	p.signal(syscall.SIGHUP)
	await.Until(t, "the mistake is told", func() bool {
		text := strings.Join(p.readiness().Reasons, "\n")
		return strings.Contains(text, "relay.yaml:3") && strings.Contains(text, "xsd")
	})
	if !p.readiness().Ready || !strings.Contains(p.logged(), "SIGHUP") {
		t.Error("it is not ready, or has not noticed the signal")
	}
	p.write(fmt.Sprintf(config, ""))
	p.signal(syscall.SIGHUP)
	if changed, _ := w.next(); !slices.Equal(changed, []string{"shop/a"}) {
		t.Errorf("added: %v; the client's stream has lived through three reloads", changed)
	}
}

func TestAFullDiskStopsNothing(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, hosts("a=a.example")...)
	p := newProcess(t, fmt.Sprintf("state: {dir: state}\nupstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\ndownstream: {LISTEN}\n", source.Addr))
	p.start()
	w := watchEntries(t, p.xds)
	w.next()
	p.awaitOnDisk(1)
	limitFiles(t, p.cmd.Process.Pid, 1) // from now on no file of the process may grow
	source.Set(entryType, hosts("a=a.example", "b=b.example")...)
	source.Push(entryType)
	if changed, _ := w.next(); !slices.Equal(changed, []string{"shop/b"}) {
		t.Errorf("served: %v", changed)
	}
	await.Until(t, "it is told", func() bool {
		return strings.Contains(strings.Join(p.readiness().Reasons, "\n"), "state: not written since")
	})
	limitFiles(t, p.cmd.Process.Pid, 1<<40)
	p.awaitOnDisk(2)
	await.Until(t, "nothing is amiss", func() bool { return len(p.readiness().Reasons) == 0 })
}
