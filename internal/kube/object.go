// Package kube turns Kubernetes objects into resources and back: the form of /debug/configz of an
// istiod, and of files. It reads objects from YAML, names mistakes by line, and writes YAML.
//
// The package must not know where a resource comes from or where it goes.
package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
)

// Object is a Kubernetes object. Its JSON has the order of fields in which such
// objects are written by hand.
type Object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	// Spec is a JSON object without insignificant space.
	Spec json.RawMessage `json:"spec"`
}

// Metadata is the part of a Kubernetes object's metadata that is mirrored.
type Metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	// ResourceVersion is whatever version the object was served with.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// CreationTimestamp is in RFC 3339, to the second, empty when unknown.
	CreationTimestamp string            `json:"creationTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// New returns a resource as an object of an API version, which is the newest known one when
// apiVersion is empty. version becomes the object's resource version.
func New(r *mirror.Resource, apiVersion, version string) (*Object, error) {
	spec, err := specJSON(r.Kind(), r.Body())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	o := Head(r, apiVersion, version)
	o.Spec = spec
	return o, nil
}

// Head returns what New does, without the spec.
func Head(r *mirror.Resource, apiVersion, version string) *Object {
	kind := r.Kind()
	typeURL := kind.PreferredTypeURL()
	if apiVersion != "" {
		typeURL = kind.TypeURL(apiVersion)
	}
	key, md := r.Key(), r.Metadata()
	o := &Object{
		APIVersion: strings.TrimSuffix(typeURL, "/"+kind.Kind),
		Kind:       kind.Kind,
		Metadata: Metadata{
			Name: key.Name, Namespace: key.Namespace, ResourceVersion: version,
			Labels: md.Labels, Annotations: md.Annotations,
		},
	}
	if !md.CreateTime.IsZero() {
		o.Metadata.CreationTimestamp = md.CreateTime.UTC().Format(time.RFC3339)
	}
	return o
}

// YAML returns the object as block-style YAML.
func (o *Object) YAML() ([]byte, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return compactYAML(b)
}

// KindOf returns "group/Kind" of an object.
func KindOf(o *Object) string {
	group, _, _ := strings.Cut(o.APIVersion, "/")
	return group + "/" + o.Kind
}

// specJSON returns a body as JSON. It decodes well-known kinds, and others if their message type
// is linked into this program; the JSON of the rest has the bytes.
func specJSON(kind mirror.Kind, body *anypb.Any) (json.RawMessage, error) {
	var msg proto.Message
	if info, ok := mirror.LookupKind(kind); ok {
		msg = info.NewBody()
	} else if t, err := protoregistry.GlobalTypes.FindMessageByURL(body.GetTypeUrl()); err == nil {
		msg = t.New().Interface()
	} else {
		return json.Marshal(map[string]any{"@type": body.GetTypeUrl(), "value": body.GetValue()}) // base64
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body.GetValue(), msg); err != nil {
		return nil, fmt.Errorf("body does not decode as %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
	}
	return Message(msg)
}

// Message returns a message as JSON without insignificant space, which protojson varies from build
// to build.
func Message(msg proto.Message) (json.RawMessage, error) {
	b, err := protojson.Marshal(msg)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, len(b)))
	err = json.Compact(out, b)
	return out.Bytes(), err
}
