package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// maxUnknown limits the unknown fields of one object.
const maxUnknown = 64

// Served is an object from an API server. Its name and metadata are valid.
type Served struct {
	mirror.Key
	ResourceVersion     string
	Created             time.Time // zero when unknown
	Labels, Annotations map[string]string
	Spec                []byte // JSON, empty for an empty spec
}

// Resource returns the object as a resource of the upstream source. An API server may be newer than
// this build: Resource leaves out fields that this build does not know, and returns their paths as
// unknown. Unknown values are an error.
func (s *Served) Resource(source string) (r *mirror.Resource, unknown []string, err error) {
	spec := mirror.Spec{
		Key: s.Key, Source: source, SourceVersion: s.ResourceVersion, CreateTime: s.Created,
		Labels: s.Labels, Annotations: s.Annotations,
	}
	msg := proto.Message(&structpb.Struct{})
	if info, ok := mirror.LookupKind(s.Kind); ok {
		msg = info.NewBody()
	}
	encoded := s.Spec
	if len(encoded) == 0 || string(encoded) == "null" {
		encoded = []byte("{}")
	}
	err = decodeSpec(encoded, msg)
	if errors.Is(err, errUnknownField) {
		proto.Reset(msg)
		if encoded, unknown, err = known(encoded, msg.ProtoReflect().Descriptor()); err == nil {
			err = decodeSpec(encoded, msg)
		}
	}
	if err != nil {
		return nil, unknown, err
	}
	r, err = resourceOf(spec, msg)
	return r, unknown, err
}

// errUnknownField is the error for a field that a body does not have.
var errUnknownField = errors.New("unknown field: check its spelling and indentation")

// decodeSpec strictly decodes the JSON of a spec, which is one line. Its errors are FieldErrors.
func decodeSpec(encoded []byte, body proto.Message) error {
	err := protojson.Unmarshal(encoded, body)
	if err != nil && strings.Contains(err.Error(), string(durationName)) {
		if plain, changed := plainDurations(encoded, body.ProtoReflect().Descriptor()); changed {
			proto.Reset(body)
			encoded, err = plain, protojson.Unmarshal(plain, body)
		}
	}
	if err == nil {
		return nil
	}
	path := []string{"spec"}
	msg := err.Error()
	if m := protoPrefix.FindStringSubmatch(msg); m != nil {
		msg = msg[len(m[0]):]
		if column, err := strconv.Atoi(m[3]); err == nil {
			// The column is in the JSON, which the user has not written: use its path instead.
			path = append(path, pathAt(encoded, column)...)
		}
	}
	switch {
	case strings.HasPrefix(msg, `unknown field "`):
		return &FieldError{path, errUnknownField}
	case strings.HasPrefix(msg, "unexpected token "):
		msg = "wrong type: " + msg
	}
	return &FieldError{path, errors.New(msg)}
}

// resourceOf returns the resource of a Spec with a body.
func resourceOf(spec mirror.Spec, body proto.Message) (*mirror.Resource, error) {
	// Deterministic, because the version is a hash of the bytes.
	spec.Body = &anypb.Any{}
	if err := anypb.MarshalFrom(spec.Body, body, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, &FieldError{[]string{"spec"}, err}
	}
	return mirror.New(spec)
}

// protoPrefix matches the beginning of a protojson error and its column. protojson adds no-break
// spaces at random, so that programs do not rely on its texts. An error without a column is about
// the whole spec.
var protoPrefix = regexp.MustCompile(`^proto:[\s\x{a0}]*(syntax error[\s\x{a0}]*)?(\(line 1:(\d+)\):)?[\s\x{a0}]*`)

// known returns the JSON of a message without the fields that the message does not have, and their paths. A field
// that several messages of one type have counts once.
func known(encoded []byte, message protoreflect.MessageDescriptor) (rest []byte, unknown []string, err error) {
	dec := json.NewDecoder(bytes.NewReader(encoded))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, nil, err
	}
	seen := map[protoreflect.FullName]bool{}
	prune(value, message, []string{"spec"}, func(field protoreflect.FullName, path []string) {
		if len(unknown) <= maxUnknown && !seen[field] {
			seen[field], unknown = true, append(unknown, text.Abbreviate(fieldName(path)))
		}
	})
	if len(unknown) > maxUnknown {
		return nil, nil, fmt.Errorf("more than %d fields are unknown to this build: %s: %w", maxUnknown, unknown[maxUnknown], errUnknownField)
	}
	rest, err = json.Marshal(value)
	return rest, unknown, err
}

// prune removes the unknown fields of a message at a path, and calls f with each.
func prune(value any, message protoreflect.MessageDescriptor, path []string, f func(field protoreflect.FullName, path []string)) {
	fields, is := value.(map[string]any)
	if !is || message == nil || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
		return // the latter have JSON of their own
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field, path := fieldOf(message, name), append(path, name)
		if field == nil {
			delete(fields, name)
			f(message.FullName()+"."+protoreflect.FullName(name), path)
			continue
		}
		switch v := fields[name].(type) {
		case []any:
			for i := range v {
				prune(v[i], field.Message(), append(path, strconv.Itoa(i)), f)
			}
		case map[string]any:
			if !field.IsMap() {
				prune(v, field.Message(), path, f)
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				prune(v[key], field.MapValue().Message(), append(path, key), f)
			}
		}
	}
}
