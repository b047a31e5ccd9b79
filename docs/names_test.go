package docs_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"meshrelay/docs"
)

// current returns the text of each page that is about this release.
func current(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range pages(t) {
		if p != "../CHANGELOG.md" && !strings.HasPrefix(p, "adr/") {
			all[p] = read(t, p)
		}
	}
	return all
}

// TestNamesInPagesExist: metrics, alerts, endpoints, variables and targets of make that a page names.
func TestNamesInPagesExist(t *testing.T) {
	metrics, endpoints, makefile, code := read(t, "metrics.md"), read(t, "http.md"), read(t, "../Makefile"), new(strings.Builder)
	sources(t, func(_, content string) { code.WriteString(content) })
	foreign := regexp.MustCompile(`^/(apis|etc|name|proc|tmp|var|xds)\b`)
	for _, kind := range []struct {
		name, pattern string
		exists        func(name string) bool
		least         int
	}{
		{"metric", `\b(relay_[a-z]+_[a-z_]+)`, func(n string) bool { return strings.Contains(metrics, "`"+n+"`") }, 60},
		{"alert", `\b(Relay[A-Z]\w+)`, func(n string) bool { return docs.Runbook(n) != "" }, 30},
		{"endpoint", "(?:`|15014|http://relay)(/[a-z][a-z/-]*)", func(n string) bool {
			return strings.Contains(endpoints, " "+n+"`") || strings.HasPrefix(n, "/upstreams/") || foreign.MatchString(n)
		}, 60},
		{"variable", `\b(RELAY_[A-Z]+)`, func(n string) bool { return strings.Contains(code.String(), `"`+n+`"`) }, 10},
		{"target of make", "(?:`|    )make ([a-z][a-z0-9-]*)", func(n string) bool {
			return strings.Contains(makefile, "\n"+n+":") || strings.Contains(makefile, "\nbuild "+n)
		}, 40},
	} {
		n := 0
		for p, text := range current(t) {
			for _, m := range regexp.MustCompile(kind.pattern).FindAllStringSubmatch(text, -1) {
				if n++; !kind.exists(m[1]) {
					t.Errorf("%s names the %s %s, which does not exist", p, kind.name, m[1])
				}
			}
		}
		if n < kind.least {
			t.Errorf("%d names of the kind %s: the pattern no longer fits", n, kind.name)
		}
	}
}

// TestFieldsInPagesExist: those of the config file and of the chart, in backquotes with their section.
func TestFieldsInPagesExist(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "../deploy/chart/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	known, sections := "", map[string]bool{}
	add := func(path string) {
		path = strings.ReplaceAll(path, "[]", "")
		known += "." + path + "."
		parts := strings.Split(path, ".")
		for _, section := range parts[:len(parts)-1] {
			sections[section] = true
		}
	}
	for field := range docs.Fields() {
		add(field)
	}
	for _, value := range leaves("", values) {
		add(value)
	}
	n, code := 0, []string{"architecture.md", "packages.md", "extending.md"}
	for p, text := range current(t) {
		for _, m := range regexp.MustCompile("`([a-z][a-zA-Z]*(?:\\[\\])?(?:\\.[a-z][a-zA-Z]*(?:\\[\\])?)+)`").FindAllStringSubmatch(text, -1) {
			name := strings.ReplaceAll(m[1], "[]", "")
			section, _, _ := strings.Cut(name, ".")
			if !sections[section] || slices.Contains(code, p) || slices.Contains([]string{"admin.sock", "clusters.json", "cluster.go", "cluster.local"}, name) {
				continue // a file, or a domain
			}
			if n++; !strings.Contains(known, "."+name+".") {
				t.Errorf("%s names the field %s, which neither configuration.md nor the chart has", p, m[1])
			}
		}
	}
	if n < 200 {
		t.Errorf("%d names found: the pattern no longer fits", n)
	}
}

// TestConfigsInPagesHaveFieldsThatExist: blocks of YAML that begin with a section of the config file. What is below a
// field that has no fields of its own is the user's.
func TestConfigsInPagesHaveFieldsThatExist(t *testing.T) {
	fields, sections, n := docs.Fields(), map[string]bool{}, 0
	for field := range fields {
		for i, c := range field {
			if c == '.' {
				sections[strings.TrimSuffix(field[:i], "[]")] = true
			}
		}
	}
	for p, text := range current(t) {
		for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
			var block map[string]any
			if err := yaml.Unmarshal([]byte(m[1]), &block); err != nil {
				t.Errorf("%s: %v:\n%s", p, err, m[1])
			}
			for key, below := range block {
				if !sections[key] || block["apiVersion"] != nil || strings.HasPrefix(m[1], "# values.yaml\n") {
					continue
				}
				n++
				for _, field := range leaves(key, below) {
					field = strings.Replace(field, "clusters[].upstream.", "upstreams[].", 1)
					_, known := fields[field]
					for of := field; !known && strings.Contains(of, "."); { // keys of maps may have dots
						of = strings.TrimSuffix(of[:strings.LastIndex(of, ".")], "[]")
						_, has := fields[of]
						known = has && !sections[of]
					}
					if !known {
						t.Errorf("%s has a config with the field %s, which configuration.md does not have", p, field)
					}
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("%d configs found", n)
	}
}

// leaves returns the paths of all values below a value of YAML, as configuration.md writes them.
func leaves(path string, value any) (all []string) {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			all = append(all, leaves(strings.TrimPrefix(path+"."+key, "."), below)...)
		}
	case []any:
		for _, below := range v {
			if _, isMap := below.(map[string]any); isMap {
				all = append(all, leaves(path+"[]", below)...)
			}
		}
	}
	if len(all) == 0 {
		return []string{path}
	}
	return all
}

// TestBlocksOfCommandsAreConsoleBlocks, which tests of cmd/relay run or check.
func TestBlocksOfCommandsAreConsoleBlocks(t *testing.T) {
	known, unchecked := regexp.MustCompile(`^(console( cluster)?|yaml|mermaid|text)$`), regexp.MustCompile(`^ {4,}(\$ )?(kubectl|helm) `)
	for p, text := range current(t) {
		open := false
		for i, line := range strings.Split(text, "\n") {
			kind, is := strings.CutPrefix(strings.TrimSpace(line), "```")
			if !is && !open && unchecked.MatchString(line) {
				t.Errorf("%s:%d: no test checks this command: show it in a block \"console cluster\"", p, i+1)
			}
			if !is {
				continue
			}
			if open = !open; open && !known.MatchString(kind) && (kind != "" || p != "cli.md") {
				t.Errorf("%s:%d: a block of the kind %q: want one of %s", p, i+1, fmt.Sprint(kind), known)
			}
		}
	}
}
