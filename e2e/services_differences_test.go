package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEachDifferenceOfServicesHasATest: the tests that the tables of docs/services.md name exist.
func TestEachDifferenceOfServicesHasATest(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/services.md")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("services_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code += string(b)
	}
	_, section, _ := strings.Cut(string(page), "## Beside an istiod\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.Contains(line, "| shown by |") {
			continue
		}
		rows++
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 || strings.TrimSpace(cells[1]) == "" {
			t.Errorf("the row has no test, or no reason: %s", line)
		}
		for _, m := range names {
			if !strings.Contains(code, `"`+m[1]+`"`) && !strings.Contains(code, "func "+m[1]+"(") {
				t.Errorf("there is no test %s", m[1])
			}
		}
	}
	if rows < 15 {
		t.Errorf("the section has %d rows", rows)
	}
}
