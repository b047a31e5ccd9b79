package docs_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/docs"
	"meshrelay/downstream/refusal"
	"meshrelay/events"
	"meshrelay/push"
	"meshrelay/upstreams/intake"
)

// firstCells returns the words in backquotes that begin the rows of a section of a page, which ends at the next
// heading of its level.
func firstCells(t *testing.T, page, heading string) (words []string) {
	t.Helper()
	_, section, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("there is no section %q", heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	section, _, _ = strings.Cut(section, "\n"+level+" ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .+ \\|$").FindAllStringSubmatch(section, -1) {
		words = append(words, m[1])
	}
	return words
}

// constants returns the values of the constants of a type of texts in a file.
func constants(t *testing.T, path, of string) (values []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^\s*\w+\s+`+of+`\s+= "([^"]+)"`).FindAllStringSubmatch(read(t, path), -1) {
		values = append(values, m[1])
	}
	if len(values) < 3 {
		t.Fatalf("%s has %d constants of the type %s", path, len(values), of)
	}
	return values
}

// words returns texts of a type of the product.
func words[T ~string](all []T) (texts []string) {
	for _, one := range all {
		texts = append(texts, string(one))
	}
	return texts
}

// TestEveryWordOfTheProductIsASymptom: each state, outcome, type and reason has a row in words.md, and no row has
// another word.
func TestEveryWordOfTheProductIsASymptom(t *testing.T) {
	page := read(t, "words.md")
	for heading, want := range map[string][]string{
		"## State of an upstream":             append(constants(t, "../upstreams/status.go", "State"), "stale", "held", "frozen", "cluster …"),
		"## State of a kind of an API server": constants(t, "../upstreams/kubernetes/status.go", "CollectionState"),
		"## State of a found cluster":         constants(t, "../upstreams/kubernetes/clusters/registry/registry.go", "State"),
		"## Whether a client has a resource":  constants(t, "../downstream/subscription/status.go", "Receipt"),
		"## What became of a resource":        constants(t, "../admin/explain.go", "Outcome"),
		"## Why a resource is left out":       intake.Reasons(),
		"## Why a client is refused":          words(refusal.Reasons()),
		"## Why clients are pushed":           words(push.Reasons()),
		"## Types of events":                  words(events.Types()),
	} {
		if d := cmp.Diff(want, firstCells(t, page, heading)); d != "" {
			t.Errorf("words.md, %q (-code +words.md):\n%s", heading, d)
		}
	}
	for heading, in := range map[string]struct{ path, pattern string }{
		"## Is it ready?":      {"../admin/ready.go", `head(?:, code)? :?= "([^"]+)"`},
		"## State of a client": {"../admin/view/clients.go", `return (?:Count\(.+\) \+ )?" ?([^"]+)", (?:OK|Warn|Bad)`},
		"## Why pushes wait":   {"../push/pusher.go", `by[A-Z]\w+: "(\w+)"`},
	} {
		words, got := map[string]bool{}, firstCells(t, page, heading)
		for _, m := range regexp.MustCompile(in.pattern).FindAllStringSubmatch(read(t, in.path), -1) {
			words[m[1]] = true
		}
		slices.Sort(got)
		if d := cmp.Diff(slices.Sorted(maps.Keys(words)), got); d != "" {
			t.Errorf("words.md, %q, sorted (-%s +words.md):\n%s", heading, in.path, d)
		}
	}
}

// literals returns the code of the repository without tests, with the quotes in texts as they are printed.
func literals(t *testing.T) string {
	t.Helper()
	var code strings.Builder
	sources(t, func(path, content string) {
		if !strings.HasSuffix(path, "_test.go") {
			code.WriteString(strings.ReplaceAll(content, `\"`, `"`))
		}
	})
	return code.String()
}

// TestErrorTextsOfSymptomsAreThoseOfTheCode: … stands for names and numbers.
func TestErrorTextsOfSymptomsAreThoseOfTheCode(t *testing.T) {
	code, n := literals(t), 0
	for _, shown := range firstCells(t, read(t, "symptoms.md"), "## Error texts") {
		n++
		if slices.Contains([]string{"connection refused", "no such host", "address already in use"}, shown) {
			continue // texts of the system
		}
		for _, part := range strings.Split(shown, "…") {
			if part = strings.TrimSpace(part); !strings.Contains(code, part) {
				t.Errorf("symptoms.md has the error %q, and no code has %q", shown, part)
			}
		}
	}
	if n < 40 {
		t.Errorf("symptoms.md has %d error texts", n)
	}
}

// TestEveryAlertIsASymptom: with the meaning that its runbook begins with.
func TestEveryAlertIsASymptom(t *testing.T) {
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^\s+- alert: (\w+)$`).FindAllStringSubmatch(read(t, "../deploy/prometheus/alerts.yaml"), -1) {
		want = append(want, fmt.Sprintf("| [%s](runbooks/%[1]s.md) | %s |", m[1], docs.Meaning(m[1])))
	}
	for line := range strings.Lines(read(t, "symptoms.md")) {
		if strings.HasPrefix(line, "| [") {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 30 || !slices.Equal(want, got) {
		t.Errorf("symptoms.md has other rows of alerts than alerts.yaml, sorted (-alerts.yaml +symptoms.md):\n%s", cmp.Diff(want, got))
	}
}
