package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// maxUnknown limits the unknown fields of one object. A field that is in several elements of a list
// counts once.
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
// unknown. Unknown values are an error, and with strict, unknown fields are too.
func (s *Served) Resource(source string, strict bool) (r *mirror.Resource, unknown []string, err error) {
	spec := mirror.Spec{
		Key: s.Key, Source: source, SourceVersion: s.ResourceVersion, CreateTime: s.Created,
		Labels: s.Labels, Annotations: s.Annotations,
	}
	body := func() proto.Message { return &structpb.Struct{} }
	if info, ok := mirror.LookupKind(s.Kind); ok {
		body = info.NewBody
	}
	text := s.Spec
	if len(text) == 0 || string(text) == "null" {
		text = []byte("{}")
	}
	for {
		msg := body()
		err := decodeSpec(text, msg)
		if err == nil {
			r, err = resourceOf(spec, msg)
			return r, unknown, err
		}
		if strict || !errors.Is(err, errUnknownField) {
			return nil, unknown, err
		}
		var field *FieldError
		if !errors.As(err, &field) || len(field.Path) < 2 || len(unknown) >= maxUnknown {
			return nil, unknown, fmt.Errorf("more than %d fields are unknown to this build: %w", maxUnknown, err)
		}
		if text, err = without(text, field.Path[1:]); err != nil {
			return nil, unknown, fmt.Errorf("%s: %w", fieldName(field.Path), err)
		}
		unknown = append(unknown, fieldName(field.Path))
	}
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

// without returns a JSON object in one line, without the field at path. An index in the path stands
// for all elements of its list.
func without(text []byte, path []string) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, err
	}
	if !remove(value, path) {
		return nil, errors.New("the field can not be left out")
	}
	return json.Marshal(value)
}

func remove(value any, path []string) (removed bool) {
	switch v := value.(type) {
	case map[string]any:
		if len(path) == 1 {
			_, removed = v[path[0]]
			delete(v, path[0])
			return removed
		}
		return remove(v[path[0]], path[1:])
	case []any:
		if i, err := strconv.Atoi(path[0]); err != nil || i >= len(v) || len(path) == 1 {
			return false
		}
		for _, element := range v {
			removed = remove(element, path[1:]) || removed
		}
	}
	return removed
}
