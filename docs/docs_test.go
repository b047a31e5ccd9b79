// Package docs_test keeps the documents true.
package docs_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/upstreams/intake/records"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// scenarioRules finds the protocol rules that the first line of a scenario names, and testRules
// those that the name of a test carries.
var (
	scenarioRules = regexp.MustCompile(`\b[CSDN]\d+\b`)
	testRules     = regexp.MustCompile(`_([CSDN]\d+)`)
)

// proofs returns the tests and the scenarios of the repository, by the name that documents give
// them, with the protocol rules that each proves: a test by its function, a scenario by its file.
func proofs(t *testing.T) map[string][]string {
	t.Helper()
	if proven != nil {
		return proven
	}
	all := map[string][]string{}
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	sources(t, func(path, content string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, f := range test.FindAllStringSubmatch(content, -1) {
			all[f[1]] = nil
			for _, m := range testRules.FindAllStringSubmatch(f[1], -1) {
				all[f[1]] = append(all[f[1]], m[1])
			}
		}
	})
	scenarios := 0
	err := filepath.WalkDir("../upstreams", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".txt" {
			return err
		}
		scenarios++
		name := filepath.Base(path)
		first, _, _ := strings.Cut(read(t, path), "\n")
		if all[name] = nil; strings.HasPrefix(first, "#") {
			all[name] = scenarioRules.FindAllString(first, -1)
		}
		return nil
	})
	if err != nil || scenarios == 0 {
		t.Fatalf("%d scenarios: %v", scenarios, err)
	}
	proven = all
	return all
}

// proven is what proofs has found.
var proven map[string][]string

// goFiles are the Go files of the repository, by path.
var goFiles = sync.OnceValues(func() (all map[string]string, err error) {
	all = map[string]string{}
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		}
		return nil
	})
	return all, err
})

// sources calls f with every Go file of the repository.
func sources(t *testing.T, f func(path, content string)) {
	t.Helper()
	all, err := goFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		f(path, all[path])
	}
}

// TestEveryRuleOfAPIServersHasATest checks that kubernetes.md has each rule once, with a test that
// carries its number.
func TestEveryRuleOfAPIServersHasATest(t *testing.T) {
	carried := proofs(t)
	rows := regexp.MustCompile("(?m)^\\| (K\\d+)\\. .+ \\| (`Test.+`) \\|$").FindAllStringSubmatch(read(t, "kubernetes.md"), -1)
	if len(rows) != 17 {
		t.Errorf("kubernetes.md has %d rules", len(rows))
	}
	for i, m := range rows {
		tests := strings.Split(strings.Trim(m[2], "`"), "`, `")
		numbered := 0
		for _, name := range tests {
			if _, exists := carried[name]; !exists {
				t.Errorf("%s: no test %s", m[1], name)
			}
			if strings.HasSuffix(name, "_"+m[1]) {
				numbered++
			}
		}
		if m[1] != fmt.Sprint("K", i+1) || numbered == 0 {
			t.Errorf("%s: none of %q carries the number", m[1], tests)
		}
	}
}

func TestEveryDirectDependencyHasAReason(t *testing.T) {
	own, nested, found := strings.Cut(read(t, "dependencies.md"), "\n## Nested modules\n")
	if !found {
		t.Fatal("dependencies.md tells nothing of nested modules")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(own, -1) {
		listed[m[1]] = true
	}
	direct := required(t, "..")
	for m := range direct {
		if !listed[m] {
			t.Errorf("dependencies.md gives no reason for %s", m)
		}
	}
	for m := range listed {
		if !direct[m] {
			t.Errorf("dependencies.md lists %s, which go.mod does not require directly", m)
		}
	}
	rows := map[string]map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| .").FindAllStringSubmatch(nested, -1) {
		if rows[m[1]] == nil {
			rows[m[1]] = map[string]bool{}
		}
		rows[m[1]][m[2]] = true
	}
	for _, pattern := range []string{"../*/go.mod", "../*/*/go.mod"} {
		paths, _ := filepath.Glob(pattern) // the patterns are right
		for _, path := range paths {
			dir := filepath.Dir(path)
			name, requires := strings.TrimPrefix(filepath.ToSlash(dir), "../"), required(t, dir)
			for m := range requires {
				if !listed[m] && !rows[name][m] {
					t.Errorf("dependencies.md gives no reason for %s of %s", m, name)
				}
			}
			for m := range rows[name] {
				if !requires[m] {
					t.Errorf("dependencies.md lists %s, which %s does not require directly", m, name)
				}
			}
			delete(rows, name)
		}
	}
	for name := range rows {
		t.Errorf("dependencies.md has the module %s, which is none", name)
	}
}

