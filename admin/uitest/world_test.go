package uitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"meshrelay/internal/testing/fakekube"
)

// limit bounds every wait: only a test that hangs meets it.
const limit = 2 * time.Minute

var (
	home string // the directory of all tests

	mu    sync.Mutex
	atEnd []func() // end what the tests share; mu guards it
)

func endLater(end func()) {
	mu.Lock()
	defer mu.Unlock()
	atEnd = append(atEnd, end)
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "uitest")
		if err != nil {
			panic(err)
		}
		home = dir
		defer os.RemoveAll(dir)
		defer func() {
			for _, end := range atEnd {
				end()
			}
		}()
		return m.Run()
	}())
}

// until waits until ok returns true. seen returns what the message of a failure has.
func until(t *testing.T, what string, ok func() bool, seen func() string) {
	t.Helper()
	deadline, again := time.Now().Add(limit), time.NewTicker(25*time.Millisecond)
	defer again.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s\n%s", limit, what, seen())
		}
		<-again.C
	}
}

// world is a relay, its upstreams, and a relay that is its client. east and west are directories. lab is another
// relay.
type world struct {
	t    *testing.T
	dir  string
	hub  string // its admin address
	lab  *process
	base string // of the pages
	all  []*process
	// night is when it was broken.
	night time.Time
}

// lent is a world for several tests. The first of them makes it.
type lent struct {
	mu   sync.Mutex // is held while it is made
	made *world
}

func (l *lent) to(t *testing.T, prepare func(*world)) *world {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made == nil {
		w := newWorld(t)
		prepare(w)
		l.made = w
	}
	w := *l.made
	if w.t != t {
		w.t = t
		w.tellAtFailure()
	}
	return &w
}

var calmWorld, brokenWorld lent

// calm returns a world that tests may add to, and broken one that they only look at.
func calm(t *testing.T) *world   { t.Helper(); return calmWorld.to(t, func(*world) {}) }
func broken(t *testing.T) *world { t.Helper(); return brokenWorld.to(t, (*world).breakIt) }

// newDir returns a world of which nothing runs.
func newDir(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp(home, "")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir}
	w.tellAtFailure()
	return w
}

// tellAtFailure logs the last lines of all processes if the test fails.
func (w *world) tellAtFailure() {
	w.t.Cleanup(func() {
		for _, p := range w.all {
			if text := p.out.String(); w.t.Failed() {
				w.t.Logf("%s:\n%s", strings.Join(p.cmd.Args, " "), text[max(0, len(text)-2000):])
			}
		}
	})
}

// newWorld starts a world.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := newDir(t)
	for _, name := range []string{"east", "west"} {
		if err := os.CopyFS(filepath.Join(w.dir, name), os.DirFS(filepath.Join("../../samples", name))); err != nil {
			t.Fatal(err)
		}
	}
	w.write("lab/lab.yaml", serviceEntry("lab", "lab-one", "one.lab.example", "")+"---\n"+serviceEntry("lab", "lab-two", "two.lab.example", ""))
	labXDS, hubXDS, edgeXDS := freePort(t), freePort(t), freePort(t)
	w.lab = w.start("lab", "node: {id: lab}\nupstreams:\n- name: lab\n  file: {path: lab}\n"+endpoints(labXDS, freePort(t)))
	hub := freePort(t)
	w.hub, w.base = hub, "http://"+hub+"/ui"
	w.start("hub", fmt.Sprintf(`node: {id: hub}
upstreams:
- name: east
  file: {path: east}
- name: west
  file: {path: west}
- name: lab
  xds: {addresses: [%q], plaintext: true}
state: {dir: %s}
`, labXDS, filepath.Join(w.dir, "state"))+endpoints(hubXDS, hub))
	w.start("edge", fmt.Sprintf("node: {id: edge, clusterID: edge-cluster}\nupstreams:\n- name: hub\n  xds: {addresses: [%q], plaintext: true}\n", hubXDS)+endpoints(edgeXDS, freePort(t)))
	w.await("the hub is ready and has its client", func() bool {
		return strings.HasPrefix(w.get("/ready"), "ready") && len(w.clients()) == 1 && strings.Contains(w.get("/debug/upstreams"), `"lab"`) &&
			strings.Contains(w.get("/debug/explain?kind=se&namespace=lab&name=lab-one"), `"acknowledged"`)
	})
	return w
}

const fleetKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// newFleet starts a relay that has found three clusters. Two of them are held. None of their API servers answers.
func newFleet(t *testing.T) *world {
	t.Helper()
	w := newDir(t)
	hub := fakekube.New()
	hub.Define("", "Secret", "secrets", "v1")
	fakekube.WriteKubeconfig(t, filepath.Join(w.dir, "kubeconfig"), hub.Start(t), "t")
	for name, text := range map[string]string{"east": fleetKubeconfig, "north": fleetKubeconfig, "west": fleetKubeconfig, "bad": "rotten"} {
		secret := fakekube.Object("istio-system", name, `{}`)
		secret["data"] = map[string]any{name: []byte(text)}
		hub.Put("/secrets", secret)
	}
	w.hub = freePort(t)
	w.base = "http://" + w.hub + "/ui"
	w.start("fleet-hub", "node: {id: hub}\nclusters:\n- {name: fleet, secrets: {cluster: {kubeconfig: kubeconfig}}, allowServers: [127.0.0.0/8]}\n"+endpoints(freePort(t), w.hub))
	w.await("three clusters", func() bool { return w.clustersIn("found") == 3 })
	for _, name := range []string{"north", "west"} {
		hub.Remove("/secrets", "istio-system/"+name)
	}
	w.await("two are held", func() bool { return w.clustersIn("held") == 2 })
	return w
}

// clustersIn returns how many clusters are in a state.
func (w *world) clustersIn(state string) (n int) {
	var parts []struct{ Clusters []struct{ State string } }
	if err := json.Unmarshal([]byte(w.get("/debug/clusters")), &parts); err != nil {
		return 0
	}
	for _, part := range parts {
		for _, c := range part.Clusters {
			if c.State == state {
				n++
			}
		}
	}
	return n
}

func endpoints(xds, admin string) string {
	return fmt.Sprintf("downstream:\n  listeners:\n  - {address: %q, plaintext: true}\nadmin: {address: %q}\n", xds, admin)
}

func serviceEntry(namespace, name, host, annotation string) string {
	annotations := ""
	if annotation != "" {
		annotations = "\n  annotations: {note: " + annotation + "}"
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  namespace: %s
  name: %s%s
spec:
  hosts: [%s]
  resolution: DNS
  ports: [{number: 443, name: tls, protocol: TLS}]
`, namespace, name, annotations, host)
}

// write writes a file of the world as one change.
func (w *world) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		w.t.Fatal(err)
	}
}

// breakIt breaks the world: east loses nearly all its resources, west changes one, and lab is gone.
func (w *world) breakIt() {
	w.t.Helper()
	w.night = time.Now()
	w.write("west/night.yaml", serviceEntry("night", "changed-at-night", "night.example", ""))
	w.await("the change of west", func() bool { return strings.Contains(w.get("/debug/configz?kind=se&namespace=night"), "night.example") })
	files, err := filepath.Glob(filepath.Join(w.dir, "east", "*.yaml"))
	if err != nil || len(files) == 0 {
		w.t.Fatalf("east has no files: %v", err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			w.t.Fatal(err)
		}
	}
	w.write("east/rest.yaml", serviceEntry("rest", "all-that-is-left", "left.example", ""))
	w.lab.stop()
	w.await("the hold of east, and the loss of lab", func() bool {
		status := w.get("/debug/upstreams")
		return strings.Contains(status, `"held"`) && strings.Contains(status, `"disconnected"`)
	})
}

func (w *world) clients() (all []struct {
	Connection string `json:"connection"`
}) {
	if err := json.Unmarshal([]byte(w.get("/debug/connections")), &all); err != nil {
		return nil
	}
	return all
}

// get returns the answer of the hub, or "" when it does not answer.
func (w *world) get(path string) string {
	resp, err := http.Get("http://" + w.hub + path) //nolint:noctx // the relay of this test
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(b)
}

func (w *world) await(what string, is func() bool) {
	w.t.Helper()
	until(w.t, what, is, func() string { return w.get("/ready") + w.get("/debug/upstreams") })
}

// program returns the relay. A missing one is a failure: a suite that skips proves nothing.
func program(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/relay")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run this suite with make ui-test, which builds it", err)
	}
	return path
}

// process is a relay that runs until all tests have ended, or one stops it.
type process struct {
	cmd  *exec.Cmd
	once sync.Once
	out  locked
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a relay with a config file.
func (w *world) start(name, config string) *process {
	w.t.Helper()
	w.write(name+".config", config)
	p := &process{cmd: exec.Command(program(w.t), "serve", "-c", filepath.Join(w.dir, name+".config"))}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = w.dir, &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.all = append(w.all[:len(w.all):len(w.all)], p)
	endLater(p.stop)
	return p
}

// stop ends the process.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
		_ = p.cmd.Wait()
	})
}

// given are the ports that freePort has returned.
var given sync.Map

// freePort returns an address that nothing listens on, and each only once. The system takes none of its ports for
// connections: it takes those from 32768 on.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := 18000 + rand.IntN(14000)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		lis.Close()
		return lis.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}
