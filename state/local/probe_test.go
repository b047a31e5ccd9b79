package local

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"meshrelay/internal/owner"
)

// withAll fills a directory with each file that a relay may have in one.
func withAll(t *testing.T, dir string) []string {
	t.Helper()
	keepOne(t, dir)
	for _, name := range []string{journalName, oldJournalName} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return []string{journalName, oldJournalName, lockName, indexName, logName("east")}
}

func TestProbeFindsNothingInADirectoryOfOurs(t *testing.T) {
	for name, dir := range map[string]string{"empty": t.TempDir(), "missing": filepath.Join(t.TempDir(), "state")} {
		if trouble, inUse := Probe(dir); trouble != nil || inUse {
			t.Errorf("%s: %v, in use %v", name, trouble, inUse)
		}
	}
	dir := t.TempDir()
	withAll(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "note.txt"), nil, 0))
	if trouble, inUse := Probe(dir); trouble != nil || inUse {
		t.Errorf("%v, in use %v", trouble, inUse)
	}
}

// TestProbeNamesEachFileOfAnotherUser: a file for which the rights are missing, in a directory in which
// files can be made.
func TestProbeNamesEachFileOfAnotherUser(t *testing.T) {
	dir := t.TempDir()
	withAll(t, dir)
	if out, err := player(t, "stranger", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// playStranger owns a directory, and has no right to what is in it.
func playStranger(dir string) error {
	const nobody = 65534
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Chmod(filepath.Join(dir, e.Name()), 0))
	}
	if os.Getuid() == 0 { // whom no mode keeps out
		err = errors.Join(err, os.Chown(dir, nobody, -1), os.Chmod(filepath.Dir(dir), 0o755), syscall.Setuid(nobody))
	}
	if err != nil {
		return err
	}
	trouble, inUse := Probe(dir)
	for _, err := range trouble {
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("another error: %w", err)
		}
	}
	if len(entries) != 5 || len(trouble) != len(entries) || inUse {
		return fmt.Errorf("%d files, trouble with %d, in use %v: %w", len(entries), len(trouble), inUse, errors.Join(trouble...))
	}
	return nil
}

func TestProbeNamesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range withAll(t, dir) {
		path := filepath.Join(dir, name)
		for what, put := range map[string]func() error{
			"a directory": func() error { return os.Mkdir(path, 0o700) },
			"a link":      func() error { return os.Symlink(dir, path) },
			"a pipe":      func() error { return syscall.Mkfifo(path, 0o600) },
		} {
			must(t, errors.Join(os.Rename(path, path+".aside"), put()))
			trouble, _ := Probe(dir)
			if len(trouble) != 1 || !strings.Contains(trouble[0].Error(), path) {
				t.Errorf("%s, %s: %v", name, what, trouble)
			}
			must(t, errors.Join(os.Remove(path), os.Rename(path+".aside", path)))
		}
	}
}

func TestProbeNamesADirectoryThatTheRelayWillNotTrust(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	if trouble, _ := Probe(dir); len(trouble) != 1 || !errors.Is(trouble[0], owner.ErrOthers) {
		t.Errorf("%v", trouble)
	}
}

// TestProbeLeavesEverythingAsItWas, and the lock free.
func TestProbeLeavesEverythingAsItWas(t *testing.T) {
	dir := t.TempDir()
	withAll(t, dir)
	must(t, os.Chmod(dir, 0o770)) // a relay takes that back
	look := func() map[string]string {
		out := map[string]string{}
		for _, path := range append(list(dir, "*"), dir) {
			info, err := os.Stat(path)
			must(t, err)
			out[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return out
	}
	before := look()
	if trouble, inUse := Probe(dir); trouble != nil || inUse {
		t.Errorf("%v, in use %v", trouble, inUse)
	}
	if after := look(); !maps.Equal(before, after) {
		t.Errorf("%v, before %v", after, before)
	}
	f, err := os.Open(filepath.Join(dir, lockName))
	must(t, err)
	defer f.Close()
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
}

func TestProbeTellsWhetherAnotherProcessHasTheDirectory(t *testing.T) {
	dir := t.TempDir()
	keepOne(t, dir)
	f, err := os.Open(filepath.Join(dir, lockName))
	must(t, err)
	defer f.Close()
	for _, tc := range []struct {
		how  int
		want bool
	}{{syscall.LOCK_EX, true}, {syscall.LOCK_SH, false}, {syscall.LOCK_UN, false}} {
		must(t, syscall.Flock(int(f.Fd()), tc.how))
		if trouble, inUse := Probe(dir); trouble != nil || inUse != tc.want {
			t.Errorf("lock %d: %v, in use %v, want %v", tc.how, trouble, inUse, tc.want)
		}
	}
}
