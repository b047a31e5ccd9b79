package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestEveryFactOfAServerIsTested, or servers.md tells that it is not: the last column of each row names
// tests that exist.
func TestEveryFactOfAServerIsTested(t *testing.T) {
	known, named, rows := proofs(t), regexp.MustCompile("`(Test\\w+)`"), 0
	for line := range strings.Lines(read(t, "servers.md")) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		last := strings.TrimSuffix(cells[len(cells)-1], " |")
		if !strings.HasPrefix(line, "| ") || last == "tested" || last == "---" {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(last, -1)
		if len(tests) == 0 && last != "-" && last != "not tested" {
			t.Errorf("no test is named in %s", line)
		}
		for _, m := range tests {
			if _, exists := known[m[1]]; !exists {
				t.Errorf("there is no test %s", m[1])
			}
		}
	}
	if rows < 20 {
		t.Errorf("servers.md has %d rows", rows)
	}
}
