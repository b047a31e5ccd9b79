package yamlpos

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
)

// costly are shapes of documents, of some n bytes, over which a parser may take long.
var costly = map[string]func(n int) string{
	"flat mapping":           each(func(i int) string { return fmt.Sprintf("k%d: v\n", i) }),
	"nested flat mapping":    each(func(i int) string { return fmt.Sprintf("%sk%d: v\n", map[bool]string{true: "a:\n"}[i == 0]+"  ", i) }),
	"keys without values":    each(func(i int) string { return fmt.Sprintf("k%d:\n", i) }),
	"items without values":   each(func(int) string { return "-\n" }),
	"mappings without value": each(func(int) string { return "- a:\n" }),
	"small mappings":         each(func(int) string { return "- a: b\n  c: d\n  e: f\n" }),
	"question marks":         each(func(i int) string { return fmt.Sprintf("? k%d\n", i) }),
	"questions and answers":  each(func(i int) string { return fmt.Sprintf("? k%d\n: v\n", i) }),
	"tags":                   each(func(int) string { return "- !a\n" }),
	"anchors":                each(func(i int) string { return fmt.Sprintf("- &a%d\n", i) }),
	"quoted keys":            each(func(i int) string { return fmt.Sprintf("\"k%d\": 'v'\n", i) }),
	"items in items":         each(func(int) string { return "- - a\n" }),
	"comments":               each(func(int) string { return "- a # b\n" }),
	"merges":                 each(func(int) string { return "- <<: *a\n" }),
	"literals":               each(func(int) string { return "- |\n a\n" }),
	"text":                   each(func(int) string { return "some text here\n" }),
	"flow list":              flow("[%s]", func(int) string { return "1," }),
	"flow empties":           flow("[%s]", func(int) string { return "{}," }),
	"flow commas":            flow("[%s]", func(int) string { return "," }),
	"flow strings":           flow("[%s]", func(int) string { return "\"\"," }),
	"flow pairs":             flow("[%s]", func(int) string { return "a: b," }),
	"flow aliases":           flow("[&a 1,%s]", func(int) string { return "*a ," }),
	"flow tags":              flow("[%s]", func(int) string { return "!a 1," }),
	"flow mapping":           flow("{%s}", func(i int) string { return fmt.Sprintf("k%d: 1,", i) }),
	"flow keys":              flow("{%s}", func(i int) string { return fmt.Sprintf("k%d,", i) }),
	"flow nulls":             flow("{%s}", func(i int) string { return fmt.Sprintf("k%d: ,", i) }),
}

func each(line func(int) string) func(int) string {
	return func(n int) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			b.WriteString(line(i))
		}
		return b.String()
	}
}

func flow(frame string, item func(int) string) func(int) string {
	return func(n int) string { return fmt.Sprintf(frame, each(item)(n)) }
}

// mostAllocated is what the parser may allocate, in bytes, for half of what is not refused.
const mostAllocated = 160 << 20

// TestAcceptedTextsAreParsedWithinBounds looks for the largest text of each shape that is
// not refused, and parses half of it. What the parser allocates tells its work, where that
// grows with the square of the text too.
func TestAcceptedTextsAreParsedWithinBounds(t *testing.T) {
	for name, shape := range costly {
		t.Run(name, func(t *testing.T) {
			accepted := func(n int) bool {
				_, err := tokenize(shape(n), maxTokens)
				return err == nil
			}
			// Most shapes are refused for their number of tokens only, which grows with their size.
			const part = 20_000
			least, most := 100, min(1<<20, part*maxTokens/atMost(shape(part)))
			if accepted(most) {
				least = most
			}
			for most-least > most/8 {
				if n := (least + most) / 2; accepted(n) {
					least = n
				} else {
					most = n
				}
			}
			text := shape(least / 2)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			tokens, err := tokenize(text, maxTokens)
			if err == nil {
				_, err = parser.Parse(tokens, 0)
			}
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			if allocated > mostAllocated {
				t.Errorf("%d bytes, %d tokens: %d MB allocated, want %d at most; %.60v", len(text), len(tokens), allocated>>20, mostAllocated>>20, err)
			}
		})
	}
}

func TestNeverFewerTokensThanAreCounted(t *testing.T) {
	for name, shape := range costly {
		text := shape(20_000)
		if n, most := len(lexer.Tokenize(text)), atMost(text); n > most {
			t.Errorf("%s: %d tokens, and %d at most were counted", name, n, most)
		}
	}
}

func TestTwoHundredThousandLinesAreRefused(t *testing.T) {
	text := each(func(i int) string { return fmt.Sprintf("k%d: v\n", i) })(1 << 20)
	if strings.Count(text, "\n") < 90_000 {
		t.Fatal("too short")
	}
	text += text
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := tokenize(text, maxTokens)
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; err == nil || allocated > 1<<20 {
		t.Errorf("%v, with %d bytes allocated: it is to be refused before it is parsed", err, allocated)
	}
}

func FuzzTokenize(f *testing.F) {
	for _, shape := range costly {
		f.Add(shape(200))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		tokens, err := tokenize(text, maxTokens)
		if err == nil && len(tokens) > 4*atMost(text) {
			t.Errorf("%d tokens, %d counted", len(tokens), atMost(text))
		}
	})
}
