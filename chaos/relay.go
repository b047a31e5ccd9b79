package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// relay is the program under test, as a process that is started again and again on the same
// ports.
type relay struct {
	name    string
	binary  string
	dir     string
	address string // where it serves
	admin   string
	state   bool // it keeps its state on disk
	past    int  // bytes of the past that it keeps of each upstream there; 0: what is usual
	// upstreams are its sources, in order. Settings are further lines for each of them.
	upstreams []upstreamConfig
	guard     string // settings of the guard
	staleness string
	env       []string // of the process, in addition to that of the suite

	log *boundedLog

	mu   sync.Mutex // guards all below
	cmd  *exec.Cmd
	done chan struct{}
	// ends is set while the suite ends the process, so that its end is no surprise.
	ends bool
}

// upstreamConfig is an upstream in a relay's config: with addresses, a path, or a kubeconfig.
type upstreamConfig struct {
	name      string
	addresses []string
	path      string
	partial   bool // the server may have some types only
	// kubeconfig is of an API server, and discovers has the relay take its Services.
	kubeconfig string
	discovers  bool
}

// logBytes bounds what is kept of a relay's log, twice: the present and the last part.
const logBytes = 16 << 20

func newRelay(name, binary, dir string) (*relay, error) {
	r := &relay{name: name, binary: binary, dir: filepath.Join(dir, name), address: freePort(), admin: freePort()}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	if r.address == "" || r.admin == "" {
		return nil, fmt.Errorf("relay %s: no port is free", name)
	}
	log, err := newBoundedLog(filepath.Join(r.dir, "relay.log"), logBytes)
	r.log = log
	return r, err
}

func (r *relay) configFile() string { return filepath.Join(r.dir, "relay.yaml") }
func (r *relay) stateDir() string   { return filepath.Join(r.dir, "state") }

// configure writes the config file, with the upstreams in an order: all numbers from zero
// on, or nil for the order in which they are.
func (r *relay) configure(order []int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "node: {id: %s}\nlog: {level: info}\nadmin: {address: %q}\n", r.name, r.admin)
	if r.state {
		fmt.Fprintf(&b, "state: {dir: %s", r.stateDir())
		if r.past > 0 {
			fmt.Fprintf(&b, ", history: {maxBytes: %d}", r.past)
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "downstream:\n  listeners: [{address: %q, plaintext: true}]\nupstreams:\n", r.address)
	if order == nil {
		for i := range r.upstreams {
			order = append(order, i)
		}
	}
	for _, i := range order {
		u := r.upstreams[i]
		fmt.Fprintf(&b, "- name: %s\n", u.name)
		if r.guard != "" {
			fmt.Fprintf(&b, "  guard: {%s}\n", r.guard)
		}
		if r.staleness != "" {
			fmt.Fprintf(&b, "  staleness: %s\n", r.staleness)
		}
		if u.path != "" {
			fmt.Fprintf(&b, "  file: {path: %s}\n", u.path)
			continue
		}
		if u.kubeconfig != "" {
			fmt.Fprintf(&b, "  kubernetes: {cluster: {kubeconfig: %q}}\n", u.kubeconfig)
			if u.discovers {
				b.WriteString("  services: {mode: discover}\n")
			}
			continue
		}
		quoted := make([]string, len(u.addresses))
		for i, a := range u.addresses {
			quoted[i] = strconv.Quote(a)
		}
		fmt.Fprintf(&b, "  xds: {addresses: [%s], plaintext: true", strings.Join(quoted, ", "))
		if u.partial {
			b.WriteString(", partial: true")
		}
		b.WriteString("}\n")
	}
	return r.writeConfig(b.String())
}

func (r *relay) writeConfig(text string) error {
	// Renamed into place, so that nobody reads half of it.
	tmp := r.configFile() + ".tmp"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, r.configFile())
}

// start runs the process.
func (r *relay) start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	cmd := exec.Command(r.binary, "serve", "-c", r.configFile())
	cmd.Stdout, cmd.Stderr = r.log, r.log
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("relay %s: %w", r.name, err)
	}
	done := make(chan struct{})
	r.cmd, r.done, r.ends = cmd, done, false
	go func() {
		_ = cmd.Wait() // it is ended by a signal
		close(done)
	}()
	return nil
}

// signal sends a signal, which is to end the process if ends is true, and waits for that.
func (r *relay) signal(sig syscall.Signal, ends bool) error {
	r.mu.Lock()
	cmd, done := r.cmd, r.done
	if ends {
		r.ends = true
	}
	r.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("relay %s: %w", r.name, err)
	}
	if !ends {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-time.After(endPatience):
		_ = cmd.Process.Kill() // it has had its time
		<-done
		return fmt.Errorf("relay %s has not ended %v after the signal %v", r.name, endPatience, sig)
	}
}

