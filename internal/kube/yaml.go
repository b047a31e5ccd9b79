package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"meshrelay/internal/visible"
)

// maxDepth limits the nesting of a JSON value.
const maxDepth = 1000

// compactYAML returns one valid JSON value without insignificant space as block-style YAML with two
// spaces per level and a final newline. Fields keep their order.
//
// Every YAML reader decodes the same value, also a reader of YAML 1.1, where a bare "on" is a
// boolean. General encoders do not guarantee that: sigs.k8s.io/yaml writes the key "<<" bare.
func compactYAML(data []byte) ([]byte, error) {
	e := &encoder{in: data}
	e.out.Grow(2 * len(data))
	if err := e.value(0, false); err != nil {
		return nil, err
	}
	return e.out.Bytes(), nil
}

type encoder struct {
	in  []byte // the rest of the input
	out bytes.Buffer
}

// value writes the next value after "key:", "-" or nothing. inItem means after "-": a map or list
// begins on the same line.
func (e *encoder) value(depth int, inItem bool) error {
	if depth > maxDepth {
		return fmt.Errorf("JSON: nested deeper than %d", maxDepth)
	}
	switch c := e.in[0]; c {
	case '{', '[':
		if c == '[' && !inItem {
			depth = max(depth-1, 0) // indent a list like its key, as kubectl does
		}
		return e.nested(c == '{', depth, inItem)
	case '"':
		s, err := e.text()
		if err != nil {
			return err
		}
		e.str(s, depth)
	case 't', 'f', 'n':
		e.scalar(e.word())
	default:
		e.scalar(yamlNumber(e.word()))
	}
	return nil
}

// text reads the next string.
func (e *encoder) text() (s string, err error) {
	end, simple := 1, true
	for ; e.in[end] != '"'; end++ {
		if c := e.in[end]; c == '\\' || c >= utf8.RuneSelf {
			if simple = false; c == '\\' {
				end++
			}
		}
	}
	quoted := e.in[:end+1]
	if e.in = e.in[end+1:]; simple {
		return string(quoted[1:end]), nil
	}
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", fmt.Errorf("JSON: %w", err)
	}
	return s, nil
}

// word reads the next number, boolean or null.
func (e *encoder) word() string {
	end := bytes.IndexAny(e.in, ",]}")
	if end < 0 {
		end = len(e.in)
	}
	word := string(e.in[:end])
	e.in = e.in[end:]
	return word
}

// nested writes the entries of a map or a list.
func (e *encoder) nested(isMap bool, depth int, inItem bool) error {
	closing := byte(']')
	if isMap {
		closing = '}'
	}
	e.in = e.in[1:]
	switch {
	case e.in[0] != closing:
	case isMap:
		e.scalar("{}")
	default:
		e.scalar("[]")
	}
	for first := true; e.in[0] != closing; first = false {
		if !first {
			e.in = e.in[1:] // the comma
		}
		e.startEntry(depth, first, inItem)
		if isMap {
			key, err := e.text()
			if err != nil {
				return err
			}
			e.out.WriteString(inline(key))
			e.out.WriteByte(':')
			e.in = e.in[1:] // the colon
		} else {
			e.out.WriteByte('-')
		}
		if err := e.value(depth+1, !isMap); err != nil {
			return err
		}
	}
	e.in = e.in[1:]
	return nil
}

// startEntry writes the line break and indentation before an entry of a map or list.
func (e *encoder) startEntry(depth int, first, inItem bool) {
	switch {
	case first && inItem:
		e.out.WriteByte(' ')
		return
	case first && e.out.Len() > 0:
		e.out.WriteByte('\n')
	}
	e.indent(depth)
}

func (e *encoder) indent(depth int) {
	for range depth {
		e.out.WriteString("  ")
	}
}

func (e *encoder) scalar(s string) {
	if e.out.Len() > 0 {
		e.out.WriteByte(' ')
	}
	e.out.WriteString(s)
	e.out.WriteByte('\n')
}

// yamlNumber returns a JSON number with an exponent in the form of YAML 1.1, in which 1e3 is a
// string and 1.0e+3 is a number.
func yamlNumber(s string) string {
	mantissa, exponent, ok := strings.Cut(strings.ToLower(s), "e")
	if !ok {
		return s
	}
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if exponent[0] != '-' && exponent[0] != '+' {
		exponent = "+" + exponent
	}
	return mantissa + "e" + exponent
}

// str writes a string: bare if every reader decodes it as a string, as a literal block if it has
// several lines, and otherwise in double quotes.
func (e *encoder) str(s string, depth int) {
	text, ends := strings.CutSuffix(s, "\n")
	if e.out.Len() == 0 || !strings.Contains(s, "\n") || strings.HasSuffix(text, "\n") || !literal.MatchString(text) {
		e.scalar(inline(s))
		return
	}
	if ends {
		e.scalar("|")
	} else {
		e.scalar("|-")
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			e.indent(depth)
			e.out.WriteString(line)
		}
		e.out.WriteByte('\n')
	}
}

var (
	// plain matches words that need no quotes.
	plain = regexp.MustCompile(`^[A-Za-z/][-A-Za-z0-9_./]*$`)
	// notPlain matches words that some reader decodes as a boolean, a null or a number. It ignores
	// case.
	notPlain = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null|inf|infinity|nan|[a-f0-9_.]*e[-0-9_.]*)$`)
	// plainDomain matches names that begin with a digit but are not a number or a date. They have a
	// letter that is not part of a number in any base.
	plainDomain = regexp.MustCompile(`^[0-9][-0-9a-z.]*[g-mp-wyz][-0-9a-z.]*$`)
	// literal matches lines of printable ASCII. The first has no leading space, none has trailing
	// space, and the last one is not empty.
	literal = regexp.MustCompile(`^[!-~]([ -~]*[!-~])?(\n([ -~]*[!-~])?)*$`)
)

func inline(s string) string {
	switch {
	case sure(s):
		return s
	case !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || unicode.IsLetter(r) }): // numbers, addresses
	case plain.MatchString(s) && !notPlain.MatchString(s), plainDomain.MatchString(s):
		return s
	}
	return quoted(s)
}

// sure reports whether a string certainly needs no quotes. It is a fast test that covers most strings:
// no number has a letter after f.
func sure(s string) bool {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "infinity", "nan":
		return false
	}
	letter := false
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			letter = letter || c|0x20 > 'f'
		case c == '/', i > 0 && (c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9'):
		default:
			return false
		}
	}
	return letter
}

// quoted returns a string in double quotes. It escapes characters that control a terminal.
func quoted(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return `"` + s + `"`
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings always encode
	return string(visible.YAML(bytes.TrimSuffix(b.Bytes(), []byte("\n"))))
}