// required returns what the go.mod in a directory requires directly: modules and tools.
func required(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out, block := map[string]bool{}, ""
	for line := range strings.Lines(read(t, dir+"/go.mod")) {
		switch f := strings.Fields(line); {
		case len(f) == 2 && f[1] == "(":
			block = f[0]
		case len(f) == 1 && f[0] == ")":
			block = ""
		case block == "require" && len(f) == 2:
			out[f[0]] = true
		case block == "tool" && len(f) == 1:
			out[f[0]] = true
		case block == "" && len(f) >= 2 && f[0] == "tool", block == "" && len(f) == 3 && f[0] == "require":
			out[f[1]] = true
		}
	}
	return out
}

// TestTheReasonsWhyResourcesAreLeftOutAreThoseOfTheCode: in metrics.md and in configuration.md, in the order
// of the code.
func TestTheReasonsWhyResourcesAreLeftOutAreThoseOfTheCode(t *testing.T) {
	between := func(text, begin, end string) string {
		_, text, _ = strings.Cut(text, begin)
		text, _, _ = strings.Cut(text, end)
		return text
	}
	row := between(read(t, "metrics.md"), "\n| `relay_upstream_left_out_resources` |", "\n")
	if got := strings.Split(between(row, "by reason: ", " ("), ", "); !slices.Equal(got, records.Reasons()) {
		t.Errorf("metrics.md has not the reasons of records.Reasons, in that order (-code +metrics.md):\n%s", cmp.Diff(records.Reasons(), got))
	}
	var got []string
	paragraph := between(read(t, "configuration.md"), "\nThe reasons are", "\n\n")
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(paragraph, -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, records.Reasons()) {
		t.Errorf("configuration.md has not the reasons of records.Reasons, in that order (-code +configuration.md):\n%s", cmp.Diff(records.Reasons(), got))
	}
}

