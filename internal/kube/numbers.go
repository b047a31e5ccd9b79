package kube

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// wide reports whether a field has integers of 64 bits. protojson writes them as strings, and CRDs have numbers.
func wide(field protoreflect.FieldDescriptor) bool {
	switch field.Kind() {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return true
	case protoreflect.MessageKind:
		name := field.Message().FullName()
		return name == "google.protobuf.Int64Value" || name == "google.protobuf.UInt64Value"
	}
	return false
}

// hasWide reports whether a message has integers of 64 bits.
func hasWide(m protoreflect.Message) (has bool) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		of := field
		if field.IsMap() {
			of = field.MapValue()
		}
		switch {
		case wide(of):
			has = true
		case of.Message() == nil:
		case field.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { has = hasWide(v.Message()); return !has })
		case field.IsList():
			for i := 0; i < v.List().Len() && !has; i++ {
				has = hasWide(v.List().Get(i).Message())
			}
		default:
			has = hasWide(v.Message())
		}
		return !has
	})
	return has
}

// numbers writes the integers of 64 bits in the JSON of a message as numbers.
func numbers(encoded []byte, m protoreflect.MessageDescriptor) ([]byte, error) {
	var value map[string]any
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	numbersIn(value, m)
	return json.Marshal(value)
}

func numbersIn(fields map[string]any, m protoreflect.MessageDescriptor) {
	for name, v := range fields {
		field := fieldOf(m, name)
		if field == nil {
			continue // a google.protobuf.Struct has its own
		}
		of := field
		if field.IsMap() {
			of = field.MapValue()
		}
		switch all := v.(type) {
		case []any:
			for i, v := range all {
				all[i] = numberOf(v, of)
			}
		case map[string]any:
			if !field.IsMap() {
				numbersIn(all, of.Message())
				continue
			}
			for k, v := range all {
				all[k] = numberOf(v, of)
			}
		default:
			fields[name] = numberOf(v, of)
		}
	}
}

// numberOf returns the JSON of one element of a field, with numbers.
func numberOf(v any, field protoreflect.FieldDescriptor) any {
	switch is := v.(type) {
	case string:
		if wide(field) {
			return json.Number(is)
		}
	case map[string]any:
		numbersIn(is, field.Message())
	}
	return v
}
