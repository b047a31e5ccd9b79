package kube

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

func served(kind mirror.Kind, spec string) *Served {
	return &Served{
		Key: mirror.Key{Kind: kind, Namespace: "shop", Name: "db"}, ResourceVersion: "7", Created: created,
		Labels: map[string]string{"app": "db"}, Spec: []byte(spec),
	}
}

var virtualService = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}

func TestUnknownFieldsOfNewerServersAreDroppedByName_K9(t *testing.T) {
	const spec = `{"hosts":["db"],"http":[{"retries":{"attempts":2,"later":1},"fresh":{"a":[1]}},{"fresh":true,"timeout":"3s"}],"newest":1}`
	r, unknown, err := served(virtualService, spec).Resource("east")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"spec.http[0].fresh", "spec.http[0].retries.later", "spec.newest"}; !slices.Equal(unknown, want) {
		t.Errorf("unknown: %q, want %q", unknown, want)
	}
	known, _, err := served(virtualService, `{"hosts":["db"],"http":[{"retries":{"attempts":2}},{"timeout":"3s"}]}`).Resource("east")
	if err != nil || !r.Equal(known) {
		t.Errorf("the known fields are not what is left: %v", err)
	}
}

// An object costs the same with one unknown field as with as many as are left out.
func TestAllUnknownFieldsAreFoundInOnePass_K9(t *testing.T) {
	routes := strings.Repeat(`{"timeout":"3s","route":[{"destination":{"host":"db"}}]},`, 6000)
	specOf := func(fields int) string {
		var more strings.Builder
		for i := range fields {
			fmt.Fprintf(&more, `,"fresh%02d":1`, i)
		}
		return `{"hosts":["db"],"http":[` + strings.TrimSuffix(routes, ",") + `]` + more.String() + `}`
	}
	allocated := func(fields int) uint64 {
		s := served(virtualService, specOf(fields))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, unknown, err := s.Resource("east")
		runtime.ReadMemStats(&after)
		if err != nil || len(unknown) != fields {
			t.Fatalf("%d fields are unknown, want %d: %v", len(unknown), fields, err)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	one, all := allocated(1), allocated(maxUnknown)
	if all > one+one/10 {
		t.Errorf("%d bytes are allocated, and %d for one unknown field", all, one)
	}
	_, _, err := served(virtualService, specOf(maxUnknown+1)).Resource("east")
	if err == nil || err.Error() != "more than 64 fields are unknown to this build: spec.fresh64: unknown field: check its spelling and indentation" {
		t.Error(err)
	}
}

// Types of messages are few, and their messages may be many.
func TestAFieldThatManyMessagesHaveCountsOnce_K9(t *testing.T) {
	spec := `{"hosts":["db"],"http":[` + strings.Repeat(`{"fresh":1,"retries":{"fresh":2}},`, 100) + `{}],"subsets":{"a":1}}`
	_, unknown, err := served(virtualService, spec).Resource("east")
	if want := []string{"spec.http[0].fresh", "spec.http[0].retries.fresh", "spec.subsets"}; err != nil || !slices.Equal(unknown, want) {
		t.Errorf("%q, %v", unknown, err)
	}
	_, unknown, err = served(virtualService, `{"`+strings.Repeat("x", 1<<20)+`":1}`).Resource("east")
	if err != nil || len(unknown) != 1 || len(unknown[0]) > 300 {
		t.Errorf("a name of %d bytes, %v", len(fmt.Sprint(unknown)), err)
	}
}

func TestAnUnknownValueIsRefusedAlsoBehindAnUnknownField_K3(t *testing.T) {
	kind := mirror.Kind{Group: "security.istio.io", Kind: "PeerAuthentication"}
	_, _, err := served(kind, `{"fresh":1,"mtls":{"mode":"STRICTER"}}`).Resource("east")
	if err == nil || !strings.Contains(err.Error(), `spec.mtls.mode: invalid value for enum field mode: "STRICTER"`) {
		t.Errorf("a value that is not known passed for the default: %v", err)
	}
}

func TestObjectsOfServersBecomeTheirMessages_K10(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		want *networking.VirtualService
	}{
		"none":       {"", &networking.VirtualService{}},
		"null":       {"null", &networking.VirtualService{}},
		"snake case": {`{"export_to":["."]}`, &networking.VirtualService{ExportTo: []string{"."}}},
		"null field": {`{"hosts":null}`, &networking.VirtualService{}},
	} {
		r, unknown, err := served(virtualService, tc.spec).Resource("east")
		if err != nil || len(unknown) > 0 {
			t.Errorf("%s: %v, unknown %q", name, err, unknown)
			continue
		}
		got, err := r.Body().UnmarshalNew()
		if err != nil || !proto.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v (%v)", name, got, tc.want, err)
		}
		if md := r.Metadata(); !md.CreateTime.Equal(created) || md.Labels["app"] != "db" || r.SourceVersion() != "7" || r.FullName() != "shop/db" {
			t.Errorf("%s: %v %s %s", name, md, r.SourceVersion(), r.FullName())
		}
	}
	r, _, err := served(mirror.Kind{Group: "example.com", Kind: "Widget"}, `{"a":{"b":[1]}}`).Resource("east")
	if err != nil || r.Body().GetTypeUrl() != "type.googleapis.com/google.protobuf.Struct" {
		t.Errorf("a kind that is not well known: %v, %v", r, err)
	}
}

// Whatever JSON an object has, decoding ends without a panic, and in the same way each time.
func FuzzServed(f *testing.F) {
	f.Add(`{"hosts":["a"],"http":[{"x":1}]}`)
	f.Add(`[]`)
	f.Add(`{"hosts":{"a":[{"b":null}]}}`)
	f.Add("{\"hosts\":[\"a\"],\"ht\x01p\":[{\"x\":1}]}") // JSON for protojson alone
	f.Add("{\"hosts\":[\"a\x01\"],\"x\":[\"\x01\",{\"\x01\":[}]}")
	f.Fuzz(func(t *testing.T, spec string) {
		if strings.Contains(spec, "\n") {
			return // the decoder of the source writes it in one line
		}
		first, _, err := served(virtualService, spec).Resource("east")
		again, _, againErr := served(virtualService, spec).Resource("east")
		if (err == nil) != (againErr == nil) || err == nil && !first.Equal(again) {
			t.Errorf("%q: %v, %v and then %v, %v", spec, first, err, again, againErr)
		}
	})
}
