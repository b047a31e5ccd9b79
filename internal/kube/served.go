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

// maxUnknown bounds the fields of one object that a build may not know. A field of all elements of
// a list counts once.
const maxUnknown = 64

// Served is an object as an API server has it: what it tells of names and metadata is valid.
type Served struct {
	mirror.Key
	ResourceVersion     string
	Created             time.Time // zero when unknown
	Labels, Annotations map[string]string
	Spec                []byte // JSON, empty for an empty spec
}

// Resource returns the resource of the object, which names source as its upstream. An API server may
// be newer than this build: unknown has the paths of fields that only the server knows, which the
// resource does not have. A value that this build can not express is an error, and so are unknown
// fields when strict.
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

// without returns a JSON object, in one line, without a field. An index in the path stands for all
// elements of its list.
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
