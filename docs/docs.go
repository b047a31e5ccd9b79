// Package docs embeds the documents of this directory that the program shows.
package docs

import (
	"embed"
	"path"
	"regexp"
	"strings"
)

//go:embed configuration.md
var reference string

//go:embed runbooks/*.md
var runbooks embed.FS

// row is a row of the reference: field, type, default, range, meaning, and when one sets it.
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)\\|(.*)\\|(.*)\\|(.*)\\|(.*)\\|$")

// link is a link of Markdown.
var link = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)

// Fields returns the meaning of each field of the config file as plain text, by the path of the field, and the case
// in which one sets it. It reads configuration.md, which has the fields of a block "cluster" once.
func Fields() map[string]string {
	all, shared, blocks := map[string]string{}, map[string]string{}, []string{}
	for _, m := range row.FindAllStringSubmatch(reference, -1) {
		text := strings.TrimSpace(m[5])
		if bounds := strings.TrimSpace(m[4]); bounds != "" && text != "" {
			text += " Range: " + bounds + "."
		}
		if when := strings.TrimSpace(m[6]); when != "" {
			text += " When to set it: " + when + "."
		}
		in := all
		if strings.HasPrefix(m[1], "cluster.") {
			in = shared
		} else if strings.HasSuffix(m[1], ".cluster") && strings.TrimSpace(m[2]) == "map" {
			blocks = append(blocks, strings.TrimSuffix(m[1], "cluster"))
		}
		in[m[1]] = strings.ReplaceAll(link.ReplaceAllString(text, "$1"), "`", "")
	}
	for _, at := range blocks {
		for field, text := range shared {
			all[at+field] = text
		}
	}
	return all
}

// Runbooks returns the names of the runbooks, sorted. Each has the name of an alert.
func Runbooks() (names []string) {
	entries, _ := runbooks.ReadDir("runbooks") // the directory is embedded
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".md"))
	}
	return names
}

// Runbook returns a runbook as Markdown. It returns "" when there is none.
func Runbook(name string) string {
	text, _ := runbooks.ReadFile(path.Join("runbooks", path.Base(name)+".md")) // there is none
	return string(text)
}

// Meaning returns the first sentence of a runbook: what its alert means.
func Meaning(name string) string {
	_, text, _ := strings.Cut(Runbook(name), "\n\n")
	text, _, _ = strings.Cut(text, "\n\n")
	first, _, _ := strings.Cut(strings.ReplaceAll(text, "\n", " "), ". ")
	return strings.TrimSuffix(first, ".")
}
