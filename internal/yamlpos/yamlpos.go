// Package yamlpos parses and decodes YAML of limited size and nesting, finds the lines of values, and bounds
// JSON before it is decoded.
//
// The package must not know the meaning of the YAML.
package yamlpos

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxNesting limits the nesting of a text. The parser's time grows with the square of it.
	MaxNesting = 1000
	// textUnit is the number of bytes of a text that count as one value.
	textUnit = 64
)

// SyntaxError is the error for a text that is not YAML, or for a value that does not decode.
type SyntaxError struct {
	Line int // from 1
	Msg  string
}

// Error implements error.
func (e *SyntaxError) Error() string { return "is not YAML: " + e.Msg }

// Parse returns the non-empty documents of a text. It refuses texts that would take the parser too
// long. Errors are sentences without a subject.
func Parse(text []byte) ([]ast.Node, error) {
	return parse(text, maxTokens, Limits{})
}

// parse does that with most tokens at most. Of l it needs only Plain and Texts.
func parse(text []byte, most int, l Limits) ([]ast.Node, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("is not UTF-8 text")
	}
	tokens, err := tokenize(string(text), most)
	if err != nil {
		return nil, fmt.Errorf("is too large: %w", err)
	}
	if tooDeep(tokens) {
		return nil, fmt.Errorf("is nested deeper than %d", MaxNesting)
	}
	for _, t := range tokens {
		if l.Plain && (t.Type == token.AnchorType || t.Type == token.AliasType || t.Type == token.TagType) {
			return nil, fmt.Errorf("has an anchor (&), an alias (*) or a tag (!) on line %d: write the value itself, or quote it", t.Position.Line)
		}
		switch t.Type {
		case token.IntegerType, token.BinaryIntegerType, token.OctetIntegerType, token.HexIntegerType, token.FloatType:
			if l.Texts {
				t.Type = token.StringType
			}
		}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, ErrorOf(err)
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.CommentType {
			bodies = append(bodies, doc.Body)
		}
	}
	return bodies, nil
}

// ErrorOf returns an error of the YAML library as a SyntaxError with its line.
func ErrorOf(err error) *SyntaxError {
	if e, is := errors.AsType[yaml.Error](err); is && e.GetToken() != nil && e.GetToken().Position != nil {
		msg := e.GetMessage()
		if strings.Contains(msg, "character '\t'") { // a tab in a message is invisible
			msg = "the line begins with a tab: indent YAML with spaces"
		}
		return &SyntaxError{max(e.GetToken().Position.Line, 1), msg}
	}
	return &SyntaxError{1, err.Error()}
}

// Line returns the first line of a node, from 1.
func Line(n ast.Node) int {
	switch n := n.(type) {
	case *ast.MappingNode:
		if len(n.Values) > 0 {
			return Line(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return Line(n.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return max(t.Position.Line, 1)
	}
	return 1
}

// LineAt returns the line of the value at a path of keys and indexes below a node. If the path does
// not exist, it returns the line of the last existing step. It does not follow aliases.
func LineAt(n ast.Node, path ...string) int {
	line := Line(n)
	for _, step := range path {
		if key, value := Field(n, step); value != nil {
			line, n = Line(key), value
			continue
		}
		i, err := strconv.Atoi(step)
		items := Items(n)
		if err != nil || i < 0 || i >= len(items) {
			return line
		}
		line, n = Line(items[i]), items[i]
	}
	return line
}

// Field returns the key and the value of a mapping's field, or nil.
func Field(n ast.Node, name string) (key, value ast.Node) {
	var fields []*ast.MappingValueNode
	switch n := Bare(n).(type) {
	case *ast.MappingNode:
		fields = n.Values
	case *ast.MappingValueNode:
		fields = []*ast.MappingValueNode{n}
	}
	for _, f := range fields {
		if t := f.Key.GetToken(); t != nil && t.Value == name {
			return f.Key, f.Value
		}
	}
	return nil, nil
}

// Items returns the items of a sequence, or nil.
func Items(n ast.Node) []ast.Node {
	if s, ok := Bare(n).(*ast.SequenceNode); ok {
		return s.Values
	}
	return nil
}

// Bare returns a node without the anchors and tags around it.
func Bare(n ast.Node) ast.Node {
	for range MaxNesting {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		default:
			return n
		}
	}
	return n
}

// Exceeds reports whether documents together have more than most values, counted after aliases are
// replaced. A long text counts as several values.
func Exceeds(most int, documents ...ast.Node) bool {
	total := 0
	for _, n := range documents {
		if total += size(n, most-total, map[string]int{}); total > most {
			return true
		}
	}
	return false
}

func size(n ast.Node, most int, anchors map[string]int) int {
	total := 1
	add := func(n ast.Node) {
		if n != nil && total <= most {
			total += size(n, most, anchors)
		}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.MappingValueNode:
		add(n.Key)
		add(n.Value)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.LiteralNode:
		total += len(n.Value.Value) / textUnit
	case *ast.AnchorNode:
		add(n.Value)
		anchors[n.Name.String()] = total
	case *ast.TagNode:
		add(n.Value)
	case *ast.AliasNode:
		total += anchors[n.Value.String()]
	default:
		if t := n.GetToken(); t != nil {
			total += len(t.Value) / textUnit
		}
	}
	return total
}
