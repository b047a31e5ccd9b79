package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

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
	return replaceValues(encoded, m, func(v any, of protoreflect.FieldDescriptor) any {
		if text, ok := v.(string); ok && wide(of) {
			return json.Number(text)
		}
		return v
	})
}

// replaceValues replaces the values in the JSON of a message that are no objects: those of fields, and of their lists and maps.
// What a message of google.protobuf has stays.
func replaceValues(encoded []byte, m protoreflect.MessageDescriptor, by func(v any, of protoreflect.FieldDescriptor) any) ([]byte, error) {
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return nil, err
	}
	replaceIn(fields, m, by)
	return json.Marshal(fields)
}

func replaceIn(fields map[string]any, m protoreflect.MessageDescriptor, by func(any, protoreflect.FieldDescriptor) any) {
	if m == nil || strings.HasPrefix(string(m.FullName()), "google.protobuf.") {
		return
	}
	for name, v := range fields {
		field := fieldOf(m, name)
		if field == nil {
			continue
		}
		if !field.IsMap() {
			fields[name] = replaced(v, field, by)
			continue
		}
		all, _ := v.(map[string]any)
		for key, v := range all {
			all[key] = replaced(v, field.MapValue(), by)
		}
	}
}

// fieldOf returns the field of a message that a JSON key names, nil for none.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByTextName(key)
}

// replaced returns a value of a field, with what is in it replaced.
func replaced(v any, of protoreflect.FieldDescriptor, by func(any, protoreflect.FieldDescriptor) any) any {
	switch all := v.(type) {
	case map[string]any:
		replaceIn(all, of.Message(), by)
	case []any:
		for i, v := range all {
			all[i] = replaced(v, of, by)
		}
	default:
		return by(v, of)
	}
	return v
}

const durationName protoreflect.FullName = "google.protobuf.Duration"

// plainDurations converts durations such as 15m and 1h30m in the one-line JSON of a message to
// seconds, and reports whether there were any. Kubernetes and istiods accept the former, protojson
// only the latter.
func plainDurations(encoded []byte, message protoreflect.MessageDescriptor) ([]byte, bool) {
	changed := false
	out, err := replaceValues(encoded, message, func(v any, of protoreflect.FieldDescriptor) any {
		text, ok := v.(string)
		if !ok || of.Message() == nil || of.Message().FullName() != durationName {
			return v
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return v // protojson reports the mistake
		}
		sign := ""
		if d < 0 {
			sign = "-"
		}
		plain := fmt.Sprintf("%s%d.%09ds", sign, (d / time.Second).Abs(), (d % time.Second).Abs())
		changed = changed || plain != text
		return plain
	})
	if err != nil || !changed {
		return encoded, false
	}
	return out, true
}
