package config

import (
	"encoding"
	"reflect"
	"strings"
)

// Schema is a JSON schema of the config file, or of a part of it. It is for editors: Load also
// finds mistakes that a schema can not express.
type Schema struct {
	Schema      string             `json:"$schema,omitempty"`
	ID          string             `json:"$id,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	// Additional is false, or the Schema of a map's values.
	Additional any       `json:"additionalProperties,omitempty"`
	Items      *Schema   `json:"items,omitempty"`
	Enum       []any     `json:"enum,omitempty"`
	Pattern    string    `json:"pattern,omitempty"`
	Minimum    *float64  `json:"minimum,omitempty"`
	Maximum    *float64  `json:"maximum,omitempty"`
	Default    any       `json:"default,omitempty"`
	OneOf      []*Schema `json:"oneOf,omitempty"`
	AnyOf      []*Schema `json:"anyOf,omitempty"`
}

const (
	durationPattern  = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	openEndedPattern = `^(never|forever|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`
)

// SchemaOf returns the schema of a config file in which upstreams have the sections of sources.
// describe returns the description of the field at a path such as "upstreams[].name".
func SchemaOf(describe func(path string) string, sources ...Source) *Schema {
	b := schemaBuilder{func(path string) string { // a template has the fields of an upstream
		if field, ok := strings.CutPrefix(path, template+"."); ok {
			path = "upstreams[]." + field
		}
		return describe(path)
	}, sources}
	s := b.structure("", reflect.TypeFor[Config]())
	s.Schema, s.ID, s.Title = "https://json-schema.org/draft/2020-12/schema", "urn:meshrelay:config", "config file of relay"
	s.Required = []string{"downstream"}
	s.AnyOf = []*Schema{{Required: []string{"upstreams"}}, {Required: []string{"clusters"}}}
	s.Type = "object"
	return s
}

// template is the path of an upstream without a name and a connection.
const template = "clusters[].upstream"

type schemaBuilder struct {
	describe func(path string) string
	sources  []Source
}

// structure returns the schema of a struct.
func (b schemaBuilder) structure(at string, t reflect.Type) *Schema {
	s := &Schema{Type: "object", Properties: map[string]*Schema{}, Additional: false}
	for i := range t.NumField() {
		field := t.Field(i)
		if name := yamlName(field); name != "-" {
			s.Properties[name] = b.field(join(at, name), field)
		}
	}
	if t != upstreamType {
		return s
	}
	s.Required = []string{"name"}
	for _, source := range b.sources {
		name := source.Kind()
		path := join(at, name)
		section := b.structure(path, reflect.TypeOf(source).Elem())
		section.Description = b.describe(path)
		s.Properties[name] = section
		s.OneOf = append(s.OneOf, &Schema{Required: []string{name}})
	}
	if at == template {
		s.Required, s.OneOf = nil, nil
	}
	return s
}

// field returns the schema of a field with its tags.
func (b schemaBuilder) field(path string, field reflect.StructField) *Schema {
	s := b.value(path, field.Type)
	s.Description = b.describe(path)
	if words, ok := field.Tag.Lookup("oneof"); ok {
		s.Enum = []any{""} // absent
		for _, word := range strings.Fields(words) {
			s.Enum = append(s.Enum, word)
		}
	}
	if bounds, ok := field.Tag.Lookup("range"); ok {
		low, high, _ := strings.Cut(bounds, " ")
		if field.Type.Kind() == reflect.Int {
			s.Minimum, s.Maximum = new(float64(tagNumber(low))), new(float64(tagNumber(high)))
		}
	}
	if text, ok := field.Tag.Lookup("default"); ok {
		s.Default = defaultOf(field.Type, text)
	}
	return s
}

// defaultOf returns the default in a tag as a JSON value.
func defaultOf(t reflect.Type, text string) any {
	switch t.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Int:
		return tagNumber(text)
	}
	return text
}

// value returns the schema of a type.
func (b schemaBuilder) value(path string, t reflect.Type) *Schema {
	switch {
	case t == reflect.TypeFor[OpenEnded]():
		return &Schema{Type: "string", Pattern: openEndedPattern}
	case t == durationType:
		return &Schema{Type: "string", Pattern: durationPattern}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return &Schema{Type: []string{"string", "number", "boolean"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return b.value(path, t.Elem())
	case reflect.Struct:
		return b.structure(path, t)
	case reflect.Slice:
		items := b.value(path+"[]", t.Elem())
		if t.Elem() == programType { // or its short form
			items.Type, items.Required = []string{"string", "object"}, []string{"command"}
		}
		return &Schema{Type: "array", Items: items}
	case reflect.Map:
		return &Schema{Type: "object", Additional: &Schema{Type: []string{"string", "number", "boolean"}}}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int:
		return &Schema{Type: "integer"}
	}
	return &Schema{Type: "string"}
}
