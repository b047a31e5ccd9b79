package rewrite

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// naming matches the names of fields that may name a host, a namespace, a service, a
// gateway or another config.
var naming = regexp.MustCompile(`host|domain|namespace|gateway|service|address|authority|(^|_)sni|principal|export|fqdn|ur[il](_|$)|(^|_)sans?(_|$)|alt_name|target|delegate|issuer|endpoint$|origin|credential|(^|_)name$|_names$`)

// istioBodies returns the messages of the kinds that have one of their own. A MeshConfig
// is never rewritten.
func istioBodies() []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	for _, info := range mirror.Kinds() {
		body := info.NewBody()
		if _, isStruct := body.(*structpb.Struct); !isStruct && info.Kind != mirror.MeshConfig {
			out = append(out, body.ProtoReflect().Descriptor())
		}
	}
	return out
}

// reachable returns all fields of the messages and of those in them.
func reachable(bodies []protoreflect.MessageDescriptor) map[protoreflect.FullName]protoreflect.FieldDescriptor {
	fields := map[protoreflect.FullName]protoreflect.FieldDescriptor{}
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if seen[md.FullName()] || strings.HasPrefix(string(md.FullName()), "google.protobuf.") {
			return
		}
		seen[md.FullName()] = true
		for i := range md.Fields().Len() {
			f := md.Fields().Get(i)
			fields[f.FullName()] = f
			if inner := innerMessage(f); inner != nil {
				visit(inner)
			}
		}
	}
	for _, md := range bodies {
		visit(md)
	}
	return fields
}

func innerMessage(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() {
		return f.MapValue().Message()
	}
	return f.Message()
}

func holdsText(f protoreflect.FieldDescriptor) bool {
	if f.IsMap() {
		f = f.MapValue()
	}
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		return true
	case protoreflect.MessageKind:
		switch f.Message().Name() {
		case "StringMatch", "Struct", "StringValue", "Any":
			return true
		}
	}
	return false
}

// tableErrors says what is missing in the tables, and what is in them for nothing.
func tableErrors(bodies []protoreflect.MessageDescriptor, followed map[protoreflect.FullName]*role, alone map[protoreflect.FullName]string) []string {
	var out []string
	fields := reachable(bodies)
	for name, f := range fields {
		if !holdsText(f) || !naming.MatchString(string(f.Name())) {
			continue
		}
		if followed[name] == nil && alone[name] == "" {
			out = append(out, fmt.Sprintf("%s is in neither table", name))
		}
	}
	for name, r := range followed {
		f, ok := fields[name]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is followed, but there is no such field", name))
		case alone[name] != "":
			out = append(out, fmt.Sprintf("%s is in both tables", name))
		case !fits(f, r):
			out = append(out, fmt.Sprintf("%s has a role that does not fit it", name))
		}
	}
	for name := range alone {
		if _, ok := fields[name]; !ok {
			out = append(out, fmt.Sprintf("%s is left alone, but there is no such field", name))
		}
	}
	slices.Sort(out)
	return out
}

// fits reports whether a role can be applied to a field.
func fits(f protoreflect.FieldDescriptor, r *role) bool {
	if f.Message() == nil {
		return f.Kind() == protoreflect.StringKind && r.text != nil && r.fields == nil && (r.more == nil || f.IsList())
	}
	for name, r := range r.fields {
		if f := f.Message().Fields().ByName(name); f == nil || !fits(f, r) {
			return false
		}
	}
	return len(r.fields) > 0 && r.text == nil
}

func TestEveryFieldThatNamesSomethingIsInATable(t *testing.T) {
	bodies := istioBodies()
	if n := len(reachable(bodies)); n < 300 {
		t.Fatalf("only %d fields found", n)
	}
	for _, e := range tableErrors(bodies, followedFields, leftAlone) {
		t.Error(e)
	}

	t.Run("a missing field is found", func(t *testing.T) {
		for name := range followedFields {
			if !naming.MatchString(string(name.Name())) {
				continue
			}
			reduced := maps.Clone(followedFields)
			delete(reduced, name)
			want := string(name) + " is in neither table"
			if got := tableErrors(bodies, reduced, leftAlone); !slices.Contains(got, want) {
				t.Errorf("without %s: got %q", name, got)
			}
		}
		for name := range leftAlone {
			if !naming.MatchString(string(name.Name())) {
				continue
			}
			reduced := maps.Clone(leftAlone)
			delete(reduced, name)
			want := string(name) + " is in neither table"
			if got := tableErrors(bodies, followedFields, reduced); !slices.Contains(got, want) {
				t.Errorf("without %s: got %q", name, got)
			}
		}
	})
	t.Run("an entry without a field is found", func(t *testing.T) {
		more := maps.Clone(followedFields)
		more["istio.networking.v1alpha3.VirtualService.no_such"] = hostRole
		alone := maps.Clone(leftAlone)
		alone["istio.networking.v1alpha3.VirtualService.nor_such"] = "why"
		want := []string{
			"istio.networking.v1alpha3.VirtualService.no_such is followed, but there is no such field",
			"istio.networking.v1alpha3.VirtualService.nor_such is left alone, but there is no such field",
		}
		if got := tableErrors(bodies, more, alone); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a role that does not fit is found", func(t *testing.T) {
		wrong := maps.Clone(followedFields)
		wrong["istio.networking.v1alpha3.HTTPMatchRequest.authority"] = hostRole
		if got := tableErrors(bodies, wrong, leftAlone); len(got) != 1 {
			t.Errorf("got %q, want one error", got)
		}
	})
}

// Every kind with a JSON body is in the table of paths.
func TestEveryGatewayAPIKindHasPaths(t *testing.T) {
	known := map[mirror.Kind]bool{}
	for _, info := range mirror.Kinds() {
		if _, ok := info.NewBody().(*structpb.Struct); !ok {
			continue
		}
		known[info.Kind] = true
		if len(structFields[info.Kind]) == 0 {
			t.Errorf("%s has no paths", info.Kind)
		}
	}
	for kind, fields := range structFields {
		if !known[kind] {
			t.Errorf("%s has paths but no JSON body", kind)
		}
		for _, f := range fields {
			if f.role.text == nil == (f.role.object == nil) {
				t.Errorf("%s %s: the role must have one function", kind, f.path)
			}
		}
	}
}
