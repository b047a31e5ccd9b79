package cliview

import (
	"strings"

	"meshrelay/internal/doctor"
)

// Paint colours words on a terminal. The zero value leaves text as it is.
//
// Colours are characters for private use, which Clean takes out of all text from elsewhere. The
// writer to a terminal replaces them by Escapes.
type Paint bool

const (
	green  = "\ue000"
	yellow = "\ue001"
	red    = "\ue002"
	plain  = "\ue003"
)

// Escapes returns pairs of a colour and what a terminal takes for it.
func Escapes() []string {
	return []string{green, "\x1b[32m", yellow, "\x1b[33m", red, "\x1b[31m", plain, "\x1b[0m"}
}

func (p Paint) wrap(colour, text string) string {
	if !p || colour == "" {
		return text
	}
	return colour + text + plain
}

// Level colours the sign of a check.
func (p Paint) Level(l doctor.Level, text string) string {
	return p.wrap(map[doctor.Level]string{doctor.OK: green, doctor.Warning: yellow, doctor.Failed: red}[l], text)
}

// stateColours are those of the words for a state. Where several are in one text, the first here
// counts.
var stateColours = []struct{ word, colour string }{
	{"not ready", red}, {"rejected", red}, {"failed", red}, {"denied", red}, {"no answer", red},
	{"degraded", yellow}, {"disconnected", yellow}, {"connecting", yellow}, {"stale", yellow}, {"held", yellow}, {"frozen", yellow},
	{"behind", yellow}, {"waiting", yellow}, {"syncing", yellow},
	{"synced", green}, {"ready", green},
}

// State colours a text that is a state, such as "synced 3m".
func (p Paint) State(text string) string {
	if !p {
		return text
	}
	for _, c := range stateColours {
		if strings.Contains(text, c.word) {
			return p.wrap(c.colour, text)
		}
	}
	return text
}

// Colour colours the states in a text: its first line, and the cells of tables under the title STATE.
func Colour(text string) string {
	lines := strings.Split(text, "\n")
	from, to := -1, -1 // of the column, in characters
	for i, line := range lines {
		runes := []rune(line)
		switch at := columnOf(line); {
		case i == 0 && (strings.HasPrefix(line, "ready") || strings.HasPrefix(line, "not ready") || strings.HasPrefix(line, "no answer")):
			lines[i] = Paint(true).State(line)
		case strings.TrimSpace(line) == "":
			from = -1
		case at >= 0:
			from, to = at, nextColumn(runes, at)
		case from >= 0 && from < len(runes):
			end := min(to, len(runes))
			cell := strings.TrimRight(string(runes[from:end]), " ")
			lines[i] = string(runes[:from]) + Paint(true).State(cell) + string(runes[from+len([]rune(cell)):])
		}
	}
	return strings.Join(lines, "\n")
}

// columnOf returns where the column STATE of a line of titles begins, in characters, or -1.
func columnOf(line string) int {
	if line != strings.ToUpper(line) {
		return -1
	}
	i := strings.Index(line+" ", gap+"STATE ")
	if i < 0 {
		return -1
	}
	return len([]rune(line[:i])) + len(gap)
}

// nextColumn returns where the column after that at a place begins, in characters.
func nextColumn(titles []rune, at int) int {
	i := at
	for i < len(titles) && titles[i] != ' ' {
		i++
	}
	for i < len(titles) && titles[i] == ' ' {
		i++
	}
	if i >= len(titles) {
		return 1 << 20 // it is the last one
	}
	return i
}
