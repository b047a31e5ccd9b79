// Package docs_test keeps the documents true.
package docs_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sources calls f with every Go file of the repository.
func sources(t *testing.T, f func(path, content string)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			f(path, read(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryRuleHasATestOrAReason(t *testing.T) {
	proven := map[string]bool{}
	test := regexp.MustCompile(`(?m)^func Test\w+`)
	rule := regexp.MustCompile(`_([CSDN]\d+)`)
	sources(t, func(path, content string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, name := range test.FindAllString(content, -1) {
			for _, m := range rule.FindAllStringSubmatch(name, -1) {
				proven[m[1]] = true
			}
		}
	})
	row := regexp.MustCompile(`^\| ([CSDN]\d+) \| (.+) \| (.+) \|$`)
	rows := map[string]string{}
	s := bufio.NewScanner(strings.NewReader(read(t, "protocol.md")))
	for s.Scan() {
		if m := row.FindStringSubmatch(s.Text()); m != nil {
			rows[m[1]] = m[3]
		}
	}
	for letter, n := range map[string]int{"C": 22, "S": 27, "D": 4, "N": 6} {
		for i := 1; i <= n; i++ {
			id := fmt.Sprintf("%s%d", letter, i)
			proof, ok := rows[id]
			switch {
			case !ok:
				t.Errorf("protocol.md says nothing of %s", id)
			case proof == "test" && !proven[id]:
				t.Errorf("protocol.md says that %s is tested, and no test carries it", id)
			}
		}
	}
}

func TestEveryDirectDependencyHasAReason(t *testing.T) {
	doc := read(t, "dependencies.md")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(doc, -1) {
		listed[m[1]] = true
	}
	direct := map[string]bool{}
	for line := range strings.Lines(read(t, "../go.mod")) {
		f := strings.Fields(line)
		if len(f) == 2 && strings.Contains(f[0], ".") && strings.HasPrefix(f[1], "v") {
			direct[f[0]] = true
			if !listed[f[0]] {
				t.Errorf("dependencies.md gives no reason for %s", f[0])
			}
		}
	}
	for m := range listed {
		if !direct[m] {
			t.Errorf("dependencies.md lists %s, which go.mod does not require directly", m)
		}
	}
}

func TestEveryMetricIsDescribed(t *testing.T) {
	doc := read(t, "metrics.md")
	metric := regexp.MustCompile(`"(relay_[a-z_]+)"`)
	found := 0
	sources(t, func(path, content string) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "../downstream") && !strings.HasPrefix(path, "../upstreams") && !strings.HasPrefix(path, "../cmd") {
			return
		}
		for _, m := range metric.FindAllStringSubmatch(content, -1) {
			found++
			if !strings.Contains(doc, "`"+m[1]+"`") {
				t.Errorf("metrics.md does not describe %s (%s)", m[1], path)
			}
		}
	})
	if found < 15 {
		t.Errorf("only %d metrics found in the code", found)
	}
}

// TestLinksLeadSomewhere checks the relative links of all Markdown files.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, pattern := range []string{"../*.md", "*.md", "adr/*.md", "../e2e/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
					t.Errorf("%s: the link to %s leads nowhere", p, m[1])
				}
			}
		}
	}
}
