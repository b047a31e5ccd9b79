// Package kube turns Kubernetes objects into resources and back: the form in which istiod
// prints its configs at /debug/configz, and in which people read and write them. It reads
// objects from YAML, whose mistakes it names by line, and writes them as YAML.
//
// The package must not know where a resource comes from or where it is printed.
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

// New returns a resource as an object of the given API version; the newest known one
// when apiVersion is empty. version becomes its resource version.
func New(r *mirror.Resource, apiVersion, version string) (*Object, error) {
	kind := r.Kind()
	typeURL := kind.PreferredTypeURL()
	if apiVersion != "" {
		typeURL = kind.TypeURL(apiVersion)
	}
	spec, err := specJSON(kind, r.Body())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	key, md := r.Key(), mirror.Metadata{}
	if kind != mirror.MeshConfig { // which travels without metadata
		md = r.Metadata()
	}
	o := &Object{
		APIVersion: strings.TrimSuffix(typeURL, "/"+kind.Kind),
		Kind:       kind.Kind,
		Metadata: Metadata{
			Name: key.Name, Namespace: key.Namespace, ResourceVersion: version,
			Labels: md.Labels, Annotations: md.Annotations,
		},
		Spec: spec,
	}
	if !md.CreateTime.IsZero() {
		o.Metadata.CreationTimestamp = md.CreateTime.UTC().Format(time.RFC3339)
	}
	return o, nil
}

// YAML returns the object as block-style YAML.
func (o *Object) YAML() ([]byte, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return YAML(b)
}

// KindOf returns "group/Kind" of an object.
func KindOf(o *Object) string {
	group, _, _ := strings.Cut(o.APIVersion, "/")
	return group + "/" + o.Kind
}

// specJSON decodes the body of a well-known kind, and of others if its message type
// is linked into this program. Anything else is shown as it came.
func specJSON(kind mirror.Kind, body *anypb.Any) (json.RawMessage, error) {
	var msg proto.Message
	if info, ok := mirror.LookupKind(kind); ok {
		msg = info.NewBody()
	} else if t, err := protoregistry.GlobalTypes.FindMessageByURL(body.GetTypeUrl()); err == nil {
		msg = t.New().Interface()
	} else {
		return opaque(body)
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body.GetValue(), msg); err != nil {
		return nil, fmt.Errorf("body does not decode as %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
	}
	return Message(msg)
}

func opaque(body *anypb.Any) (json.RawMessage, error) {
	return json.Marshal(struct {
		Type  string `json:"@type"`
		Value []byte `json:"value"` // base64
	}{body.GetTypeUrl(), body.GetValue()})
}

// Message returns a message as JSON without insignificant space; protojson on its own
// varies the space from build to build.
func Message(msg proto.Message) (json.RawMessage, error) {
	b, err := protojson.Marshal(msg)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(b))
	if err := json.Compact(&out, b); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
