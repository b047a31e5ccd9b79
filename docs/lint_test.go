package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// importRules are the lists of depguard in .golangci.yml, by their names.
func importRules(t *testing.T) map[string][]string {
	t.Helper()
	var file struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files []string `yaml:"files"`
					} `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../.golangci.yml")), &file); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for name, rule := range file.Linters.Settings.Depguard.Rules {
		out[name] = rule.Files
	}
	if len(out) < 20 {
		t.Fatalf("%d rules", len(out))
	}
	return out
}

// globOf compiles a pattern of depguard: ** passes slashes, * does not, {a,b} is one of several.
func globOf(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.NewReplacer(
		"**", ".*", "*", "[^/]*", ".", `\.`, "{", "(", "}", ")", ",", "|",
	).Replace(pattern) + "$")
}

// TestEveryPackageHasAnImportRule of its own, which the linter holds it to, and no rule has a pattern
// that matches no package.
func TestEveryPackageHasAnImportRule(t *testing.T) {
	ruled, nested := map[string]bool{}, regexp.MustCompile(`^(bench|chaos|e2e|tools|admin/uitest)/`)
	sources(t, func(path, _ string) {
		file := strings.TrimPrefix(filepath.ToSlash(path), "../")
		if !strings.HasSuffix(path, "_test.go") && !nested.MatchString(file) {
			ruled["/"+file] = false
		}
	})
	for name, patterns := range importRules(t) {
		if patterns[0] == "$all" {
			continue // it is about one import, wherever it is
		}
		covered := map[string]bool{}
		for _, p := range patterns {
			pattern, without := strings.CutPrefix(p, "!")
			if pattern == "$test" {
				continue
			}
			glob, matches := globOf(pattern), false
			for file := range ruled {
				if glob.MatchString(file) {
					matches, covered[file] = true, !without
				}
			}
			if !matches {
				t.Errorf("the rule %s has the pattern %s, which matches no file", name, p)
			}
		}
		for file, in := range covered {
			ruled[file] = ruled[file] || in
		}
	}
	for file, is := range ruled {
		if !is {
			t.Errorf("no import rule in .golangci.yml is for %s", strings.TrimPrefix(file, "/"))
		}
	}
}
