package audit

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestAFullDiskTearsNoLine: what was written of a line is taken back, and the next attempt begins on a new line. The
// limit of file sizes stands for the disk, of a process of its own.
func TestAFullDiskTearsNoLine(t *testing.T) {
	if os.Getenv("AUDIT_FULL_DISK") == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFullDiskTearsNoLine$")
		child.Env = append(os.Environ(), "AUDIT_FULL_DISK=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	line := string(Line{Event: Started}.encode())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(len(line)*2 + 5), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	f := &file{path: path, maxBytes: 1 << 20, maxFiles: 2}
	defer f.close()
	n, err := f.append([]byte(strings.Repeat(line, 4)), false)
	again, errAgain := f.append([]byte(line), false)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if n != 2*len(line) || err == nil || again != 0 || errAgain == nil {
		t.Errorf("%d bytes, %v, then %d bytes, %v", n, err, again, errAgain)
	}
	if _, err := f.append([]byte(line), false); err != nil {
		t.Error(err)
	}
	if lines := parsed(t, contents(t, path)); !slices.Equal(events(lines), []Event{Started, Started, Started}) {
		t.Errorf("%+v", lines)
	}
	if _, err := os.Lstat(path + ".1"); err == nil {
		t.Error("a full disk begins a new file")
	}
}
