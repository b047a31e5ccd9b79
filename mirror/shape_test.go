package mirror

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networkingapi "istio.io/api/networking/v1alpha3"
)

// fill sets every field of a message to something, to a depth.
func fill(m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if fd.Message() != nil && depth == 0 {
			continue
		}
		switch {
		case fd.IsMap():
			v := m.NewField(fd)
			value := v.Map().NewValue()
			if fd.MapValue().Message() != nil {
				fill(value.Message(), depth-1)
			} else {
				value = scalar(fd.MapValue())
			}
			v.Map().Set(scalar(fd.MapKey()).MapKey(), value)
			m.Set(fd, v)
		case fd.IsList():
			v := m.NewField(fd)
			for range 2 {
				if fd.Message() != nil {
					fill(v.List().AppendMutable().Message(), depth-1)
				} else {
					v.List().Append(scalar(fd))
				}
			}
			m.Set(fd, v)
		case fd.Message() != nil:
			fill(m.Mutable(fd).Message(), depth-1)
		default:
			m.Set(fd, scalar(fd))
		}
	}
}

func scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("grüße")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0xff})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(-300)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(-300)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(300)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(300)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1.5)
	default:
		return protoreflect.ValueOfFloat64(1.5)
	}
}

// agrees fails when the shape lets pass what the library does not decode, and reports
// whether the library decodes b.
func agrees(t *testing.T, info *KindInfo, b []byte) bool {
	t.Helper()
	decodes := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, info.NewBody()) == nil
	if passes := info.shape().fits(b, maxDepth); passes && !decodes {
		t.Fatalf("%v: the shape lets pass what does not decode: %x", info.Kind, b)
	}
	return decodes
}

func TestShapeLetsEveryBodyPassThatDecodes_S12(t *testing.T) {
	for _, info := range Kinds() {
		body := info.NewBody()
		fill(body.ProtoReflect(), 4)
		b := must(proto.Marshal(body))
		if len(b) == 0 || !info.shape().fits(b, maxDepth) {
			t.Errorf("%v: a complete body of %d bytes does not pass", info.Kind, len(b))
		}
	}
}

func TestShapeLetsNothingPassThatDoesNotDecode_S12(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, info := range Kinds() {
		body := info.NewBody()
		fill(body.ProtoReflect(), 3)
		good := must(proto.Marshal(body))
		broken := 0
		for range 2000 {
			b := bytes.Clone(good)
			for range 1 + rng.IntN(3) {
				switch at := rng.IntN(len(b)); rng.IntN(3) {
				case 0:
					b[at] = byte(rng.Uint32())
				case 1:
					b = b[:at+1]
				default:
					b = append(b[:at], b[min(len(b), at+1):]...)
				}
				if len(b) == 0 {
					break
				}
			}
			if !agrees(t, info, b) {
				broken++
			}
		}
		if broken < 100 {
			t.Errorf("%v: only %d of 2000 damaged bodies do not decode", info.Kind, broken)
		}
	}
}

func TestNestingIsBounded_S12(t *testing.T) {
	info, _ := LookupKind(httpRoutes)
	nested := func(levels int) []byte {
		var b []byte
		for range levels { // Struct.fields["k"].struct_value
			value := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), b)
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k")
			entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
			b = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
		}
		return b
	}
	if !info.shape().fits(nested(100), maxDepth) {
		t.Error("100 levels do not pass")
	}
	deep := nested(6000)
	if info.shape().fits(deep, maxDepth) || agrees(t, info, deep) {
		t.Error("12,000 levels of messages pass")
	}
}

