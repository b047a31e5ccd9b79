package kube

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"meshrelay/internal/panics"
	"meshrelay/internal/yamlpos"
	"meshrelay/mirror"
)

const (
	// maxDocumentBytes limits the size of a document. yamlpos limits its tokens, the larger cost.
	maxDocumentBytes = 4 << 20
	// maxValues limits the values of a document, counted after aliases are replaced.
	maxValues = 500_000
	// MaxProblems limits the problems of one document.
	MaxProblems = 100
)

// Document is the content of one YAML document.
type Document struct {
	Resources []Located
	Problems  []Problem // at most MaxProblems
	// MoreProblems counts the problems above MaxProblems.
	MoreProblems int
}

// Located is a resource and the line on which it begins. The first line of the document is 0.
type Located struct {
	*mirror.Resource
	Line int
}

// Problem is a mistake in an object of a document, or in the document.
type Problem struct {
	Line int // as in Located
	// What is the name of the object: "Kind namespace/name".
	What, Reason string
	// Foreign is set if the relay does not serve the object's kind. The rest of the file is still
	// valid.
	Foreign bool
}

var (
	byteOrderMark = []byte("\xef\xbb\xbf")
	separator     = []byte("---")
)

// SplitDocuments calls f with the text of each document of a YAML stream, and the line, from 1, at
// which the text begins. It skips documents that have only comments and directives. "---" at the
// beginning of a line ends a document, also within quotes (YAML 1.2.2, 9.1.2).
func SplitDocuments(data []byte, f func(text []byte, line int)) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	start, startLine, at, line := 0, 1, 0, 1
	blank := true
	flush := func() {
		if !blank {
			f(data[start:at], startLine)
		}
		start, startLine, blank = at, line, true
	}
	for text := range bytes.Lines(data) {
		content, separates := bytes.CutPrefix(text, separator)
		if separates = separates && (len(content) == 0 || bytes.ContainsAny(content[:1], " \t\r\n")); separates {
			flush()
		} else {
			content = text
		}
		content = bytes.TrimSpace(content)
		blank = blank && (len(content) == 0 || content[0] == '#' || content[0] == '%' || string(content) == "...")
		at, line = at+len(text), line+1
	}
	flush()
}

// ParseDocument reads one document as resources of the upstream source. Every error becomes a
// Problem, and so does a panic of the YAML library.
func ParseDocument(text []byte, source string) (d *Document) {
	if p := panics.Try(func() { d = parseDocument(text, source) }); p != nil {
		return &Document{Problems: []Problem{{Reason: "the document can not be parsed: " + p.Value}}}
	}
	return d
}

func parseDocument(text []byte, source string) *Document {
	d := &Document{}
	if len(text) > maxDocumentBytes {
		d.refuse(Problem{Reason: fmt.Sprintf("the document is larger than %d MiB: split it", maxDocumentBytes>>20)})
		return d
	}
	bodies, err := yamlpos.Parse(text)
	if err != nil {
		p := Problem{Reason: "the document " + err.Error()}
		if syntax, is := errors.AsType[*yamlpos.SyntaxError](err); is {
			p.Line = syntax.Line - 1
		}
		d.refuse(p)
	}
	if yamlpos.Exceeds(maxValues, bodies...) {
		d.refuse(Problem{Line: yamlpos.Line(bodies[0]) - 1, Reason: fmt.Sprintf("the document has more than %d values after aliases are replaced", maxValues)})
		return d
	}
	for _, body := range bodies {
		var value any
		if err := yaml.NodeToValue(body, &value); err != nil {
			e := yamlpos.ErrorOf(err)
			d.refuse(Problem{Line: max(e.Line, yamlpos.Line(body)) - 1, Reason: "the document does not decode: " + e.Msg})
			continue
		}
		d.object(body, value, source)
	}
	return d
}

func (d *Document) refuse(p Problem) {
	if len(d.Problems) >= MaxProblems {
		d.MoreProblems++
		return
	}
	d.Problems = append(d.Problems, p)
}

// object adds an object, or the objects of a list. value is the decoded node.
func (d *Document) object(node ast.Node, value any, source string) {
	line := yamlpos.Line(node) - 1
	fields, ok := value.(map[string]any)
	if !ok {
		d.refuse(Problem{Line: line, Reason: "this is not a Kubernetes object: it needs apiVersion, kind, metadata and spec"})
		return
	}
	if items, ok := fields["items"].([]any); ok && strings.HasSuffix(textOf(fields, "kind"), "List") {
		_, list := yamlpos.Field(node, "items")
		nodes := yamlpos.Items(list)
		for i, item := range items {
			at := node
			if len(nodes) == len(items) {
				at = nodes[i]
			}
			d.object(yamlpos.Bare(at), item, source)
		}
		return
	}
	r, err := Parse(fields, source)
	if err == nil {
		d.Resources = append(d.Resources, Located{r, line})
		return
	}
	metadata, _ := fields["metadata"].(map[string]any)
	name := textOf(metadata, "name")
	if namespace := textOf(metadata, "namespace"); namespace != "" {
		name = namespace + "/" + name
	}
	if at, is := errors.AsType[*FieldError](err); is {
		line = yamlpos.LineAt(node, at.Path...) - 1
	}
	d.refuse(Problem{
		Line: line, What: strings.TrimSpace(textOf(fields, "kind") + " " + name),
		Reason: err.Error(), Foreign: errors.Is(err, ErrForeign),
	})
}

func textOf(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
