package config

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"meshrelay/internal/yamlpos"
)

const (
	// maxDepth bounds how deep the file is looked into: more than any config is nested.
	maxDepth = 32
	// maxShapes bounds the values that are looked at, in case aliases multiply them.
	maxShapes = 100_000
)

// shaper compares a YAML document with the Go types that it is for. What does not fit
// is reported and taken out, so that the rest can be decoded and checked, and all
// mistakes are found at once. On the way it notes the line of every field.
type shaper struct {
	v       *validator
	anchors map[string]ast.Node
	visited int
}

var (
	durationType  = reflect.TypeFor[Duration]()
	openEndedType = reflect.TypeFor[OpenEnded]()
	textsType     = reflect.TypeFor[map[string]string]()
	freeTextType  = reflect.TypeFor[freeText]()
)

// freeText is a value in a map of texts. It may look like a placeholder, as an annotation
// can be any text.
type freeText string

// fits reports whether a node can be decoded as t. at is the name of the field.
func (s *shaper) fits(at string, n ast.Node, t reflect.Type, depth int) bool {
	s.visited++
	if depth > maxDepth || s.visited > maxShapes {
		s.v.errorf(at, "nested too deep, or too large when its aliases are written out")
		return false
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		s.anchors[n.Name.String()] = n.Value
		return s.fits(at, n.Value, t, depth+1)
	case *ast.AliasNode:
		target := s.anchors[n.Value.String()]
		if target == nil {
			s.v.errorf(at, "there is no anchor &%s above", n.Value.String())
			return false
		}
		return s.fits(at, target, t, depth+1)
	case *ast.NullNode:
		return true // as if the field were not there
	case *ast.TagNode:
		s.v.errorf(at, "tags (%s) are not used in this file", n.Start.Value)
		return false
	}
	if t != freeTextType && s.placeholder(at, n) {
		return false
	}
	switch {
	case t == durationType:
		return s.duration(at, n, "a duration like 90s, 5m or 250ms", new(Duration).parse)
	case t == openEndedType:
		return s.duration(at, n, "a duration like 90s, 5m or 1h, or never, or forever", new(OpenEnded).parse)
	case t.Kind() == reflect.Struct:
		return s.mapping(at, n, t, depth)
	case t.Kind() == reflect.Slice:
		return s.sequence(at, n, t, depth)
	case t.Kind() == reflect.Map:
		return s.texts(at, n, depth)
	case t.Kind() == reflect.String:
		return s.scalar(at, n, "a text", ast.StringType, ast.LiteralType)
	case t.Kind() == reflect.Bool:
		return s.scalar(at, n, "true or false", ast.BoolType)
	case t.Kind() == reflect.Float64:
		return s.scalar(at, n, "a number", ast.FloatType, ast.IntegerType)
	default:
		return s.scalar(at, n, "a whole number", ast.IntegerType)
	}
}

func (s *shaper) scalar(at string, n ast.Node, want string, types ...ast.NodeType) bool {
	for _, t := range types {
		if n.Type() == t {
			return true
		}
	}
	hint := ""
	if types[0] == ast.StringType && isScalar(n) {
		hint = ": put it in quotes"
	}
	s.v.errorf(at, "want %s, not %s%s", want, describe(n), hint)
	return false
}

// placeholderShape is what a sample config has in the place of a value that everybody has to
// choose: `<NAME OF THIS RELAY>`. No field takes such a text as a value.
var placeholderShape = regexp.MustCompile(`^<[A-Za-z][^<>]*>$`)

// placeholder reports a value that is still the placeholder of a sample config.
func (s *shaper) placeholder(at string, n ast.Node) bool {
	if !isScalar(n) || !placeholderShape.MatchString(n.GetToken().Value) {
		return false
	}
	s.v.errorf(at, "%s is a placeholder: %s", describe(n), cmp.Or(placeholderAdvice()[at], "write your own value in its place, without the angle brackets"))
	return true
}

// placeholderAdvice returns what to write in place of a placeholder, by field.
func placeholderAdvice() map[string]string {
	return map[string]string{
		"provenance.relay": "write a name for this relay in its place, without the angle brackets: the same in all its replicas, and one that no other relay has",
	}
}

func isScalar(n ast.Node) bool {
	_, ok := n.(ast.ScalarNode)
	return ok
}

func (s *shaper) duration(at string, n ast.Node, want string, parse func(string) error) bool {
	text := ""
	if isScalar(n) {
		text = n.GetToken().Value
	}
	if parse(text) != nil {
		s.v.errorf(at, "want %s, not %s", want, describe(n))
		return false
	}
	return true
}

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list"
	}
	if !isScalar(n) {
		return "this"
	}
	text := n.GetToken().Value
	if len(text) > 64 {
		text = strings.ToValidUTF8(text[:64], "") + "…"
	}
	return fmt.Sprintf("%q", text)
}

func (s *shaper) mapping(at string, n ast.Node, t reflect.Type, depth int) bool {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		s.v.errorf(at, "want a map of fields, not %s", describe(n))
		return false
	}
	fields := typesOf(t)
	kept := m.Values[:0:0]
	for _, value := range m.Values {
		if value.Key.Type() == ast.MergeKeyType {
			if s.fits(at, value.Value, t, depth+1) {
				kept = append(kept, value)
			}
			continue
		}
		key := value.Key.GetToken().Value
		name := join(at, key)
		if value.Value.Type() != ast.NullType { // which is as if it were not there
			s.v.note(name, value.Key.GetToken().Position.Line)
		}
		field, known := fields[key]
		if !known {
			s.v.errorf(name, "unknown field: check its spelling and indentation; here it can be %s", strings.Join(names(t), ", "))
			continue
		}
		if s.fits(name, value.Value, field, depth+1) {
			kept = append(kept, value)
		}
	}
	m.Values = kept
	return true
}

func (s *shaper) sequence(at string, n ast.Node, t reflect.Type, depth int) bool {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		s.v.errorf(at, "want a list, not %s", describe(n))
		return false
	}
	good := true
	for i, item := range seq.Values {
		name := fmt.Sprintf("%s[%d]", at, i)
		s.v.note(name, yamlpos.Line(item))
		if item.Type() == ast.NullType {
			s.v.errorf(name, "is empty")
			good = false
			continue
		}
		good = s.fits(name, item, t.Elem(), depth+1) && good
	}
	return good
}

// texts checks a map of texts. Its keys are no fields: a key may be anything.
func (s *shaper) texts(at string, n ast.Node, depth int) bool {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		s.v.errorf(at, "want a map, not %s", describe(n))
		return false
	}
	good := true
	for _, value := range m.Values {
		if value.Key.Type() == ast.MergeKeyType {
			good = s.fits(at, value.Value, textsType, depth+1) && good
			continue
		}
		name := fmt.Sprintf("%s[%s]", at, value.Key.GetToken().Value)
		s.v.note(name, value.Key.GetToken().Position.Line)
		if value.Key.Type() != ast.StringType {
			s.v.errorf(name, "want a text as key: put it in quotes")
			good = false
			continue
		}
		good = s.fits(name, value.Value, freeTextType, depth+1) && good
	}
	return good
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// typesOf returns the types of a struct's fields by their names in YAML.
func typesOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		fields[yamlName(t.Field(i))] = t.Field(i).Type
	}
	return fields
}

// names returns the names of a struct's fields in YAML, in the order of the struct.
func names(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		out = append(out, yamlName(t.Field(i)))
	}
	return out
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}