// TestTheArchitectureNamesFunctionsAndFilesThatExist holds architecture.md, from the life of a
// change to its bounds, to the code. There, `replace` or `Intake.replace` is a function, a method
// or a type; a word that starts with a small letter may also be a package (`push`) or a field of
// the config file.
func TestTheArchitectureNamesFunctionsAndFilesThatExist(t *testing.T) {
	doc := read(t, "architecture.md")
	_, way, ok := strings.Cut(doc, "\n## The life of a change\n")
	if !ok {
		t.Fatal("architecture.md does not tell the life of a change")
	}
	way, _, _ = strings.Cut(way, "\n## Bounds\n")

	// Functions by name, and methods by name with their receiver's type.
	function := regexp.MustCompile(`(?m)^(?:func|type) (?:\((?:\w+ )?\*?(\w+)\) )?(\w+)`)
	exist := map[string]bool{"metadata.version": true}
	sources(t, func(path, content string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		pkg := filepath.Base(filepath.Dir(path))
		exist[pkg] = true
		for _, m := range function.FindAllStringSubmatch(content, -1) {
			owner := m[1]
			if owner == "" {
				owner = pkg
			}
			exist[m[2]], exist[owner+"."+m[2]] = true, true
		}
	})
	named := regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)`").FindAllStringSubmatch(way, -1)
	if len(named) < 20 {
		t.Errorf("the life of a change names only %d functions", len(named))
	}
	for _, m := range named {
		if !exist[m[1]] {
			t.Errorf("architecture.md names %s, which does not exist", m[1])
		}
	}
	for _, page := range []string{"architecture.md", "packages.md", "extending.md"} {
		for _, m := range regexp.MustCompile("`([a-z0-9]+(?:/[A-Za-z0-9_.]+)+)`").FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat("../" + m[1]); err != nil && m[1] != "upstreams/NAME" {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

// TestWhereToLookForIsInTheFilesThatItNames: each function of a row is in one of the row's files.
func TestWhereToLookForIsInTheFilesThatItNames(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "packages.md"), "\n## Where to look for\n")
	table, _, _ = strings.Cut(table, "\n## ")
	named, rows := regexp.MustCompile("`([^`]+)`"), 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || !strings.Contains(cells[2], ".go`") {
			continue
		}
		rows++
		var code strings.Builder
		for _, m := range named.FindAllStringSubmatch(cells[2], -1) {
			code.WriteString(read(t, "../"+m[1]))
		}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			pattern := `(?m)^(func|type) ` + m[1] + `\b`
			if owner, method, is := strings.Cut(m[1], "."); is {
				pattern = `(?m)^func \((\w+ )?\*?` + owner + `\) ` + method + `\(`
			}
			if !regexp.MustCompile(pattern).MatchString(code.String()) {
				t.Errorf("packages.md: %s is not in %s", m[1], cells[2])
			}
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}

// TestPackagesListsEveryPackage of the root module that has more than tests.
func TestPackagesListsEveryPackage(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "packages.md"), "\n## Packages\n")
	table, _, _ = strings.Cut(table, "\n## ")
	nested := regexp.MustCompile(`^(bench|chaos|e2e|tools)/`)
	sources(t, func(path, _ string) {
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		if strings.HasSuffix(path, "_test.go") || nested.MatchString(pkg+"/") {
			return
		}
		if !strings.Contains(table, "`"+pkg+"`") {
			t.Errorf("packages.md does not list the package %s", pkg)
		}
	})
}

func TestTheIndexListsEveryDecision(t *testing.T) {
	index := read(t, "adr/README.md")
	paths, err := filepath.Glob("adr/0*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no decisions: %v", err)
	}
	for _, p := range paths {
		title, _, _ := strings.Cut(strings.TrimPrefix(read(t, p), "# "), "\n")
		_, title, _ = strings.Cut(title, ". ")
		if !strings.Contains(index, "["+title+"]("+filepath.Base(p)+")") {
			t.Errorf("adr/README.md does not list %s as %q", p, title)
		}
	}
}

// pages returns all Markdown files for users, as paths.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "*.md", "*/*.md", "../e2e/*.md", "../chaos/*.md", "../deploy/*.md", "../deploy/*/*.md", "../examples/*.md", "../examples/*/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, paths...)
	}
	return all
}

// fenced are the blocks of code of a page.
var fenced = regexp.MustCompile("(?ms)^ *```.*?^ *```$")

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return all
}

// TestLinksLeadSomewhere checks the relative links of all Markdown files, with their anchors.
func TestLinksLeadSomewhere(t *testing.T) {
	headings := map[string]map[string]bool{} // by page
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
			to := p
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(p), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", p, m[1])
				continue
			}
			anchor := strings.TrimPrefix(m[2], "#")
			if anchor == "" || !strings.HasSuffix(to, ".md") {
				continue
			}
			if headings[to] == nil {
				headings[to] = anchors(read(t, to))
			}
			if !headings[to][anchor] {
				t.Errorf("%s: %s has no heading for #%s", p, to, anchor)
			}
		}
	}
}

// TestTheIndexLeadsToEveryPage of this directory.
func TestTheIndexLeadsToEveryPage(t *testing.T) {
	index := read(t, "README.md")
	paths, _ := filepath.Glob("*.md") // the pattern is right
	for _, p := range paths {
		if p != "README.md" && !strings.Contains(index, "]("+p) {
			t.Errorf("README.md does not lead to %s", p)
		}
	}
}

// TestTheTestsThatPagesNameExist.
func TestTheTestsThatPagesNameExist(t *testing.T) {
	known, named := proofs(t), regexp.MustCompile("`(Test[A-Z]\\w+)`")
	for _, p := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, p), -1) {
			if _, exists := known[m[1]]; !exists {
				t.Errorf("%s: there is no test %s", p, m[1])
			}
		}
	}
}

// TestPagesAreShort: at most 20 KB, but the reference of the config file (it is one embedded file), the table of
// failures and generated pages.
func TestPagesAreShort(t *testing.T) {
	long := []string{"configuration.md", "failures.md", "cli.md", "performance.md"}
	for _, p := range pages(t) {
		if n := len(read(t, p)); n > 20<<10 && !slices.Contains(long, p) && p != "../CHANGELOG.md" {
			t.Errorf("%s has %d bytes", p, n)
		}
	}
}
