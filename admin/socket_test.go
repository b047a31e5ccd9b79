package admin

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

// TestTheSocketIsOpenedWhenItCanBe: a relay that starts while an earlier one drains opens the socket when that one has
// ended. Until then, /ready has the reason.
func TestTheSocketIsOpenedWhenItCanBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	before, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	f, _, _ := controlled(t, Config{Socket: path})
	const retry = 10 * time.Millisecond
	f.socketRetry = retry
	address, stop := f.running(t)
	c := Client{Address: address}
	reasons := func() string {
		r, err := c.Ready(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(r.Reasons, "\n")
	}
	if v, err := c.Version(t.Context()); err != nil || v.AdminSocket != "" || !strings.Contains(reasons(), "another process serves it") {
		t.Fatal(v, err, reasons())
	}
	await.Return(t, "ten attempts, each of which asks whether the socket is served", func() {
		for range 10 {
			attempt, err := before.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			attempt.Close()
		}
	})
	before.Close()
	await.Until(t, "there is a socket, as nobody else has it", func() bool {
		v, err := c.Version(t.Context())
		return err == nil && v.AdminSocket == path
	}, func() any { return reasons() })
	if _, err := (Client{Address: address, Socket: path}).Order(t.Context(), "east", "freeze", intake.Order{}); err != nil {
		t.Error(err)
	}
	if got := reasons(); strings.Contains(got, "socket") {
		t.Errorf("/ready still has a reason that is over: %s", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(f.logged.String(), "admin socket not open"); n != 1 {
		t.Errorf("logged %d times that it can not be opened:\n%s", n, f.logged)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left behind")
	}
}

func TestARelayWithoutItsSocketEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	other, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	f, _, _ := controlled(t, Config{Socket: path})
	_, stop := f.running(t)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}
}

// TestTheSocketIsClosedToOthersFromTheStart, even with an open umask and a directory that others may search.
func TestTheSocketIsClosedToOthersFromTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	defer syscall.Umask(syscall.Umask(0))
	if err := os.Mkdir(dir, 0o755); err != nil { // this is what is tested
		t.Fatal(err)
	}
	path := filepath.Join(dir, "admin.sock")
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			if info, err := os.Lstat(path); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("the socket was %v", info.Mode())
				return
			}
		}
	})
	for range 1000 {
		lis, err := listenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		lis.Close()
	}
	cancel()
	looking.Wait()
}

// TestWhatOthersCanWriteToIsTightenedWhereItIsTheRelays: in a Kubernetes volume with an fsGroup, that group can write
// to all directories.
func TestWhatOthersCanWriteToIsTightenedWhereItIsTheRelays(t *testing.T) {
	for name, tc := range map[string]struct {
		own        bool
		mode, then os.FileMode
		linked     bool
		opens      bool
	}{
		"its own, as fsGroup leaves it": {own: true, mode: os.ModeSetgid | 0o770, then: os.ModeSetgid | 0o750, opens: true},
		"its own, open to all":          {own: true, mode: 0o777, then: 0o755, opens: true},
		"its own, and closed":           {own: true, mode: 0o700, then: 0o700, opens: true},
		"another's":                     {mode: 0o770, then: 0o770},
		"a link to another's":           {own: true, linked: true, mode: 0o770, then: 0o770},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			at := dir
			if tc.linked {
				at = filepath.Join(t.TempDir(), "link")
				if err := os.Symlink(dir, at); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, tc.mode); err != nil {
				t.Fatal(err)
			}
			f := newFixture(t, Config{Socket: filepath.Join(at, "admin.sock"), OwnSocketDir: tc.own})
			lis := f.openSocket()
			if (lis != nil) != tc.opens {
				t.Errorf("opened is %v: %s", lis != nil, f.socket.Load().problem)
			}
			if lis != nil {
				lis.Close()
			}
			if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|tc.then {
				t.Errorf("the directory is %v, %v", info.Mode(), err)
			}
			if told := strings.Contains(f.logged.String(), "write permission of others removed"); told != (tc.mode != tc.then) {
				t.Errorf("told is %v:\n%s", told, f.logged)
			}
		})
	}
}

// TestWhatBelongsToSomebodyElseIsNotTightened, although root could do it.
func TestADirectoryThatIsThereToBeSharedIsLeftAsItIs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); closeToOthers(dir) || err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("it is %v now, %v", info.Mode(), err)
	}
}

func TestWhatBelongsToSomebodyElseIsNotTightened(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := filepath.Join(t.TempDir(), "state")
	for _, do := range []func() error{
		func() error { return os.Mkdir(dir, 0o700) },
		func() error { return os.Chmod(dir, 0o770) }, // this is what is tested
		func() error { return os.Chown(dir, 12345, -1) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if closeToOthers(dir) {
		t.Error("it was")
	}
}
