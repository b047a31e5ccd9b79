// Package golden compares test output with files in testdata, and writes these files with -update.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
)

// Update is true if the test runs with -update.
var Update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Check fails the test if got differs from the content of a file. With -update it writes the file.
func Check(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: write it with: go test . -update", err)
	}
	if d := diff.Diff(path, want, "got", []byte(got)); d != nil {
		t.Errorf("%s\nif the change is intended, write the file with: go test . -update", d)
	}
}
