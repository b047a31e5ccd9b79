package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
)

const (
	// maxDepth limits the nesting of the file.
	maxDepth = 32
	// maxValues limits the number of decoded values, as aliases can multiply them.
	maxValues = 100_000
)

// decoder decodes a YAML document into Go values, and records the line of every field. It reports
// and skips values of a wrong type, so that the others can still be checked.
type decoder struct {
	*validator
	anchors map[string]ast.Node
	values  int
}

var (
	durationType = reflect.TypeFor[Duration]()
	upstreamType = reflect.TypeFor[Upstream]()
	programType  = reflect.TypeFor[Program]()
	freeTextType = reflect.TypeFor[freeText]()
)

// freeText is a value in a map of texts, such as an annotation. Any text is valid, also one that
// looks like a placeholder.
type freeText string

// decode stores the value of a node in to, and reports whether its type is right. at names the field.
func (d *decoder) decode(at string, n ast.Node, to reflect.Value, depth int) bool {
	d.values++
	if depth > maxDepth || d.values > maxValues {
		d.errorf(at, "nested too deep, or too large after aliases are replaced")
		return false
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		d.anchors[n.Name.String()] = n.Value
		return d.decode(at, n.Value, to, depth+1)
	case *ast.AliasNode:
		target := d.anchors[n.Value.String()]
		if target == nil {
			d.errorf(at, "there is no anchor &%s above", n.Value.String())
			return false
		}
		return d.decode(at, target, to, depth+1)
	case *ast.NullNode:
		// Not its default: "include:" with nothing below it would let everything through.
		d.errorf(at, "no value: write one, or leave the key out")
		return false
	case *ast.TagNode:
		d.errorf(at, "tags (%s) are not used in this file", n.Start.Value)
		return false
	}
	if to.Type() != freeTextType && d.placeholder(at, n) {
		return false
	}
	switch to.Kind() {
	case reflect.Pointer:
		value := reflect.New(to.Type().Elem())
		ok := d.decode(at, n, value.Elem(), depth)
		if ok {
			to.Set(value)
		}
		return ok
	case reflect.Struct:
		if to.Type() == programType && isScalar(n) { // the short form
			return d.scalar(at, n, to.FieldByName("Command"))
		}
		return d.mapping(at, n, to, depth)
	case reflect.Slice:
		return d.sequence(at, n, to, depth)
	case reflect.Map:
		return d.texts(at, n, to, depth)
	}
	return d.scalar(at, n, to)
}

// scalar stores a scalar in to.
func (d *decoder) scalar(at string, n ast.Node, to reflect.Value) bool {
	want := set(to, n)
	if want == "want a text" && isScalar(n) {
		d.errorf(at, "%s, not %s: put it in quotes", want, describe(n))
	} else if want != "" {
		d.errorf(at, "%s, not %s", want, describe(n))
	}
	return want == ""
}

// set stores the value of a node in to. If the type is wrong, set returns the wanted one.
func set(to reflect.Value, n ast.Node) (want string) {
	value := reflect.ValueOf(valueOf(n))
	form, own := to.Addr().Interface().(encoding.TextUnmarshaler)
	switch kind := to.Kind(); {
	case own:
		if err := form.UnmarshalText([]byte(textOf(n))); err != nil {
			return err.Error()
		}
	case kind == reflect.String && value.Kind() == kind:
		to.SetString(value.String())
	case kind == reflect.String:
		return "want a text"
	case kind == reflect.Bool && value.Kind() == kind:
		to.SetBool(value.Bool())
	case kind == reflect.Bool:
		return "want true or false"
	case value.CanInt():
		to.SetInt(value.Int())
	case value.CanUint():
		to.SetInt(int64(min(value.Uint(), math.MaxInt64)))
	default:
		return "want a whole number"
	}
	return ""
}

// valueOf returns the value of a scalar, or nil for any other node.
func valueOf(n ast.Node) any {
	switch n := n.(type) {
	case *ast.LiteralNode:
		return n.Value.Value
	case ast.ScalarNode:
		return n.GetValue()
	}
	return nil
}

// textOf returns the text of a scalar, or "" for any other node.
func textOf(n ast.Node) string {
	if !isScalar(n) {
		return ""
	}
	return n.GetToken().Value
}

func isScalar(n ast.Node) bool {
	_, ok := n.(ast.ScalarNode)
	return ok
}

// placeholderShape matches the placeholders of sample configs, such as `<NAME OF THIS RELAY>`.
// Users replace them. No field accepts such a text.
var placeholderShape = regexp.MustCompile(`^<[A-Za-z][^<>]*>$`)

