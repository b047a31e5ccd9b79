package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"meshrelay/internal/visible"
)

// maxDepth bounds the nesting of a JSON value.
const maxDepth = 1000

// YAML returns one JSON value as block-style YAML with two spaces a level, ending in a
// newline. Fields keep their order.
//
// Every YAML reader takes it for the same value, also under YAML 1.1, where a bare "on" is a
// boolean. General encoders do not promise that: sigs.k8s.io/yaml writes the key "<<" bare.
func YAML(data []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	e := &encoder{dec: dec}
	if err := e.value(0, false); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("JSON: something follows the value")
	}
	return e.out.Bytes(), nil
}

type encoder struct {
	dec *json.Decoder
	out bytes.Buffer
}

// value writes the next value, behind "key:", "-" or nothing. inItem tells that it is "-": a map
// or list begins on the same line.
func (e *encoder) value(depth int, inItem bool) error {
	if depth > maxDepth {
		return fmt.Errorf("JSON: nested deeper than %d", maxDepth)
	}
	tok, err := e.dec.Token()
	if err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '[' && !inItem {
			depth = max(depth-1, 0) // as kubectl does, a list stands no deeper than its key
		}
		return e.nested(t == '{', depth, inItem)
	case string:
		e.str(t, depth)
	case json.Number:
		e.scalar(yamlNumber(t.String()))
	case bool:
		e.scalar(fmt.Sprint(t))
	case nil:
		e.scalar("null")
	}
	return nil
}

// nested writes the entries of a map or a list.
func (e *encoder) nested(isMap bool, depth int, inItem bool) error {
	switch {
	case e.dec.More():
	case isMap:
		e.scalar("{}")
	default:
		e.scalar("[]")
	}
	for first := true; e.dec.More(); first = false {
		e.startEntry(depth, first, inItem)
		if isMap {
			tok, err := e.dec.Token()
			if err != nil {
				return fmt.Errorf("JSON: %w", err)
			}
			key, _ := tok.(string) // the decoder accepts nothing else
			e.out.WriteString(inline(key) + ":")
		} else {
			e.out.WriteByte('-')
		}
		if err := e.value(depth+1, !isMap); err != nil {
			return err
		}
	}
	_, err := e.dec.Token()
	return err
}

// startEntry goes to where an entry of a map or list begins.
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

// yamlNumber returns a JSON number with an exponent in the form that YAML 1.1 demands:
// 1e3 is a string to it, 1.0e+3 a number.
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

// str writes a string: bare where no reader can take it for something else, as a
// literal block where it has lines, and otherwise in double quotes.
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
	// plain are words that need no quotes.
	plain = regexp.MustCompile(`^[A-Za-z/][-A-Za-z0-9_./]*$`)
	// notPlain are the words that some reader takes for a boolean, a null or a number, in any
	// case.
	notPlain = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null|inf|infinity|nan|[a-f0-9_.]*e[-0-9_.]*)$`)
	// plainDomain are names that begin with a digit and are no number or date: they have a
	// letter that is no digit, sign or exponent in any base.
	plainDomain = regexp.MustCompile(`^[0-9][-0-9a-z.]*[g-mp-wyz][-0-9a-z.]*$`)
	// literal are lines of printable ASCII without space at the beginning of the first or
	// the end of any. The last one is not empty.
	literal = regexp.MustCompile(`^[!-~]([ -~]*[!-~])?(\n([ -~]*[!-~])?)*$`)
)

func inline(s string) string {
	if (plain.MatchString(s) && !notPlain.MatchString(s)) || plainDomain.MatchString(s) {
		return s
	}
	return quoted(s)
}

// quoted writes a string in double quotes, with escapes for what would steer a terminal.
func quoted(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings always encode
	return string(visible.YAML(bytes.TrimSuffix(b.Bytes(), []byte("\n"))))
}
