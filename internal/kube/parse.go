package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshrelay/internal/text"
	"meshrelay/mirror"
)

var (
	objectFields = []string{"apiVersion", "kind", "metadata", "spec", "status"}
	// metadataFields has all metadata fields of Kubernetes. The relay uses only some of them.
	metadataFields = []string{
		"name", "namespace", "labels", "annotations", "creationTimestamp", "resourceVersion",
		"generateName", "uid", "generation", "managedFields", "ownerReferences", "finalizers",
		"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds",
	}
)

// FieldError is a mistake in a field of an object.
type FieldError struct {
	Path []string // keys and indexes that lead to the field
	Err  error
}

// Error implements error.
func (e *FieldError) Error() string { return fieldName(e.Path) + ": " + e.Err.Error() }

// Unwrap returns the mistake.
func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrorf(path []string, format string, args ...any) error {
	return &FieldError{path, fmt.Errorf(format, args...)}
}

// ErrForeign is the error for an object of a kind that the relay does not serve.
var ErrForeign = errors.New("is not a kind that the relay serves from files: it serves Istio and Gateway API kinds, and MeshConfig of core/v1alpha1")

// Parse returns a Kubernetes object as a resource of the upstream source. fields is its decoded JSON
// or YAML. An error in one field is a FieldError.
func Parse(fields map[string]any, source string) (*mirror.Resource, error) {
	apiVersion, err := stringField(fields, nil, "apiVersion")
	if err != nil {
		return nil, err
	}
	kind, err := stringField(fields, nil, "kind")
	if err != nil {
		return nil, err
	}
	if apiVersion == "" || kind == "" {
		return nil, errors.New("this is not a Kubernetes object: apiVersion or kind is missing")
	}
	info, err := lookup(apiVersion, kind)
	if err != nil {
		return nil, err
	}
	if err := knownFields(fields, nil, objectFields); err != nil {
		return nil, err
	}
	spec, err := metadataOf(fields, info)
	if err != nil {
		return nil, err
	}
	spec.Source = source
	body, err := bodyOf(fields, info)
	if err != nil {
		return nil, err
	}
	return resourceOf(spec, body)
}

func lookup(apiVersion, kind string) (*mirror.KindInfo, error) {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "core", apiVersion
	}
	k := mirror.Kind{Group: group, Kind: kind}
	if group == "core" {
		k.Group = ""
	}
	info, known := mirror.LookupKind(k)
	if !known {
		return nil, fieldErrorf([]string{"kind"}, "%s %s %w", apiVersion, kind, ErrForeign)
	}
	if !slices.Contains(info.Versions, version) {
		return nil, fieldErrorf([]string{"apiVersion"}, "%s has no version %q: it has %s", info.Kind, version, strings.Join(info.Versions, ", "))
	}
	return info, nil
}

func knownFields(m map[string]any, path []string, known []string) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			return &FieldError{append(path, name), errUnknownField}
		}
	}
	return nil
}

// stringField returns a string field, or "" if it is missing or null.
func stringField(m map[string]any, path []string, key string) (string, error) {
	switch v := m[key].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	default:
		return "", fieldErrorf(append(path, key), "%s is not a string: put it in quotes to make it one", brief(v))
	}
}

// mapField returns a map field, or nil if it is missing or null. want is for the error message.
func mapField(m map[string]any, path []string, want string) (map[string]any, error) {
	v := m[path[len(path)-1]]
	fields, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, fieldErrorf(path, "%s is not %s", brief(v), want)
	}
	return fields, nil
}

func stringMap(m map[string]any, path []string, key string) (map[string]string, error) {
	path = append(path, key)
	fields, err := mapField(m, path, "a map of strings")
	if fields == nil {
		return nil, err
	}
	out := make(map[string]string, len(fields))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if out[k], err = stringField(fields, path, k); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func brief(v any) string { return text.Shorten(fmt.Sprint(v), 64) }

func metadataOf(fields map[string]any, info *mirror.KindInfo) (s mirror.Spec, err error) {
	path := []string{"metadata"}
	m, err := mapField(fields, path, "a map")
	if err != nil {
		return s, err
	}
	if err := knownFields(m, path, metadataFields); err != nil {
		return s, err
	}
	s.Kind = info.Kind
	var created string
	for _, f := range []struct {
		key string
		to  *string
	}{{"name", &s.Name}, {"namespace", &s.Namespace}, {"resourceVersion", &s.SourceVersion}, {"creationTimestamp", &created}} {
		if *f.to, err = stringField(m, path, f.key); err != nil {
			return s, err
		}
	}
	if s.Labels, err = stringMap(m, path, "labels"); err != nil {
		return s, err
	}
	if s.Annotations, err = stringMap(m, path, "annotations"); err != nil {
		return s, err
	}
	if created != "" {
		s.CreateTime, err = time.Parse(time.RFC3339, created)
		if err != nil || !timestamppb.New(s.CreateTime).IsValid() {
			return s, fieldErrorf(append(path, "creationTimestamp"), "%q is not a time: write it like 2024-01-31T10:00:00Z", brief(created))
		}
	}
	switch {
	case info.Kind == mirror.MeshConfig:
		s.Name, s.Namespace = mirror.MeshConfigName, "" // there is only one, so its name does not matter
		return s, nil
	case s.Name == "":
		return s, fieldErrorf(append(path, "name"), "missing")
	case strings.Contains(s.Name, "/"):
		return s, fieldErrorf(append(path, "name"), "%q is not a name: it has a slash", brief(s.Name))
	case info.ClusterScoped:
		s.Namespace = ""
	case s.Namespace == "":
		s.Namespace = "default"
	case strings.Contains(s.Namespace, "/"):
		return s, fieldErrorf(append(path, "namespace"), "%q is not a namespace: it has a slash", brief(s.Namespace))
	}
	return s, nil
}

// bodyOf decodes the spec strictly.
func bodyOf(fields map[string]any, info *mirror.KindInfo) (proto.Message, error) {
	path := []string{"spec"}
	spec, err := mapField(fields, path, "a map")
	if err != nil {
		return nil, err
	}
	if spec == nil {
		spec = map[string]any{}
	}
	// Decode from JSON as kubectl does, for the same field names and types.
	encoded, err := json.Marshal(spec)
	if err != nil {
		return nil, &FieldError{path, err}
	}
	body := info.NewBody()
	if err := decodeSpec(encoded, body); err != nil {
		return nil, err
	}
	return body, nil
}
