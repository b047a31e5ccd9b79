package docs_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rules is how many rules there are of each letter.
var rules = map[string]int{"C": 24, "S": 28, "D": 3, "N": 6}

// TestEveryRuleHasATestOrAReason checks that protocol.md has a row for each rule, and
// that each row names a test or a scenario that exists and carries the rule's number, or
// tells why the rule does not apply.
func TestEveryRuleHasATestOrAReason(t *testing.T) {
	carried := proofs(t) // the rules that each test proves

	rows := map[string]string{}
	row := regexp.MustCompile(`(?m)^\| ([CSDN]\d+) \| (.+) \| (.+) \|$`)
	for _, m := range row.FindAllStringSubmatch(read(t, "protocol.md"), -1) {
		if _, twice := rows[m[1]]; twice {
			t.Errorf("protocol.md has two rows for %s", m[1])
		}
		rows[m[1]] = m[3]
	}

	known := map[string]bool{}
	named := regexp.MustCompile("^`(Test\\w+|\\w+\\.txt)`$")
	for letter, n := range rules {
		for i := range n {
			rule := fmt.Sprintf("%s%d", letter, i+1)
			known[rule] = true
			proof, ok := rows[rule]
			m := named.FindStringSubmatch(proof)
			switch {
			case !ok:
				t.Errorf("protocol.md does not have %s", rule)
			case strings.HasPrefix(proof, "does not apply"):
			case m == nil:
				t.Errorf("%s: the proof %q is neither one test nor \"does not apply\"", rule, proof)
			case !slices.Contains(carried[m[1]], rule):
				t.Errorf("%s: no test %s, or it does not carry the rule's number", rule, m[1])
			}
		}
	}
	for rule := range rows {
		if !known[rule] {
			t.Errorf("protocol.md has a row for %s, which is no rule", rule)
		}
	}
	for name, of := range carried {
		for _, rule := range of {
			if !known[rule] {
				t.Errorf("%s carries %s, which is no rule", name, rule)
			}
		}
	}
}
