package smallfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALargerFileIsAnErrorThatNamesItAndTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 2049)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 2048); err == nil || err.Error() != path+" is larger than 2 KiB" {
		t.Errorf("error %v", err)
	}
	if b, err := Read(path, 2049); err != nil || len(b) != 2049 {
		t.Errorf("%d bytes, error %v", len(b), err)
	}
}
