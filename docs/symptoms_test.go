package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/docs"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/events"
	"meshrelay/push"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/kubernetes/clusters/registry"
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

// words returns texts of a type of the product.
func words[T ~string](all []T) (texts []string) {
	for _, one := range all {
		texts = append(texts, string(one))
	}
	return texts
}

// delays returns the labels of relay_push_delayed_total.
func delays(t *testing.T) (labels []string) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(push.NewPusher(push.Options{}, push.NewWork()))
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
		}
	}
	return labels
}

// constants returns the texts of the constants in a file of the product whose declarations match a pattern.
func constants(t *testing.T, file, pattern string) (texts []string) {
	t.Helper()
	code, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t`+pattern+` += "([^"]+)"`).FindAllSubmatch(code, -1) {
		texts = append(texts, string(m[1]))
	}
	return texts
}

// TestEveryWordOfTheProductIsASymptom: each state, outcome, type and reason has a row in words.md, and no row has
// another word.
func TestEveryWordOfTheProductIsASymptom(t *testing.T) {
	page := read(t, "words.md")
	for heading, want := range map[string][]string{
		"## State of an upstream":             append(words(upstreams.States()), "stale", "held", "frozen", "cluster …"),
		"## State of a kind of an API server": words([]kubernetes.CollectionState{kubernetes.Listing, kubernetes.Following, kubernetes.Failing, kubernetes.Denied, kubernetes.Unserved, kubernetes.Polled}),
		"## State of a found cluster":         words(registry.States()),
		"## Whether a client has a resource":  words([]subscription.Receipt{subscription.NotForIt, subscription.NotSent, subscription.Sent, subscription.Rejected, subscription.Acknowledged}),
		"## What became of a resource":        constants(t, "admin/explain.go", `\w+ +Outcome`),
		"## Why a resource is left out":       records.Reasons(),
		"## Why a client is refused":          words(refusal.Reasons()),
		"## Why clients are pushed":           words(push.Reasons()),
		"## Types of events":                  words(events.Types()),
		"## Is it ready?":                     constants(t, "admin/ready.go", `head\w+`),
		"## State of a client":                constants(t, "admin/view/clients.go", `client\w+`),
		"## Why pushes wait":                  delays(t),
	} {
		if d := cmp.Diff(want, firstCells(t, page, heading)); d != "" {
			t.Errorf("words.md, %q (-code +words.md):\n%s", heading, d)
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
	if len(want) < 20 || !slices.Equal(want, got) {
		t.Errorf("symptoms.md has other rows of alerts than alerts.yaml, sorted (-alerts.yaml +symptoms.md):\n%s", cmp.Diff(want, got))
	}
}
