package yamlpos

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/goccy/go-yaml"

	"meshrelay/internal/panics"
)

// Limits bound a text and what is decoded of it.
type Limits struct {
	Bytes int
	// Values limits the values of all documents, counted after aliases are replaced. A long text
	// counts as several values.
	Values int
	// Plain refuses anchors, aliases and tags.
	Plain bool
	// Texts has numbers be the texts that they are written as. Libraries do not agree about what is a number.
	Texts bool
}

// decoding is held while a text is decoded: texts of many sources take the memory of one.
var decoding sync.Mutex

// Decode returns the values of the non-empty documents of a text. It refuses texts above the limits before
// it builds anything of their size. Errors are sentences; a SyntaxError, also of a panic of the YAML library,
// may quote the text.
func Decode(text []byte, l Limits) ([]any, error) {
	decoding.Lock()
	defer decoding.Unlock()
	values, err := panics.Value(func() ([]any, error) { return decode(text, l) })
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		err = &SyntaxError{1, p.Value}
	}
	if syntax, is := errors.AsType[*SyntaxError](err); is {
		return nil, fmt.Errorf("line %d: it %w", syntax.Line, err)
	} else if err != nil {
		return nil, fmt.Errorf("it %w", err)
	}
	return values, nil
}

func decode(text []byte, l Limits) (values []any, err error) {
	if len(text) > l.Bytes {
		return nil, fmt.Errorf("is larger than %d KiB", l.Bytes>>10)
	}
	bodies, err := parse(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), min(maxTokens, 2*l.Values), l)
	if err != nil {
		return nil, err
	}
	if Exceeds(l.Values, bodies...) {
		return nil, fmt.Errorf("has more than %d values after aliases are replaced", l.Values)
	}
	for _, body := range bodies {
		var value any
		if err := yaml.NodeToValue(body, &value); err != nil {
			return nil, ErrorOf(err)
		}
		values = append(values, value)
	}
	return values, nil
}

// Plain reports whether a text is within limits, and has no anchor and no alias in any dialect of YAML. No library
// makes much more of such a text.
func Plain(text []byte, l Limits) bool {
	return len(text) <= l.Bytes && !bytes.ContainsAny(text, "&*") && atMost(string(text)) <= 2*l.Values
}

// CheckJSON returns an error for a JSON text with more than most values. It decodes nothing.
func CheckJSON(text []byte, most int) error {
	count := func(c string) int { return bytes.Count(text, []byte(c)) }
	if count("[")+count("{")+count(",") < most { // also those in strings
		return nil
	}
	values, quoted := 1, false
	for i := 0; i < len(text) && values <= most; i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++ // within a string
		case !quoted && (c == '[' || c == '{' || c == ','):
			values++
		}
	}
	if values > most {
		return fmt.Errorf("it has more than %d values", most)
	}
	return nil
}
