// Package docs embeds the documents of this directory that the program shows.
package docs

import (
	_ "embed" // for the reference
	"regexp"
	"strings"
)

//go:embed configuration.md
var reference string

// row is a row of the reference: field, type, default, range and meaning.
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)\\|(.*)\\|(.*)\\|(.*)\\|$")

// link is a link of Markdown.
var link = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)

// Fields returns the meaning of each field of the config file as plain text, by the path of the field. It
// reads configuration.md.
func Fields() map[string]string {
	all := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(reference, -1) {
		text := strings.TrimSpace(m[5])
		if bounds := strings.TrimSpace(m[4]); bounds != "" && text != "" {
			text += " Range: " + bounds + "."
		}
		all[m[1]] = strings.ReplaceAll(link.ReplaceAllString(text, "$1"), "`", "")
	}
	return all
}
