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
	{"not ready", red}, {"rejected", red}, {"failed", red}, {"denied", red},
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