// endPatience is how long a relay may take to end: more than draining takes.
const endPatience = time.Minute

// died reports whether the process has ended by itself.
func (r *relay) died() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil || r.ends {
		return false
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *relay) pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil || r.cmd.Process == nil {
		return 0
	}
	return r.cmd.Process.Pid
}

// limitFiles sets how large the files may be that the process writes; negative: any size.
func (r *relay) limitFiles(bytes int64) error {
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if bytes >= 0 {
		limit.Cur = uint64(bytes)
	}
	if err := unix.Prlimit(r.pid(), unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		return fmt.Errorf("relay %s: prlimit: %w", r.name, err)
	}
	return nil
}

// sample is what a relay uses.
type sample struct {
	at                time.Time
	goroutines, fds   int
	rss, heap, memory int64 // bytes; heap is live after a collection when that was asked for
}

var httpClient = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// sample asks the relay what it uses; with collect, after a garbage collection.
func (r *relay) sample(ctx context.Context, collect bool) (sample, error) {
	if collect {
		// Twice: what a finalizer holds goes with the second.
		for range 2 {
			if _, err := r.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
				return sample{}, err
			}
		}
	}
	text, err := r.get(ctx, "/metrics")
	if err != nil {
		return sample{}, err
	}
	s := sample{at: time.Now()}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "go_goroutines":
			s.goroutines = int(v)
		case "process_open_fds":
			s.fds = int(v)
		case "process_resident_memory_bytes":
			s.rss = int64(v)
		case "go_memstats_heap_alloc_bytes":
			s.heap = int64(v)
		case "go_memstats_heap_inuse_bytes":
			s.memory = int64(v)
		}
	}
	if s.goroutines == 0 || s.fds == 0 {
		return s, fmt.Errorf("relay %s: its metrics do not say how many goroutines and files it has", r.name)
	}
	return s, lines.Err()
}

// lost waits until the relay has none of these upstreams.
func (r *relay) lost(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		text, err := r.get(ctx, "/metrics")
		has := slices.IndexFunc(names, func(name string) bool {
			return bytes.Contains(text, fmt.Appendf(nil, "relay_upstream_synced{upstream=%q}", name))
		})
		if err == nil && has < 0 {
			return nil
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("relay %s: a reload has not taken all of %v out of it: %w", r.name, names, cause(ctx, err))
		}
	}
}

// get asks the admin endpoint. An answer other than 200 is an error with its text.
func (r *relay) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, text[:min(len(text), 500)])
	}
	return text, err
}

// given are the ports that freePort has returned, or tried: what they are for may not run yet.
var given sync.Map

// host is the address of loopback that this run listens on. It is the run's own where the
// system has all of 127.0.0.0/8: when an upstream of the run is down, no other program can
// take its port and answer the relay in its place.
var host = sync.OnceValue(func() string {
	own := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l, err := net.Listen("tcp", own+":0")
	if err != nil {
		return "127.0.0.1"
	}
	l.Close()
	return own
})

// freePort returns an address of loopback that nobody has at present, below the ports that
// the system gives to connections: one of those could take it between two runs of a program.
// It returns nothing when there is none.
func freePort() string {
	for range 1000 {
		address := fmt.Sprintf("%s:%d", host(), 10000+rand.IntN(22000))
		if _, taken := given.LoadOrStore(address, true); taken {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		l.Close()
		return address
	}
	return ""
}

// boundedLog is a file that begins anew when it is full; what it had is kept once.
type boundedLog struct {
	path string
	max  int

	mu      sync.Mutex // guards all below
	file    *os.File
	written int
	tail    []byte
}

// tailBytes is how much of a log is at hand for a report.
const tailBytes = 8 << 10

func newBoundedLog(path string, max int) (*boundedLog, error) {
	f, err := os.Create(path)
	return &boundedLog{path: path, max: max, file: f}, err
}

func (l *boundedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, b...)
	if len(l.tail) > 2*tailBytes {
		l.tail = append(l.tail[:0:0], l.tail[len(l.tail)-tailBytes:]...)
	}
	if l.written > l.max {
		l.file.Close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, err
		}
		f, err := os.Create(l.path)
		if err != nil {
			return 0, err
		}
		l.file, l.written = f, 0
	}
	n, err := l.file.Write(b)
	l.written += n
	return n, err
}

func (l *boundedLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail[max(0, len(l.tail)-tailBytes):])
}

func (l *boundedLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file.Close()
}
