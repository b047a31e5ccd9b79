package kube

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

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
