package gate

import (
	"fmt"
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
	if table := shown(); !strings.Contains(string(text), "\n"+table) {
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

var stateNames = [...]string{"follows", "departing", "held", "differs", "ruled out", "kept"}

func (s State) String() string { return stateNames[s] }

var eventNames = [...]string{
	"wanted", "same", "other", "gone", "ruled out", "holds", "hold ends", "passes", "expires", "freezes", "rolls back", "recounts",
}

func (e event) String() string { return eventNames[e] }

var effectNames = [...]string{"stays", "is put", "is dropped", "is put, and has returned", "stays, with the endpoints of now"}

func (e effect) String() string { return effectNames[e] }

// shown is the table of the transitions in Markdown.
func shown() string {
	var b strings.Builder
	b.WriteString("| upstream | state | event | next state | what is served |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range transitions() {
		mode := "live"
		if r.frozen {
			mode = "frozen"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", mode, r.from, r.on, r.to, r.do)
	}
	return b.String()
}
