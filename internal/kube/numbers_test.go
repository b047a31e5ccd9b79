package kube

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"meshrelay/mirror"
)

// fill sets each field of 64 bits of a message to n, below messages that do not contain themselves, and returns how many.
func fill(m protoreflect.Message, n uint64, above ...protoreflect.FullName) (set int) {
	d := m.Descriptor()
	for _, name := range above {
		if name == d.FullName() || len(above) > 12 {
			return 0
		}
	}
	above = append(above, d.FullName())
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		if of := field.ContainingOneof(); of != nil && m.WhichOneof(of) != nil {
			continue
		}
		valueOf := func(f protoreflect.FieldDescriptor, empty func() protoreflect.Value) (v protoreflect.Value, is bool) {
			switch f.Kind() {
			case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
				return protoreflect.ValueOfInt64(int64(n)), true
			case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
				return protoreflect.ValueOfUint64(n), true
			case protoreflect.MessageKind:
				if name := f.Message().FullName(); name == "google.protobuf.Duration" || name == "google.protobuf.Timestamp" {
					return v, false // they have texts
				}
				v = empty()
				more := fill(v.Message(), n, above...)
				set += more
				return v, more > 0
			}
			return v, false
		}
		switch {
		case field.IsMap():
			if v, is := valueOf(field.MapValue(), func() protoreflect.Value { return m.NewField(field).Map().NewValue() }); is {
				m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), v)
			}
		case field.IsList():
			if v, is := valueOf(field, func() protoreflect.Value { return m.NewField(field).List().NewElement() }); is {
				m.Mutable(field).List().Append(v)
			}
		default:
			if v, is := valueOf(field, func() protoreflect.Value { return m.NewField(field) }); is {
				m.Set(field, v)
				if field.Kind() != protoreflect.MessageKind {
					set++
				}
			}
		}
	}
	return set
}

// TestIntegersOf64BitsAreNumbers: a CRD has numbers, and refuses the strings of protojson.
func TestIntegersOf64BitsAreNumbers(t *testing.T) {
	const n = math.MaxInt64 - 1
	var have []string
	for _, kind := range mirror.Kinds() {
		msg := kind.NewBody()
		set := fill(msg.ProtoReflect(), n)
		if set > 0 {
			have = append(have, kind.Kind.Kind)
		}
		encoded, err := Message(msg)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(encoded, []byte(`"`+strconv.Itoa(n))) || bytes.Count(encoded, []byte(":"+strconv.Itoa(n))) != set {
			t.Errorf("%s, with %d integers: %s", kind.Kind, set, encoded)
		}
		back := kind.NewBody()
		if err := protojson.Unmarshal(encoded, back); err != nil || !proto.Equal(msg, back) || !json.Valid(encoded) {
			t.Errorf("%s: %s is read as %v (%v)", kind.Kind, encoded, back, err)
		}
	}
	// e2e applies each field of a DestinationRule to a real API server. A MeshConfig is no object.
	if slices.Sort(have); !slices.Equal(have, []string{"DestinationRule", "MeshConfig"}) {
		t.Errorf("%q have such fields: have TestRulesOfSinksOnARealCluster apply them", have)
	}
}
