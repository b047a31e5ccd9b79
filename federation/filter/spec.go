package filter

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// specOf returns the body as users write it in YAML: fields by their JSON names, enums by name, durations as
// text. Fields that are not set are absent, except enums: users can not know which value is not encoded.
func specOf(r *mirror.Resource, fields map[string]struct{}) (map[string]any, error) {
	body := r.Body()
	var m proto.Message
	if info, ok := mirror.LookupKind(r.Kind()); ok {
		m = info.NewBody()
	} else {
		mt, err := protoregistry.GlobalTypes.FindMessageByURL(body.GetTypeUrl())
		if err != nil {
			return nil, fmt.Errorf("spec is a %q, which the relay does not know", text.Abbreviate(body.GetTypeUrl()))
		}
		m = mt.New().Interface()
	}
	value := body.GetValue()
	_, free := m.(*structpb.Struct) // its members are not fields of the message
	if fields != nil && !free {
		value = only(value, m.ProtoReflect().Descriptor(), fields)
	}
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("spec does not decode: %w", err)
	}
	if s, ok := m.(*structpb.Struct); ok {
		return yamlValue(s.AsMap()).(map[string]any), nil
	}
	return yamlMessage(m.ProtoReflect(), fields)
}

// only returns some fields of an encoded message.
func only(data []byte, d protoreflect.MessageDescriptor, fields map[string]struct{}) []byte {
	var out []byte
	c := wire.Fields(data)
	for c.Next() {
		if fd := d.Fields().ByNumber(c.Number); fd != nil {
			if _, ok := fields[fd.JSONName()]; ok {
				out = append(out, c.Field()...)
			}
		}
	}
	if c.Err() != nil {
		return data // decoding it returns the error
	}
	return out
}

func yamlMessage(m protoreflect.Message, only map[string]struct{}) (map[string]any, error) {
	fds := m.Descriptor().Fields()
	out := make(map[string]any, 8)
	for i := range fds.Len() {
		fd := fds.Get(i)
		if _, ok := only[fd.JSONName()]; only != nil && !ok {
			continue
		}
		if !m.Has(fd) && (fd.Kind() != protoreflect.EnumKind || fd.HasPresence() || fd.IsList() || fd.IsMap()) {
			continue
		}
		v, err := yamlField(fd, m.Get(fd))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fd.JSONName(), err)
		}
		out[fd.JSONName()] = v
	}
	return out, nil
}

func yamlField(fd protoreflect.FieldDescriptor, v protoreflect.Value) (any, error) {
	switch {
	case fd.IsList():
		if fd.Kind() == protoreflect.StringKind {
			out := make([]string, v.List().Len())
			for i := range out {
				out[i] = v.List().Get(i).String()
			}
			return out, nil
		}
		out := make([]any, v.List().Len())
		for i := range out {
			one, err := yamlOne(fd, v.List().Get(i))
			if err != nil {
				return nil, err
			}
			out[i] = one
		}
		return out, nil
	case fd.IsMap():
		out := make(map[string]any, v.Map().Len())
		var failed error
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			out[k.String()], failed = yamlOne(fd.MapValue(), v)
			return failed == nil
		})
		return out, failed
	}
	return yamlOne(fd, v)
}

func yamlOne(fd protoreflect.FieldDescriptor, v protoreflect.Value) (any, error) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return yamlNested(v.Message())
	case protoreflect.EnumKind:
		if value := fd.Enum().Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name()), nil
		}
		return int64(v.Enum()), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if v.Uint() <= math.MaxInt64 {
			return int64(v.Uint()), nil // a number in YAML is an int
		}
	}
	return v.Interface(), nil
}

func yamlNested(m protoreflect.Message) (any, error) {
	name := m.Descriptor().FullName()
	if !strings.HasPrefix(string(name), "google.protobuf.") {
		return yamlMessage(m, nil)
	}
	switch m := m.Interface().(type) {
	case *structpb.Struct:
		return yamlValue(m.AsMap()), nil
	case *structpb.Value:
		return yamlValue(m.AsInterface()), nil
	}
	if strings.HasSuffix(string(name), "Value") && m.Descriptor().Fields().Len() == 1 {
		if fd := m.Descriptor().Fields().Get(0); fd.Name() == "value" {
			return yamlField(fd, m.Get(fd))
		}
	}
	b, err := protojson.Marshal(m.Interface())
	if err != nil {
		return nil, err
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, err
	}
	return yamlValue(out), nil
}

// yamlValue makes integers of whole numbers, as a YAML parser does.
func yamlValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = yamlValue(e)
		}
	case []any:
		for i, e := range v {
			v[i] = yamlValue(e)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= 1<<53 {
			return int64(v)
		}
	}
	return v
}
