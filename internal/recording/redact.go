package recording

import (
	"fmt"
	"regexp"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/internal/bundle"
)

const (
	// hidden is in the place of a value whose name is that of a secret.
	hidden = "[hidden]"
	// lastApplied is an annotation with a copy of the object, which nothing needs.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// maxDepth bounds how deep a message is looked at. What is deeper is removed.
	maxDepth = 60
)

// secretName matches names whose values are taken for secrets.
var secretName = regexp.MustCompile(`(?i)(password|passwd|passphrase|secret|credential|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|client[-_.]?key|authorization|cookie|inline[-_.]?(bytes|string))`)

// Redact returns a record without what could be a secret, and an error when its data does not
// decode. Of resources all texts are looked at: values whose name is that of a secret are hidden, as
// are tokens, keys, passwords and the paths of URLs within texts. Bytes, and messages of types that
// this relay does not know, are emptied. Of requests, the description of the relay is left out.
func Redact(r Record) (Record, error) {
	var m proto.Message
	switch {
	case r.Kind == Request && r.Delta:
		m = &discoveryv3.DeltaDiscoveryRequest{}
	case r.Kind == Request:
		m = &discoveryv3.DiscoveryRequest{}
	case r.Kind == Response && r.Delta:
		m = &discoveryv3.DeltaDiscoveryResponse{}
	case r.Kind == Response:
		m = &discoveryv3.DiscoveryResponse{}
	default:
		if r.Kind == Closed || r.Kind == End {
			r.Data = bundle.Redact(r.Data)
		}
		return r, nil
	}
	if err := proto.Unmarshal(r.Data, m); err != nil {
		return r, fmt.Errorf("it does not decode: %w", err)
	}
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		m.Node = nil
		redactError(m.ErrorDetail)
	case *discoveryv3.DiscoveryRequest:
		m.Node = nil
		redactError(m.ErrorDetail)
	case *discoveryv3.DeltaDiscoveryResponse:
		for _, res := range m.Resources {
			redactAny(res.Resource, 0)
		}
	case *discoveryv3.DiscoveryResponse:
		for _, res := range m.Resources {
			redactAny(res, 0)
		}
	}
	var err error
	r.Data, err = proto.Marshal(m)
	return r, err
}

// redactError redacts the words of a NACK, which may quote a resource.
func redactError(m proto.Message) {
	if m.ProtoReflect().IsValid() {
		redact(m.ProtoReflect(), 0)
	}
}

// redactAny redacts what an Any has. What can not be looked at is removed.
func redactAny(a *anypb.Any, depth int) {
	if a == nil {
		return
	}
	m, err := a.UnmarshalNew()
	if err == nil {
		redact(m.ProtoReflect(), depth+1)
		a.Value, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	if err != nil {
		a.Value = nil
	}
}

// redact redacts all fields of a message.
func redact(m protoreflect.Message, depth int) {
	m.SetUnknown(nil)
	if depth > maxDepth {
		m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			m.Clear(f)
			return true
		})
		return
	}
	if a, ok := m.Interface().(*anypb.Any); ok {
		redactAny(a, depth)
		return
	}
	named := namesSecret(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		secret := secretName.MatchString(string(f.Name())) || named && f.Name() == "value"
		switch {
		case f.IsMap():
			redactMap(v.Map(), f.MapValue(), depth)
		case f.IsList():
			for i := range v.List().Len() {
				if changed, ok := redactValue(v.List().Get(i), f, secret, depth); ok {
					v.List().Set(i, changed)
				}
			}
		default:
			if changed, ok := redactValue(v, f, secret, depth); ok {
				m.Set(f, changed)
			}
		}
		return true
	})
}

// redactMap redacts the values of a map.
func redactMap(all protoreflect.Map, f protoreflect.FieldDescriptor, depth int) {
	named := false // as in {name: password, value: …}
	for _, key := range []string{"name", "key"} {
		if k := protoreflect.ValueOfString(key).MapKey(); f.Kind() == protoreflect.MessageKind && keysAreText(all) && all.Has(k) {
			named = named || secretName.MatchString(textOf(all.Get(k).Message()))
		}
	}
	all.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		key := k.String()
		if key == lastApplied {
			all.Clear(k)
			return true
		}
		secret := secretName.MatchString(key) || named && key == "value"
		if secret && f.Kind() == protoreflect.MessageKind {
			hideTexts(v.Message(), depth)
		}
		if changed, ok := redactValue(v, f, secret, depth); ok {
			all.Set(k, changed)
		}
		return true
	})
}

// keysAreText reports whether the keys of a map that has some are texts.
func keysAreText(all protoreflect.Map) (text bool) {
	all.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		_, text = k.Interface().(string)
		return false
	})
	return text
}

// redactValue returns a text or bytes redacted, and redacts a message in place.
func redactValue(v protoreflect.Value, f protoreflect.FieldDescriptor, secret bool, depth int) (changed protoreflect.Value, ok bool) {
	switch f.Kind() {
	case protoreflect.StringKind:
		if secret && v.String() != "" && !isReference(f) {
			return protoreflect.ValueOfString(hidden), true
		}
		return protoreflect.ValueOfString(string(bundle.Redact([]byte(v.String())))), true
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(nil), true
	case protoreflect.MessageKind, protoreflect.GroupKind:
		redact(v.Message(), depth+1)
	}
	return v, false
}

// isReference reports whether a field has the name of a secret that is elsewhere, such as
// credential_name of a Gateway: a name is no secret, and bugs are about it.
func isReference(f protoreflect.FieldDescriptor) bool {
	switch f.Name() {
	case "credential_name", "credential_names", "image_pull_secret":
		return true
	}
	return false
}

// hideTexts hides all texts of a message, such as a structpb.Value.
func hideTexts(m protoreflect.Message, depth int) {
	if depth > maxDepth {
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		text := f.Kind() == protoreflect.StringKind
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, item protoreflect.Value) bool {
				if f.MapValue().Kind() == protoreflect.StringKind {
					v.Map().Set(k, protoreflect.ValueOfString(hidden))
				} else if f.MapValue().Kind() == protoreflect.MessageKind {
					hideTexts(item.Message(), depth+1)
				}
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				if text {
					v.List().Set(i, protoreflect.ValueOfString(hidden))
				} else if f.Kind() == protoreflect.MessageKind {
					hideTexts(v.List().Get(i).Message(), depth+1)
				}
			}
		case text:
			m.Set(f, protoreflect.ValueOfString(hidden))
		case f.Kind() == protoreflect.MessageKind:
			hideTexts(v.Message(), depth+1)
		}
		return true
	})
}

// namesSecret reports whether a message has a name or key that is the name of a secret, beside a value.
func namesSecret(m protoreflect.Message) bool {
	for _, name := range []protoreflect.Name{"name", "key"} {
		f := m.Descriptor().Fields().ByName(name)
		if f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() && secretName.MatchString(m.Get(f).String()) {
			return true
		}
	}
	return false
}

// textOf returns the text of a structpb.Value, empty for other values.
func textOf(m protoreflect.Message) string {
	if v, ok := m.Interface().(interface{ GetStringValue() string }); ok {
		return v.GetStringValue()
	}
	return ""
}
