package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// contender is a program that relays.
type contender struct {
	name   string
	what   string // for the usage text
	binary string
	// start returns the command that starts it in a directory of its own, serving xDS on
	// listen and, if it can, profiles on admin.
	start func(dir, listen, admin string, w *world, delta bool) (*exec.Cmd, error)
	// sotwUpstreams makes the contender read its upstreams by SotW in every scenario, and
	// deltaUpstreams by delta in every scenario of delta clients.
	sotwUpstreams, deltaUpstreams bool
	// product marks the relay: its resources must be right.
	product bool
	// rules marks the relay with the rules of a federation: clients see the world through those
	// rules. Only scenarios that name it use it.
	rules bool
	// slow is about how long a change takes for each resource and client, of a contender to which a
	// change costs as much as a sync. Fewer changes and one run are enough, and steady rates too much.
	slow time.Duration
	// kubernetes marks a program that reads API servers only, and mute one that serves nobody.
	kubernetes, mute bool
	// omits marks the relay without the services of API servers: its clients hold nothing.
	omits bool
	// ready is the path at which a contender tells that it has all objects of an API server. Others
	// listen only then.
	ready string
}

// takesDelta reports whether the contender reads the upstreams of a scenario by delta.
func (c contender) takesDelta(s scenario) bool {
	return s.Delta && !c.sotwUpstreams && (!s.SotWUpstreams || c.deltaUpstreams)
}

// binaries are where the contenders are.
type binaries struct{ relay, floor, linear, istiod, watch, apply, apiserver, etcd string }

func contenders(b binaries) []contender {
	return []contender{
		{name: "floor", binary: b.floor, what: "forwards bytes: cuts responses at their resource fields, and no more", start: b.startFloor, deltaUpstreams: true},
		{name: "relay", binary: b.relay, what: "the relay, as it comes", start: b.startRelay, product: true, ready: "/ready"},
		{name: "relay-rules", binary: b.relay, what: "the relay with import rules, rewriting and union", start: b.startRelayRules, product: true, rules: true},
		{name: "linear", binary: b.linear, what: "a minimal relay over go-control-plane's LinearCache", start: b.startLinear, sotwUpstreams: true, slow: 800 * time.Nanosecond},
		{name: "istiod", binary: b.istiod, what: "istiod 1.23 with configSources", start: b.startIstiod, sotwUpstreams: true, slow: 5 * time.Microsecond},
		{name: "relay-omit", binary: b.relay, what: "the relay with `services.mode: omit`", start: b.startRelay, product: true, ready: "/ready", kubernetes: true, omits: true},
		{name: "watch", binary: b.watch, what: "reads the API server's stream: scans the frames, and keeps and serves nothing", start: b.startWatch, kubernetes: true, mute: true},
		{name: "apply", binary: b.apply, what: "four plain writers over client-go, which apply objects from a file", start: b.startApply, mute: true},
	}
}

func (b binaries) startFloor(_, listen, _ string, w *world, delta bool) (*exec.Cmd, error) {
	return exec.Command(b.floor, "-listen", listen, "-upstreams", strings.Join(w.addrs(), ","), "-delta="+strconv.FormatBool(delta)), nil
}

func (b binaries) startLinear(_, listen, _ string, w *world, _ bool) (*exec.Cmd, error) {
	return exec.Command(b.linear, "-listen", listen, "-upstreams", strings.Join(w.addrs(), ",")), nil
}

func (b binaries) startWatch(_, listen, _ string, w *world, _ bool) (*exec.Cmd, error) {
	urls := w.cluster.url + objects
	if w.pods > 0 {
		for _, path := range serviceInputs {
			urls += "," + w.cluster.url + path
		}
	}
	return exec.Command(b.watch, "-listen", listen, "-url", urls, "-certificate", w.cluster.certificate, "-token", adminToken), nil
}

func (b binaries) startRelay(dir, listen, admin string, w *world, _ bool) (*exec.Cmd, error) {
	return b.relayWith(dir, listen, admin, w, "", "")
}

func (b binaries) startRelayRules(dir, listen, admin string, w *world, _ bool) (*exec.Cmd, error) {
	return b.relayWith(dir, listen, admin, w, importRules+rewriteRules, mergeRules)
}