// placeholder reports a value that is a placeholder of a sample config.
func (d *decoder) placeholder(at string, n ast.Node) bool {
	if !placeholderShape.MatchString(textOf(n)) {
		return false
	}
	advice := "replace it by your own value, without the angle brackets"
	if at == "provenance.relay" {
		advice = "replace it by a name for this relay, without the angle brackets: all replicas have the same name, and no other relay has it"
	}
	d.errorf(at, "%s is a placeholder: %s", describe(n), advice)
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
	return fmt.Sprintf("%q", text.Shorten(textOf(n), 64))
}

// mapping sets the fields of a struct. Fields of the map replace those of merged maps.
func (d *decoder) mapping(at string, n ast.Node, to reflect.Value, depth int) bool {
	setDefaults(to)
	return d.eachKey(at, n, "a map of fields", to, depth, func(key, value ast.Node) bool {
		name := join(at, textOf(key))
		d.note(name, key.GetToken().Position.Line)
		names := yamlNames(to.Type())
		if i := slices.Index(names, textOf(key)); i >= 0 {
			into := reflect.New(to.Field(i).Type()).Elem()
			if d.decode(name, value, into, depth+1) && (into.Kind() != reflect.String || into.Len() > 0) { // an empty text means absent
				d.checkTags(name, to.Type().Field(i), into)
				to.Field(i).Set(into)
			}
		} else if source := d.newSource(to.Type(), textOf(key)); source != nil {
			if section := reflect.ValueOf(source); d.decode(name, value, section.Elem(), depth+1) {
				to.FieldByName("Source").Set(section)
			}
		} else {
			if to.Type() == upstreamType {
				names = append(names, d.sourceKinds()...)
			}
			d.errorf(name, "unknown field: check its spelling and indentation; here it can be %s", strings.Join(names, ", "))
		}
		return true
	})
}

// eachKey decodes the maps that a map merges, and then calls f with the map's own keys and values.
func (d *decoder) eachKey(at string, n ast.Node, want string, to reflect.Value, depth int, f func(key, value ast.Node) bool) bool {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.errorf(at, "want %s, not %s", want, describe(n))
		return false
	}
	for _, value := range m.Values {
		if value.Key.Type() == ast.MergeKeyType && !d.decode(at, value.Value, to, depth+1) {
			return false
		}
	}
	good := true
	for _, value := range m.Values {
		if value.Key.Type() != ast.MergeKeyType {
			good = f(value.Key, value.Value) && good
		}
	}
	return good
}

// newSource returns an empty section of the source kind named key, or nil if t has no such section.
func (d *decoder) newSource(t reflect.Type, key string) Source {
	i := slices.Index(d.sourceKinds(), key)
	if t != upstreamType || i < 0 {
		return nil
	}
	source, _ := reflect.New(reflect.TypeOf(d.sources[i]).Elem()).Interface().(Source)
	return source
}

func (d *decoder) sequence(at string, n ast.Node, to reflect.Value, depth int) bool {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.errorf(at, "want a list, not %s", describe(n))
		return false
	}
	all := reflect.MakeSlice(to.Type(), len(seq.Values), len(seq.Values))
	good := true
	for i, item := range seq.Values {
		name := fmt.Sprintf("%s[%d]", at, i)
		d.note(name, yamlpos.Line(item))
		if item.Type() == ast.NullType {
			d.errorf(name, "empty: leave it out")
			good = false
			continue
		}
		good = d.decode(name, item, all.Index(i), depth+1) && good
	}
	if good {
		to.Set(all)
	}
	return good
}

// texts sets a map of texts. Any text is a valid key.
func (d *decoder) texts(at string, n ast.Node, to reflect.Value, depth int) bool {
	if to.IsNil() {
		to.Set(reflect.MakeMap(to.Type()))
	}
	return d.eachKey(at, n, "a map", to, depth, func(key, value ast.Node) bool {
		name := fmt.Sprintf("%s[%s]", at, key.GetToken().Value)
		d.note(name, key.GetToken().Position.Line)
		if key.Type() != ast.StringType {
			d.errorf(name, "the key must be a text: put it in quotes")
			return false
		}
		var free freeText
		good := d.decode(name, value, reflect.ValueOf(&free).Elem(), depth+1)
		to.SetMapIndex(reflect.ValueOf(textOf(key)), reflect.ValueOf(string(free)))
		return good
	})
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// yamlNames returns the YAML names of a struct's fields in their order. It skips Upstream.Source,
// the last field.
func yamlNames(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		if name := yamlName(t.Field(i)); name != "-" {
			out = append(out, name)
		}
	}
	return out
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}
