package file

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"meshrelay/internal/yamltokens"
)

const (
	// maxNesting bounds the nesting of a document. The time to parse one grows with its
	// square.
	maxNesting = 1000
	// maxDocumentBytes bounds a document. How many tokens it may have is bounded besides: they
	// are what costs.
	maxDocumentBytes = 4 << 20
	// maxNodes bounds what a document comes to when its aliases are written out.
	maxNodes = 500_000
)

// document is what one YAML document says. It is kept as long as its text stays.
type document struct {
	entries []*entry
	// lines are where the entries begin, counted from the document's first line, which
	// is 0.
	lines        []int
	problems     []problem // at most maxFileProblems
	moreProblems int       // that are not kept
}

// problem is what is wrong with an object.
type problem struct {
	line         int // as in document.lines
	what, reason string
	// foreign says that the object is none of ours rather than broken: it does not put
	// the rest of the file in doubt.
	foreign bool
}

func (d *document) refuse(p problem) {
	if len(d.problems) >= maxFileProblems {
		d.moreProblems++
		return
	}
	d.problems = append(d.problems, p)
}

var (
	byteOrderMark = []byte("\xef\xbb\xbf")
	separator     = []byte("---")
)

// eachDocument calls f with the text of each document of a YAML stream, and the line,
// from 1, on which the text begins. "---" at the beginning of a line ends a document
// wherever it stands, be it within quotes (YAML 1.2.2, 9.1.2), so that lines are all
// that must be looked at.
func eachDocument(data []byte, f func(text []byte, line int)) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	start, startLine := 0, 1
	flush := func(end int) {
		if text := data[start:end]; !blank(text) {
			f(text, startLine)
		}
	}
	for at, line := 0, 1; at < len(data); line++ {
		if at > start && separates(data[at:]) {
			flush(at)
			start, startLine = at, line
		}
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			break
		}
		at += n + 1
	}
	flush(len(data))
}

func separates(rest []byte) bool {
	after, ok := bytes.CutPrefix(rest, separator)
	return ok && (len(after) == 0 || bytes.IndexByte([]byte(" \t\r\n"), after[0]) >= 0)
}

// blank reports whether a text has nothing but separators, comments and directives.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if separates(line) {
			line = line[len(separator):]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}

// parseDocument reads one document. It never fails: what is wrong is in the document's
// problems, and the YAML library's own mistakes (it has been known to panic on strange
// input) are problems, too.
func parseDocument(text []byte, source string) (d *document) {
	defer func() {
		if r := recover(); r != nil {
			d = &document{}
			d.refuse(problem{reason: fmt.Sprintf("the document can not be parsed: %v", r)})
		}
	}()
	d = &document{}
	if len(text) > maxDocumentBytes {
		d.refuse(problem{reason: fmt.Sprintf("the document is larger than %d MiB: split it", maxDocumentBytes>>20)})
		return d
	}
	if !utf8.Valid(text) {
		d.refuse(problem{reason: "the document is not UTF-8 text"})
		return d
	}
	tokens, err := yamltokens.Tokenize(string(text))
	if err != nil {
		d.refuse(problem{reason: "the document is too large: " + err.Error()})
		return d
	}
	if err := checkNesting(tokens); err != nil {
		d.refuse(problem{reason: err.Error()})
		return d
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		line, msg := yamlError(err)
		d.refuse(problem{line: line, reason: "the document is not YAML: " + msg})
		return d
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		d.body(doc.Body, source)
	}
	return d
}

func (d *document) body(body ast.Node, source string) {
	if size(body, map[string]int{}) > maxNodes {
		d.refuse(problem{line: firstLine(body), reason: fmt.Sprintf("the document has more than %d values when its aliases are written out", maxNodes)})
		return
	}
	var value any
	if err := yaml.NodeToValue(body, &value); err != nil {
		line, msg := yamlError(err)
		d.refuse(problem{line: max(line, firstLine(body)), reason: "the document does not decode: " + msg})
		return
	}
	d.value(body, value, source)
}

// checkNesting refuses what the parser would take for ever over. It counts what opens
// a value within another: brackets, and, on a line or between two commas, the marks of
// which each may nest the next (as in "- - - -").
func checkNesting(tokens token.Tokens) error {
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
		if brackets+marks > maxNesting {
			return fmt.Errorf("the document is nested deeper than %d", maxNesting)
		}
	}
	return nil
}

// yamlError returns the line, from 0, and the text of an error of the YAML library.
func yamlError(err error) (line int, msg string) {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
		return max(e.GetToken().Position.Line-1, 0), e.GetMessage()
	}
	return 0, err.Error()
}
