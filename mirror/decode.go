package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"meshrelay/internal/text"
	"meshrelay/internal/wire"
)

// Decode builds a resource from one element of an upstream's response: an encoded google.protobuf.Any that
// holds an istio.mcp.v1alpha1.Resource, or a MeshConfig. The body keeps its bytes. Decode copies data, which
// the caller may reuse.
//
// It fails for a resource that receivers could not decode: they would delete the object (PROTOCOL S12).
func Decode(kind Kind, data []byte, source string) (*Resource, error) {
	r, _, err := DecodeStamped(kind, data, source, nil)
	return r, err
}

// DecodeStamped is Decode, and puts a stamp on the resource unless it is nil. It also returns the way of the
// resource, even if the stamp does not believe the annotation. The way is valid until the caller reuses data.
func DecodeStamped(kind Kind, data []byte, source string, stamp *Stamp) (r *Resource, way Way, err error) {
	md, body, err := parseElement(kind, data)
	if err != nil {
		return nil, way, err
	}
	f := from{source: source}
	if stamp != nil {
		if stamp.Believe && len(md.from) > MaxProvenance {
			return nil, way, fmt.Errorf("%s: its annotation %s has %d bytes: want %d at most", text.Abbreviate(string(md.name)), ProvenanceAnnotation, len(md.from), MaxProvenance)
		}
		way = wayOf(&md)
		f.cluster = md.stamp(stamp)
	}
	r, err = build(kind, md, body, f)
	return r, way, err
}

// parseElement checks an encoded Any. It returns its metadata, which is empty for a MeshConfig, and the
// encoded Any of the body.
func parseElement(kind Kind, data []byte) (md metadata, body []byte, err error) {
	typeURL, value, err := splitAny(data)
	if err != nil {
		return md, nil, err
	}
	if kind == MeshConfig {
		return md, data, checkBody(kind, typeURL, value)
	}
	if !hasMessageName(typeURL, "istio.mcp.v1alpha1.Resource") {
		return md, nil, fmt.Errorf("element is a %q, want %q", text.Abbreviate(string(typeURL)), resourceURL)
	}
	meta, body, err := splitResource(value)
	if err != nil {
		return md, nil, err
	}
	if md, err = parseMetadata(meta); err != nil {
		return md, nil, err
	}
	bodyURL, bodyValue, err := splitAny(body)
	if err != nil {
		return md, nil, fmt.Errorf("%s: body: %w", text.Abbreviate(string(md.name)), err)
	}
	if err := checkBody(kind, bodyURL, bodyValue); err != nil {
		return md, nil, fmt.Errorf("%s: %w", text.Abbreviate(string(md.name)), err)
	}
	return md, body, nil
}

var meshConfigName = []byte(MeshConfigName)

// PeekName returns the full name of an element for Decode, unchecked. It decodes and allocates nothing.
func PeekName(kind Kind, data []byte) (name []byte, err error) {
	if kind == MeshConfig {
		return meshConfigName, nil
	}
	_, value, err := splitAny(data)
	if err != nil {
		return nil, err
	}
	meta, _, err := splitResource(value)
	if err != nil {
		return nil, err
	}
	c := wire.Fields(meta)
	for c.Next() {
		if c.Bytes(1) {
			name = c.Value()
		}
	}
	return name, c.Err()
}

// checkBody returns an error for a body that receivers could not decode.
func checkBody(kind Kind, typeURL, value []byte) error {
	if len(typeURL) == 0 {
		return errors.New("body is missing or has no type URL")
	}
	info, ok := LookupKind(kind)
	if !ok {
		c := wire.Fields(value)
		for c.Next() {
		}
		if err := c.Err(); err != nil {
			return fmt.Errorf("body (%s) is not protobuf: %w", text.Abbreviate(string(typeURL)), err)
		}
		return nil
	}
	want := info.message.ProtoReflect().Descriptor().FullName()
	if !hasMessageName(typeURL, string(want)) {
		return fmt.Errorf("body is a %q, want %q", text.Abbreviate(string(typeURL)), typePrefix+string(want))
	}
	if info.shape().fits(value, maxDepth) {
		return nil
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, info.NewBody()); err != nil {
		return fmt.Errorf("body does not decode as %s: %w", want, err)
	}
	return nil
}

func hasMessageName(typeURL []byte, name string) bool {
	i := bytes.LastIndexByte(typeURL, '/')
	return i >= 0 && string(typeURL[i+1:]) == name
}

// splitAny returns the two fields of an encoded google.protobuf.Any.
func splitAny(data []byte) (typeURL, value []byte, err error) {
	c, text := wire.Fields(data), true
	for c.Next() {
		switch {
		case c.Bytes(1):
			typeURL, text = c.Value(), text && utf8.Valid(c.Value())
		case c.Bytes(2):
			value = c.Value()
		}
	}
	if err = c.Err(); err == nil && !text {
		err = errors.New("its type URL is not valid UTF-8")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("element is not a google.protobuf.Any: %w", err)
	}
	return typeURL, value, nil
}

// splitResource returns the two fields of an encoded istio.mcp.v1alpha1.Resource. Where a field comes twice, it
// joins the parts: in protobuf, concatenated encodings are the encoding of the merged message.
func splitResource(data []byte) (meta, body []byte, err error) {
	c := wire.Fields(data)
	for c.Next() {
		switch {
		case c.Bytes(1):
			meta = merge(meta, c.Value())
		case c.Bytes(2):
			body = merge(body, c.Value())
		}
	}
	if err := c.Err(); err != nil {
		return nil, nil, fmt.Errorf("element does not decode as istio.mcp.v1alpha1.Resource: %w", err)
	}
	return meta, body, nil
}

func merge(have, next []byte) []byte {
	if have == nil {
		return next
	}
	return slices.Concat(have, next)
}
