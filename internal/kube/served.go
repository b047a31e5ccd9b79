package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
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
