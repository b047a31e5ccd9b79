package gate

import (
	"os"
	"strings"
	"testing"
)

// TestTheTableOfTheDocsIsThatOfTheCode: docs/intake.md shows each transition.
func TestTheTableOfTheDocsIsThatOfTheCode(t *testing.T) {
	const page = "../../../docs/intake.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if table := Transitions(); !strings.Contains(string(text), "\n"+table) {
		t.Errorf("%s has another table than this:\n%s", page, table)
	}
}

// TestEachTransitionIsThereOnce, and each state but the first can be left.
func TestEachTransitionIsThereOnce(t *testing.T) {
	seen, left := map[row]bool{}, map[State]bool{}
	for _, r := range transitions() {
		key := row{frozen: r.frozen, from: r.from, on: r.on}
		if seen[key] {
			t.Errorf("%v is there twice", r)
		}
		seen[key] = true
		left[r.from] = left[r.from] || r.to == Follows
	}
	for s := Follows; s < states; s++ {
		if !left[s] {
			t.Errorf("nothing leads from %s back to what the source wants", s)
		}
	}
}
