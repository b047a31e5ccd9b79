package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestEveryFailureHasATest checks that each row of the table of failures tells what clients
// see, what operators see and what to do, and names an existing test, scenario of upstreams or
// scenario of the chaos suite.
func TestEveryFailureHasATest(t *testing.T) {
	tests := proofs(t)
	rows := 0
	named := regexp.MustCompile("`(Test\\w+|\\w+\\.txt)`")
	chaos := regexp.MustCompile("chaos `[a-z-]+`")
	for line := range strings.Lines(read(t, "failures.md")) {
		columns := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(columns) < 5 || strings.HasPrefix(line, "| failure") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		for i, c := range columns {
			if strings.Trim(c, "| ") == "" {
				t.Errorf("column %d is empty: %s", i+1, line)
			}
		}
		proof := columns[len(columns)-1]
		found := 0
		for _, m := range named.FindAllStringSubmatch(proof, -1) {
			found++
			if _, ok := tests[m[1]]; !ok {
				t.Errorf("%s: there is no test %s", columns[0], m[1])
			}
		}
		found += len(chaos.FindAllString(proof, -1)) // chaos has a test that it knows them
		if found == 0 {
			t.Errorf("no test: %s", line)
		}
	}
	if rows < 30 {
		t.Errorf("the table has %d rows", rows)
	}
}
