package yamlpos

import (
	"fmt"

	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxTokens limits the tokens of a text: the parser needs about 400 bytes for each.
	maxTokens = 200_000
	// maxKeys limits the keys of one or several nested block mappings: the parser's time grows
	// with the square of their number.
	maxKeys = 10_000
	// maxInserted limits the number of missing values, as in "a:", times the tokens: for each
	// missing value, the parser moves all later tokens.
	maxInserted = 2_000_000_000
	// maxOpen limits the tags and anchors at the end of a line: each may contain the next one.
	maxOpen = 1000
)

// tokenize returns the tokens of a text. It refuses texts with more than most tokens, and those for which
// the parser needs too much time or memory.
func tokenize(text string, most int) (token.Tokens, error) {
	if atMost(text) > most {
		return nil, fmt.Errorf("it has more than %d keys, values and marks", most)
	}
	tokens := lexer.Tokenize(text)
	if err := check(tokens); err != nil {
		return nil, err
	}
	return tokens, nil
}

// atMost estimates the largest number of tokens in a text from the number of separators.
func atMost(text string) (n int) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n', ',', ':':
			n += 2 // the separator itself, and the token before it
		case '[', ']', '{', '}', '&', '*', '!':
			n++
		case '-', '?':
			if i+1 < len(text) && (text[i+1] == ' ' || text[i+1] == '\t') {
				n++
			}
		}
	}
	return n + 2
}

// mapping is a block mapping whose keys begin at a column.
type mapping struct{ column, keys int }

// bracket is an open bracket. value is set if the current key of a mapping has a value.
type bracket struct{ mapping, value bool }

// check refuses tokens for which the parser needs too much time.
func check(tokens token.Tokens) error {
	var open []mapping // each is inside the one before
	var brackets []bracket
	copied, left, ends := 0, 0, 0
	key := func(column int) {
		for len(open) > 0 && open[len(open)-1].column > column {
			open = open[:len(open)-1]
		}
		if len(open) == 0 || open[len(open)-1].column < column {
			open = append(open, mapping{column: column})
		}
		m := &open[len(open)-1]
		m.keys++
		copied += m.keys
	}
	for i, t := range tokens {
		var next *token.Token
		if i+1 < len(tokens) {
			next = tokens[i+1]
		}
		// below reports whether the next token, if any, is on a later line and not to the right of
		// column.
		below := func(column int) bool {
			return next == nil || next.Position.Line > t.Position.Line && next.Position.Column <= column
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets = append(brackets, bracket{mapping: t.Type == token.MappingStartType})
		case token.SequenceEndType, token.MappingEndType, token.CollectEntryType:
			if len(brackets) == 0 {
				continue
			}
			b := &brackets[len(brackets)-1]
			if b.mapping && !b.value {
				left++
			}
			if b.value = false; t.Type != token.CollectEntryType {
				brackets = brackets[:len(brackets)-1]
			}
		case token.SequenceEntryType:
			if len(brackets) > 0 {
				continue
			}
			for len(open) > 0 && open[len(open)-1].column > t.Position.Column {
				open = open[:len(open)-1]
			}
			if below(t.Position.Column) {
				left++
			}
		case token.MappingKeyType:
			if len(brackets) == 0 {
				key(t.Position.Column)
				left++ // the key may have no value
			}
		case token.MappingValueType:
			if len(brackets) > 0 {
				brackets[len(brackets)-1].value = true
				if next == nil || next.Type == token.CollectEntryType || next.Type == token.MappingEndType || next.Type == token.SequenceEndType {
					left++
				}
				continue
			}
			column := t.Position.Column
			if i > 0 && tokens[i-1].Position.Line == t.Position.Line {
				column = tokens[i-1].Position.Column
				key(column)
			}
			if below(column) && (next == nil || next.Type != token.SequenceEntryType || next.Position.Column < column) {
				left++
			}
		case token.TagType, token.AnchorType:
			if next == nil || next.Position.Line > t.Position.Line {
				ends++
			}
		}
	}
	switch {
	case copied > maxKeys*maxKeys/2:
		return fmt.Errorf("it has a mapping of more than %d keys, or nested mappings with that many together", maxKeys)
	case left*len(tokens) > maxInserted:
		return fmt.Errorf("it has %d keys without a value, which is too many for its size", left)
	case ends > maxOpen:
		return fmt.Errorf("it has more than %d tags and anchors at the end of a line", maxOpen)
	}
	return nil
}

// tooDeep reports whether the nesting exceeds MaxNesting. It counts brackets, and the marks on a
// line or between two commas that may contain the next one (as in "- - - -").
func tooDeep(tokens token.Tokens) bool {
	brackets, marks, line := 0, 0, 0
	for _, t := range tokens {
		if brackets == 0 && t.Position.Line != line {
			marks, line = 0, t.Position.Line
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets, marks = max(brackets-1, 0), 0
		case token.CollectEntryType:
			marks = 0
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.TagType, token.AnchorType:
			marks++
		}
		if brackets+marks > MaxNesting {
			return true
		}
	}
	return false
}