func FuzzShape(f *testing.F) {
	for _, info := range Kinds() {
		body := info.NewBody()
		fill(body.ProtoReflect(), 2)
		f.Add(must(proto.Marshal(body)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, info := range Kinds() {
			agrees(t, info, data)
		}
	})
}

// encoded returns metadata as it is served.
func encoded(md metadata) string {
	b, _, _ := md.append(nil)
	return string(b) + "|" + string(md.version)
}

// slowly parses metadata as the library does.
func slowly(b []byte) (metadata, error) {
	m := &mcp.Metadata{}
	if err := proto.Unmarshal(b, m); err != nil {
		return metadata{}, err
	}
	return metadataOf(m)
}

func TestMetadataIsParsedAsTheLibraryDoes(t *testing.T) {
	text := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	label := func(parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), bytes.Join(parts, nil))
	}
	at := func(m *timestamppb.Timestamp) []byte { return must(proto.Marshal(&mcp.Metadata{CreateTime: m})) }
	for _, tc := range []struct {
		name string
		b    []byte
		fast bool
	}{
		{"nothing", nil, true},
		{"all", must(proto.Marshal(&mcp.Metadata{
			Name: "a/b", Version: "7", CreateTime: &timestamppb.Timestamp{Seconds: 5, Nanos: 6},
			Labels: map[string]string{"b": "1", "a": "2", "": ""}, Annotations: map[string]string{"z": "ü"},
		})), true},
		{"labels in any order", bytes.Join([][]byte{label(text(1, "b"), text(2, "1")), label(text(1, "a"), text(2, "2"))}, nil), true},
		{"a label twice: the last counts", bytes.Join([][]byte{label(text(1, "b"), text(2, "1")), label(text(1, "b"), text(2, "2"))}, nil), false},
		{"a value before its key", label(text(2, "1"), text(1, "b")), false},
		{"a key twice within a label", label(text(1, "b"), text(1, "c")), false},
		{"no key", label(text(2, "1")), true},
		{"a name twice", bytes.Join([][]byte{text(1, "x/a"), text(1, "x/b")}, nil), false},
		{"times are merged", bytes.Join([][]byte{at(&timestamppb.Timestamp{Seconds: 5}), at(&timestamppb.Timestamp{Nanos: 6})}, nil), false},
		{"an empty time", at(&timestamppb.Timestamp{}), true},
		{"a time before 1970", at(&timestamppb.Timestamp{Seconds: -5}), true},
		{"an unknown field", text(77, "x"), false},
		{"an unknown field of another wire type", protowire.AppendVarint(protowire.AppendTag(nil, 78, protowire.VarintType), 3), false},
		{"invalid UTF-8", label(text(1, "\xff")), false},
		{"cut off", []byte{0x0a, 5, 'x'}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, wantErr := slowly(tc.b)
			got, err := parseMetadata(tc.b)
			if (err == nil) != (wantErr == nil) || encoded(got) != encoded(want) {
				t.Errorf("got %q, %v; the library %q, %v", encoded(got), err, encoded(want), wantErr)
			}
			var md metadata
			if fast := md.parse(tc.b); fast != tc.fast {
				t.Errorf("parsed without the library: %v, want %v", fast, tc.fast)
			}
		})
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(must(proto.Marshal(&mcp.Metadata{
		Name: "a/b", Version: "7", CreateTime: &timestamppb.Timestamp{Seconds: 5, Nanos: 6},
		Labels: map[string]string{"b": "1", "a": "2"}, Annotations: map[string]string{"z": "ü"},
	})))
	f.Fuzz(func(t *testing.T, b []byte) {
		var md metadata
		if !md.parse(b) {
			return
		}
		want, err := slowly(b)
		if err != nil || encoded(md) != encoded(want) || md.revision() != want.revision() {
			t.Fatalf("%x: got %q, the library %q, %v", b, encoded(md), encoded(want), err)
		}
	})
}

func BenchmarkShape(b *testing.B) {
	info, _ := LookupKind(virtualServices)
	body := must(proto.Marshal(&networkingapi.VirtualService{
		Hosts: []string{"reviews.example.com"}, Gateways: []string{"istio-system/gateway"},
		Http: []*networkingapi.HTTPRoute{{
			Name: "v1", Timeout: durationpb.New(5), Route: []*networkingapi.HTTPRouteDestination{{
				Weight: 100, Destination: &networkingapi.Destination{Host: "reviews", Subset: "v1", Port: &networkingapi.PortSelector{Number: 80}},
			}},
		}},
	}))
	b.Run("shape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !info.shape().fits(body, maxDepth) {
				b.Fatal("the body does not pass")
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(body, info.NewBody()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
