package object

import (
	"strings"
	"testing"
)

func TestAnEndpointSliceHasItsFieldsAsSpec_K15(t *testing.T) {
	const fields = `"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"http","port":80}]`
	for name, tc := range map[string]struct{ object, want string }{
		"a slice":                   {`{"apiVersion":"discovery.k8s.io/v1","metadata":{"name":"a"},` + fields + `}`, `{` + fields + `}`},
		"a slice in lines":          {"{\"metadata\":{\"name\":\"a\"},\n" + strings.ReplaceAll(fields, ",", ",\n") + "}", `{` + fields + `}`},
		"a slice without endpoints": {`{"metadata":{"name":"a"},"addressType":"IPv6"}`, `{"addressType":"IPv6","endpoints":null,"ports":null}`},
		"a type that is no word": {`{"metadata":{"name":"a"},"addressType":"\u007f","endpoints":[
]}`, `{"addressType":"\u007f","endpoints":[],"ports":null}`},
		"another kind with such fields": {`{"metadata":{"name":"a"},"endpoints":[1],"ports":[2]}`, ``},
		"too many values":               {`{"metadata":{"name":"a"},"addressType":"IPv4","endpoints":[` + strings.Repeat("[],", maxValues) + `[]]}`, ``},
	} {
		l, err := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[` + tc.object + `]}`).List()
		if err != nil {
			t.Fatal(name, err)
		}
		if o := l.Items[0]; string(o.Spec) != tc.want || (o.Err != nil) != (name == "too many values") {
			t.Errorf("%s: %.100s, %v", name, o.Spec, o.Err)
		}
	}
}

func TestAnObjectThatIsBeingDeletedIsMarked_K15(t *testing.T) {
	for metadata, want := range map[string]bool{`"name":"a"`: false, `"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"`: true, `"name":"a","deletionTimestamp":null`: false} {
		_, o, err := decoderOf(`{"type":"MODIFIED","object":{"metadata":{` + metadata + `}}}`).Decode()
		if err != nil || (o.(*Object).DeletionTimestamp != nil) != want {
			t.Errorf("%s: %+v, %v", metadata, o, err)
		}
	}
}

// The fields of EndpointSlices cost other kinds nothing: 49 allocations were made before there were any.
func TestOtherKindsTakeNoMoreThanBefore_K15(t *testing.T) {
	text := eventOf(1)
	n := testing.AllocsPerRun(100, func() {
		if _, _, err := decoderOf(text).Decode(); err != nil {
			t.Fatal(err)
		}
	})
	if n > 49 {
		t.Errorf("%v allocations", n)
	}
}
