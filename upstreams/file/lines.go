package file

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

// firstLine is the line, from 0, on which a node begins.
func firstLine(n ast.Node) int {
	switch n := n.(type) {
	case *ast.MappingNode:
		if len(n.Values) > 0 {
			return firstLine(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return firstLine(n.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return max(t.Position.Line-1, 0)
	}
	return 0
}

// plain takes off what stands around a node: an anchor or a tag.
func plain(n ast.Node) ast.Node {
	for range maxNesting {
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

// fieldsOf returns the fields of a mapping, or nothing.
func fieldsOf(n ast.Node) []*ast.MappingValueNode {
	switch n := plain(n).(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func itemsOf(n ast.Node) []ast.Node {
	if s, ok := plain(n).(*ast.SequenceNode); ok {
		return s.Values
	}
	return nil
}

func keyText(v *ast.MappingValueNode) string {
	if t := v.Key.GetToken(); t != nil {
		return t.Value
	}
	return ""
}

// child returns the value of a mapping's field, or nil.
func child(n ast.Node, key string) *ast.MappingValueNode {
	for _, v := range fieldsOf(n) {
		if keyText(v) == key {
			return v
		}
	}
	return nil
}

// lineAt returns the line of the value at a path of keys and indexes, or of as much of
// the path as is written there: what comes by way of an alias is not followed.
func lineAt(body ast.Node, path ...string) int {
	line, n := firstLine(body), body
	for _, step := range path {
		if v := child(n, step); v != nil {
			line, n = firstLine(v.Key), v.Value
			continue
		}
		i, err := strconv.Atoi(step)
		items := itemsOf(n)
		if err != nil || i < 0 || i >= len(items) {
			return line
		}
		line, n = firstLine(items[i]), items[i]
	}
	return line
}

// textUnit is how much text counts as one value.
const textUnit = 64

// size returns how many values a node comes to when aliases are written out, or more
// than maxNodes when that is enough to know. Long texts count as several.
func size(n ast.Node, anchors map[string]int) int {
	total := 1
	add := func(n ast.Node) {
		if n != nil && total <= maxNodes {
			total += size(n, anchors)
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
	case *ast.StringNode:
		total += len(n.Value) / textUnit
	case *ast.LiteralNode:
		total += len(n.Value.Value) / textUnit
	case *ast.AnchorNode:
		add(n.Value)
		anchors[n.Name.String()] = total
	case *ast.TagNode:
		add(n.Value)
	case *ast.AliasNode:
		total += anchors[n.Value.String()]
	}
	return total
}

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
