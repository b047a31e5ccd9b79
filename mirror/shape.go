package mirror

import (
	"unicode/utf8"

	"meshrelay/internal/wire"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth bounds the nesting of a body. istiod's protobuf library has the same bound.
const maxDepth = protowire.DefaultRecursionLimit

// shape checks whether an encoding decodes as a message type, without building the message. The relay checks
// each changed resource, and has no other reason to decode it.
//
// An encoding that passes decodes. An encoding that fails may still decode: the library decides on groups and
// required fields of proto2.
type shape struct {
	fields map[protowire.Number]fieldShape
	// low are the fields with small numbers, by number.
	low [32]fieldShape
}

type fieldShape struct {
	content content
	message *shape // of contentMessage
}

// content is the content that a length-delimited field must have.
type content uint8

const (
	contentAny     content = iota // anything: bytes, or an unknown field
	contentText                   // UTF-8
	contentMessage                // another message, or an entry of a map
	contentVarints                // packed
	contentLibrary                // the library must check it; no well-known kind has such a field
)

// shapeOf compiles the shape of a message type, and adds it to the known ones: types may contain one another.
func shapeOf(d protoreflect.MessageDescriptor, known map[protoreflect.FullName]*shape) *shape {
	if s := known[d.FullName()]; s != nil {
		return s
	}
	s := &shape{fields: map[protowire.Number]fieldShape{}}
	known[d.FullName()] = s
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := fieldShape{content: contentOf(fd)}
		if f.content == contentMessage {
			f.message = shapeOf(fd.Message(), known)
		}
		if n := fd.Number(); int(n) < len(s.low) {
			s.low[n] = f
		} else {
			s.fields[n] = f
		}
	}
	return s
}

func contentOf(fd protoreflect.FieldDescriptor) content {
	if fd.Cardinality() == protoreflect.Required {
		return contentLibrary
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return contentText
	case protoreflect.BytesKind:
		return contentAny
	case protoreflect.MessageKind:
		return contentMessage
	case protoreflect.EnumKind, protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Int64Kind, protoreflect.Uint64Kind:
		if fd.IsList() {
			return contentVarints
		}
	}
	if fd.IsList() || fd.Kind() == protoreflect.GroupKind {
		return contentLibrary
	}
	return contentAny // of another wire type than the field's: the library skips it
}

// fits reports whether data has the shape.
func (s *shape) fits(data []byte, depth int) bool {
	if depth == 0 {
		return false
	}
	c := wire.Fields(data)
	for c.Next() {
		if c.Type != protowire.BytesType {
			continue
		}
		var f fieldShape
		if int(c.Number) < len(s.low) {
			f = s.low[c.Number]
		} else {
			f = s.fields[c.Number]
		}
		if !f.fits(c.Value(), depth) {
			return false
		}
	}
	return c.Err() == nil
}

func (f fieldShape) fits(v []byte, depth int) bool {
	switch f.content {
	case contentText:
		return utf8.Valid(v)
	case contentMessage:
		return f.message.fits(v, depth-1)
	case contentVarints:
		for len(v) > 0 {
			_, n := protowire.ConsumeVarint(v)
			if n < 0 {
				return false
			}
			v = v[n:]
		}
	}
	return f.content != contentLibrary
}