// relayWith starts the relay with some more lines for each upstream, and at the top.
func (b binaries) relayWith(dir, listen, admin string, w *world, each, top string) (*exec.Cmd, error) {
	var cfg strings.Builder
	cfg.WriteString("node: {id: bench}\nupstreams:\n")
	for i, addr := range w.addrs() {
		fmt.Fprintf(&cfg, "  - name: upstream-%03d\n    xds: {addresses: [%q], plaintext: true}\n%s", i, addr, each)
	}
	if w.cluster != nil {
		fmt.Fprintf(&cfg, "  - name: cluster\n    firstSync: wait\n    kubernetes: {cluster: {kubeconfig: %q}}\n", w.cluster.kubeconfig)
		switch {
		case w.omits:
			cfg.WriteString("    services: {mode: omit}\n")
		case w.pods > 0:
			cfg.WriteString("    services: {mode: discover}\n")
		}
	}
	cfg.WriteString(top)
	if w.target != nil {
		fmt.Fprintf(&cfg, "sinks:\n  - name: bench\n    cluster: {kubeconfig: %q}\n    namespace: team-00\n    view: all\n    mode: apply\n    writesPerSecond: 10000\nviews: [{name: all, default: true}]\n", w.target.kubeconfig)
	}
	if w.keeps {
		fmt.Fprintf(&cfg, "state: {dir: %q}\n", filepath.Join(dir, stateName))
	}
	fmt.Fprintf(&cfg, "downstream:\n  listeners:\n    - {address: %q, plaintext: true}\nadmin: {address: %q}\n", listen, admin)
	path := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(path, []byte(cfg.String()), 0o600); err != nil {
		return nil, err
	}
	return exec.Command(b.relay, "serve", "-c", path), nil
}

func (b binaries) startIstiod(dir, listen, _ string, w *world, _ bool) (*exec.Cmd, error) {
	mesh := "configSources:\n"
	for _, addr := range w.addrs() {
		mesh += "- address: xds://" + addr + "\n"
	}
	registries := []string{"--registries="}
	if w.cluster != nil {
		mesh, registries = "{}\n", []string{"--registries=Kubernetes", "--kubeconfig", w.cluster.kubeconfig}
	}
	path := filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(path, []byte(mesh), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(b.istiod, "discovery", "--meshConfig", path, "--clusterID", "bench",
		"--grpcAddr", listen, "--httpAddr", "127.0.0.1:0", "--httpsAddr", "", "--secureGRPCAddr", "",
		"--monitoringAddr", "127.0.0.1:0", "--ctrlz_port", "0", "--shutdownDuration", "1s")
	cmd.Args = append(cmd.Args, registries...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "ENABLE_CA_SERVER=false", "POD_NAME=bench", "POD_NAMESPACE=istio-system")
	return cmd, nil
}

func (w *world) addrs() []string {
	out := make([]string, len(w.upstreams))
	for i, u := range w.upstreams {
		out[i] = u.addr
	}
	return out
}

// process is a running contender.
type process struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{}
	err     error
	began   time.Time
}

func launch(cmd *exec.Cmd, dir string) (*process, error) {
	path := filepath.Join(dir, "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, logPath: path, ended: make(chan struct{}), began: time.Now()}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { defer close(p.ended); p.err = cmd.Wait() }()
	return p, nil
}

// listening waits until the process takes connections.
func (p *process) listening(addr string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if p.listens(addr) {
			return nil
		}
		if err := p.alive(); err != nil {
			return err
		}
	}
	return fmt.Errorf("it did not listen on %s within %v", addr, timeout)
}

func (p *process) listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (p *process) alive() error {
	select {
	case <-p.ended:
		log, _ := os.ReadFile(p.logPath)
		return fmt.Errorf("it has ended: %w; the end of its log:\n%s", errors.Join(p.err, errors.New("early")), log[max(0, len(log)-2000):])
	default:
		return nil
	}
}

// stop ends the process as an operator would, and after some patience by force.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// cpu returns the processor time that the process has used, in user and kernel mode.
func (p *process) cpu() time.Duration {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	default:
	}
	const schedClock = 2 // CPUCLOCK_SCHED, of linux/posix-timers.h
	clock := ^int32(p.cmd.Process.Pid)<<3 | schedClock
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// memory returns the resident set of the process and the largest that it was, in bytes.
func (p *process) memory() (rss, peak int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			rss = kib << 10
		case "VmHWM:":
			peak = kib << 10
		}
	}
	return rss, peak
}

// freePort returns an address that nobody listens on, below the ports that the kernel gives to connections:
// one of those could be taken before the process that it is for listens.
func freePort() (string, error) {
	for range 1000 {
		lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000)))
		if err == nil {
			return lis.Addr().String(), lis.Close()
		}
	}
	return "", errors.New("no port of 127.0.0.1 from 10000 to 32000 is free")
}
