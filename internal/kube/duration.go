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

// plainDurations returns the JSON of a message, in one line, with durations such as 15m and 1h30m,
// which Kubernetes and istiods take, as seconds, which protojson takes. It reports whether there
// were any.
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

// secondsIn changes the durations of a message, and reports whether there were any to change.
func secondsIn(value any, message protoreflect.MessageDescriptor) (changed bool) {
	fields, ok := value.(map[string]any)
	if !ok || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
		return false
	}
	for name, v := range fields {
		field := message.Fields().ByJSONName(name)
		if field == nil {
			field = message.Fields().ByTextName(name)
		}
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

// secondsAt does so with one value, which set replaces.
func secondsAt(value any, message protoreflect.MessageDescriptor, set func(string)) bool {
	text, ok := value.(string)
	if !ok || message.FullName() != durationName {
		return secondsIn(value, message)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return false // protojson tells what is wrong
	}
	sign := ""
	if d < 0 {
		sign = "-"
	}
	plain := fmt.Sprintf("%s%d.%09ds", sign, (d / time.Second).Abs(), (d % time.Second).Abs())
	set(plain)
	return plain != text
}
