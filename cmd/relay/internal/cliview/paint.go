package cliview

import (
	"strings"

	"meshrelay/admin/view"
)

// Marks stand for colors in a text. They are private-use characters; Clean removes them from untrusted text. The
// caller replaces the marks by Escapes, or removes them with Plain.
const (
	green  = "\ue000"
	yellow = "\ue001"
	red    = "\ue002"
	plain  = "\ue003"
)

// Escapes returns pairs of a mark and the terminal's escape sequence.
func Escapes() []string {
	return []string{green, "\x1b[32m", yellow, "\x1b[33m", red, "\x1b[31m", plain, "\x1b[0m"}
}

var unmark = strings.NewReplacer(green, "", yellow, "", red, "", plain, "")

// Plain removes the marks of a text.
func Plain(text string) string { return unmark.Replace(text) }

var colors = map[view.Level]string{view.OK: green, view.Warn: yellow, view.Bad: red}

// Colored cleans a text and marks it with the color of a level.
func Colored(level view.Level, text string) string {
	if color := colors[level]; color != "" {
		return color + Clean(text) + plain
	}
	return Clean(text)
}
