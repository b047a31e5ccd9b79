package main

import (
	"os"
	"regexp"
	"testing"
)

// TestScenariosInTheTableOfFailuresExist: docs/failures.md names them as the proof of a row.
func TestScenariosInTheTableOfFailuresExist(t *testing.T) {
	page, err := os.ReadFile("../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile("chaos `([a-z-]+)`").FindAllSubmatch(page, -1) {
		n++
		if _, err := choose(string(m[1])); err != nil {
			t.Errorf("docs/failures.md: %v", err)
		}
	}
	if n < 5 {
		t.Errorf("%d scenarios found: the pattern no longer fits", n)
	}
}
