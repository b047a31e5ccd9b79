package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const durationName protoreflect.FullName = "google.protobuf.Duration"

// plainDurations converts durations such as 15m and 1h30m in the one-line JSON of a message to
// seconds, and reports whether there were any. Kubernetes and istiods accept the former, protojson
// only the latter.
func plainDurations(encoded []byte, message protoreflect.MessageDescriptor) ([]byte, bool) {
	dec := json.NewDecoder(bytes.NewReader(encoded))
	dec.UseNumber()
	var value any
	if dec.Decode(&value) != nil || !secondsIn(value, message) {
		return encoded, false
	}
	out, err := json.Marshal(value)
	return out, err == nil
}

// secondsIn converts the durations of a message, and reports whether it changed any.
func secondsIn(value any, message protoreflect.MessageDescriptor) (changed bool) {
	fields, ok := value.(map[string]any)
	if !ok || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
		return false
	}
	for name, v := range fields {
		field := fieldOf(message, name)
		if field == nil || field.Message() == nil {
			continue
		}
		of := field.Message()
		if field.IsMap() {
			if of = field.MapValue().Message(); of == nil {
				continue
			}
		}
		switch v := v.(type) {
		case []any:
			for i := range v {
				changed = secondsAt(v[i], of, func(s string) { v[i] = s }) || changed
			}
		case map[string]any:
			if !field.IsMap() {
				changed = secondsIn(v, of) || changed
				continue
			}
			for key := range v {
				changed = secondsAt(v[key], of, func(s string) { v[key] = s }) || changed
			}
		default:
			changed = secondsAt(v, of, func(s string) { fields[name] = s }) || changed
		}
	}
	return changed
}

// fieldOf returns the field of a message that a JSON key names, nil for none.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByTextName(key)
}

// secondsAt does the same for one value. set replaces the value.
func secondsAt(value any, message protoreflect.MessageDescriptor, set func(string)) bool {
	text, ok := value.(string)
	if !ok || message.FullName() != durationName {
		return secondsIn(value, message)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return false // protojson reports the mistake
	}
	sign := ""
	if d < 0 {
		sign = "-"
	}
	plain := fmt.Sprintf("%s%d.%09ds", sign, (d / time.Second).Abs(), (d % time.Second).Abs())
	set(plain)
	return plain != text
}
