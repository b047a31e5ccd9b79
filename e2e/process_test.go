// Package e2e runs the relay between real istiods, as processes on loopback.
package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary returns a program that the suite needs. A missing one is a failure: a suite
// that skips proves nothing.
func binary(t *testing.T, env, path string) string {
	t.Helper()
	if v := os.Getenv(env); v != "" {
		path = v
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(abs); err != nil {
		t.Fatalf("%v: run this suite with make e2e, which builds it", err)
	}
	return abs
}

// process is a program that runs until the test ends or stops it.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{}
	out  lockedBuffer
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

func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return string(b[max(0, len(b)-6000):])
}

func run(t *testing.T, name, dir string, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		p.cmd.Wait() //nolint:errcheck // it is ended by a signal
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", name, p.out.tail())
		}
	})
	return p
}

// kill ends the process as a crash would, and waits for it.
func (p *process) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
	<-p.done
}

// terminate ends the process as an operator would.
func (p *process) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
}

// pause stops the process until do has returned, so that it sees all that do changes at once. A process that does not
// run is left alone.
func (p *process) pause(do func()) {
	p.t.Helper()
	if p.alive() {
		if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
			p.t.Fatal(err)
		}
		defer syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT) //nolint:errcheck // it may have been killed
	}
	do()
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// freePort returns a port of 127.0.0.1 that nobody has at present. It is below those that
// the system gives to connections: one of those could take it before, or between two runs
// of, the program that it is for.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
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
	t.Fatal("no port is free")
	return ""
}

// given are the ports that freePort has returned, or tried: what they are for may not run yet.
var given sync.Map

// patience is how long a test waits for what must happen. The relay itself pauses for up to 30 s between two tries, and
// a machine that has just begun may need as long to start an API server.
const patience = 90 * time.Second

// eventually polls until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so within %v: %v", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	// Renamed into place, so that nobody reads half of it.
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
