// Package kube converts Kubernetes objects to resources and back, as in an istiod's /debug/configz
// and in files. It reads objects from YAML, reports mistakes by line, and writes YAML.
//
// The package must not depend on upstreams or clients.
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

// Object is a Kubernetes object. Its JSON has the usual order of fields.
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
	// ResourceVersion is the version with which the object was served.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// CreationTimestamp is in RFC 3339, to the second. It is empty if unknown.
	CreationTimestamp string            `json:"creationTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// New returns a resource as an object of apiVersion, or of the newest known one if apiVersion is
// empty. version becomes the object's resource version.
func New(r *mirror.Resource, apiVersion, version string) (*Object, error) {
	spec, err := specJSON(r.Kind(), r.Body())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	o := Head(r, apiVersion, version)
	o.Spec = spec
	return o, nil
}

// Head returns the object that New returns, without its spec.
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

// specJSON returns a body as JSON. It decodes known kinds, and others whose message type is linked
// into this program. For the rest, the JSON has the encoded bytes.
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

// Message returns a message as JSON without insignificant space, and with numbers for integers of 64 bits, as Kubernetes
// has them. The space that protojson writes differs between builds.
func Message(msg proto.Message) (json.RawMessage, error) {
	b, err := protojson.Marshal(msg)
	if m := msg.ProtoReflect(); err == nil && hasWide(m) {
		b, err = numbers(b, m.Descriptor())
	}
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, len(b)))
	err = json.Compact(out, b)
	return out.Bytes(), err
}
