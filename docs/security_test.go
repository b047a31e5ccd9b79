package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestEveryThreatHasATest checks that each row of the threat model tells who, what and how it is
// met, and names tests or scenarios that exist.
func TestEveryThreatHasATest(t *testing.T) {
	tests := proofs(t)
	_, model, found := strings.Cut(read(t, "security.md"), "\n## Threat model\n")
	model, _, _ = strings.Cut(model, "\n## ")
	if !found {
		t.Fatal("there is no threat model")
	}
	rows := 0
	named := regexp.MustCompile("`(Test\\w+|\\w+\\.txt)`")
	for line := range strings.Lines(model) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| who |") || strings.HasPrefix(line, "| --- |") {
			continue
		}
		rows++
		columns := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(columns) != 5 {
			t.Errorf("%d columns: %s", len(columns), line)
			continue
		}
		for i, c := range columns {
			if strings.TrimSpace(c) == "" && i != 3 { // nothing may be left to do
				t.Errorf("column %d is empty: %s", i+1, line)
			}
		}
		proofs := named.FindAllStringSubmatch(columns[4], -1)
		if len(proofs) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, m := range proofs {
			if _, ok := tests[m[1]]; !ok {
				t.Errorf("%s: there is no test %s", strings.TrimSpace(columns[1]), m[1])
			}
		}
	}
	if rows < 22 {
		t.Errorf("the threat model has %d rows", rows)
	}
}
