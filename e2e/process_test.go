// Package e2e runs the relay between real istiods, as processes on loopback.
package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
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
	eventually(p.t, p.name+" ends", func() error {
		if p.alive() {
			return errors.New("it runs")
		}
		return nil
	})
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

// freePort returns a port of 127.0.0.1 that is the test's own until it ends: a socket that does not listen keeps it.
// SO_REUSEADDR, which Go's listeners set, lets the program listen on it that it is for, also again. Without it, all that
// use the port are in the way of a socket, so that nobody is given one of these. It is below those that the system gives to
// connections.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err = syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
			err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		}
		if err != nil {
			syscall.Close(socket)
			continue
		}
		t.Cleanup(func() { syscall.Close(socket) })
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	t.Fatal("no port is free")
	return ""
}

// patience is how long a test waits for anything: so long that only a test that hangs meets it. The relay itself pauses for
// up to 30 s between two tries.
const patience = 3 * time.Minute

// within polls until check returns nil, or patience is over. It is the one way in which these tests wait.
func within(check func() error) error {
	deadline := time.Now().Add(patience)
	ticks := time.NewTicker(25 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-ticks.C
	}
}

// eventually polls until check returns nil, and fails the test with what it returned last when patience is over.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	if err := within(check); err != nil {
		t.Fatalf("%s: not so within %v: %v", what, patience, err)
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
