package yamlpos

import (
	"errors"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"
)

func parsed(t *testing.T, text string) ast.Node {
	t.Helper()
	docs, err := Parse([]byte(text))
	if err != nil || len(docs) != 1 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	return docs[0]
}

func TestLinesOfPaths(t *testing.T) {
	n := parsed(t, `# a comment
metadata: &m
  name: a
  labels:

    app: b
spec: !tag
  hosts:
  - a
  - b
  ports:
  - {number: 1,
     name: x}
again: *m
`)
	for path, want := range map[string]int{
		"": 2, "metadata": 2, "metadata.name": 3, "metadata.labels.app": 6, "spec.hosts.1": 10, "spec.ports.0.number": 12, "spec.ports.0.name": 13,
		"spec.hosts.2": 8, "spec.nothing": 7, "again.name": 14,
	} {
		var steps []string
		if path != "" {
			steps = strings.Split(path, ".")
		}
		if got := LineAt(n, steps...); got != want {
			t.Errorf("%q is on line %d, want %d", path, got, want)
		}
	}
}

func TestTextsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a: \xff":                      "is not UTF-8 text",
		strings.Repeat("[", 2000):      "is nested deeper than 1000",
		strings.Repeat("- ", 2000):     "is nested deeper than 1000",
		strings.Repeat("a\n", 200_000): "is too large: it has more than 200000 keys, values and marks",
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%.10q: %v, want %s", text, err, want)
		}
	}
	_, err := Parse([]byte("a: 1\nb: [\n"))
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || syntax.Line != 2 {
		t.Errorf("%v, want a SyntaxError on line 2", err)
	}
}

func TestEmptyDocumentsAreLeftOut(t *testing.T) {
	docs, err := Parse([]byte("---\nnull\n---\na: 1\n---\n# nothing\n"))
	if err != nil || len(docs) != 1 || Line(docs[0]) != 4 {
		t.Errorf("%d documents, %v", len(docs), err)
	}
}

func TestAliasesCountAsOftenAsTheyAreUsed(t *testing.T) {
	n := parsed(t, "a: &a [1, 2, 3]\nb: [*a, *a, *a]\n")
	if Exceeds(40, n) || !Exceeds(20, n) { // 14 as it is written
		t.Error("the node has 29 values")
	}
	long := parsed(t, "a: "+strings.Repeat("x", 64*textUnit)+"\n")
	if !Exceeds(60, long) || Exceeds(70, long) {
		t.Error("a long text counts as several values")
	}
}

func TestATabIsNamed(t *testing.T) {
	_, err := Parse([]byte("a:\n\t- b: c\n"))
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || syntax.Line != 2 || syntax.Msg != "the line begins with a tab: indent YAML with spaces" {
		t.Errorf("%v", err)
	}
}
