package kube

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pathAt returns the path of keys and indexes of the value that stands at a column of
// a JSON text of one line. Columns are characters, from 1.
func pathAt(text []byte, column int) []string {
	target := 0
	for range column - 1 {
		_, n := utf8.DecodeRune(text[min(target, len(text)):])
		target += n
	}
	type level struct {
		array, value bool // value: a key has been read, its value comes next
		index        int
		key          string
	}
	var stack []level
	path := func() (steps []string) {
		for _, l := range stack {
			switch {
			case l.array:
				steps = append(steps, strconv.Itoa(l.index))
			case l.key != "":
				steps = append(steps, l.key)
			}
		}
		return steps
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if err != nil {
			return path()
		}
		top := len(stack) - 1
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			stack = stack[:top]
			continue
		}
		isKey := false
		if top >= 0 {
			l := &stack[top]
			switch {
			case l.array:
				l.index++
			case l.value:
				l.value = false
			default:
				l.key, _ = tok.(string) // the decoder lets nothing else through
				l.value, isKey = true, true
			}
		}
		if dec.InputOffset() > int64(target) {
			return path()
		}
		if d, ok := tok.(json.Delim); ok && !isKey {
			stack = append(stack, level{array: d == '[', index: -1})
		}
	}
}

// fieldName writes a path as people do: spec.hosts[0].name.
func fieldName(path []string) string {
	var b strings.Builder
	for _, step := range path {
		switch _, err := strconv.Atoi(step); {
		case err == nil:
			b.WriteString("[" + step + "]")
		case b.Len() > 0:
			b.WriteString("." + step)
		default:
			b.WriteString(step)
		}
	}
	return b.String()
}
