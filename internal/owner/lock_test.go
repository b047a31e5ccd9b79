package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALockedFileCanNotBeLockedUntilItIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := Lock(path, false, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a shared lock of a missing file: %v", err)
	}
	first, err := Lock(path, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, exclusive := range []bool{true, false} {
		if _, err := Lock(path, exclusive, 0); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
			t.Errorf("exclusive %t: %v", exclusive, err)
		}
	}
	first.Close()
	var shared []*os.File
	for range 2 {
		f, err := Lock(path, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		shared = append(shared, f)
	}
	if _, err := Lock(path, true, 0); !errors.Is(err, ErrLocked) {
		t.Errorf("exclusive beside shared locks: %v", err)
	}
	for _, f := range shared {
		f.Close()
	}
	last, err := Lock(path, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	last.Close()
}
