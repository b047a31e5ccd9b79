package fakekube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

const applyType, patchType = "application/apply-patch+yaml", "application/json-patch+json"

// send sends a request, and returns the code and the answer.
func send(t *testing.T, s *Server, method, path, kind, body string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	s.ServeHTTP(w, r)
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return w.Code, got
}

func entry(more, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"a","namespace":"shop"%s},"spec":%s}`, more, spec)
}

func of(o map[string]any, path ...string) any {
	var v any = o
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

const inShop = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries"

func TestManagersOwnWhatTheyApply(t *testing.T) {
	s := New()
	one, two := inShop+"/a?fieldManager=one", inShop+"/a?fieldManager=two"
	code, o := send(t, s, http.MethodPatch, one, applyType, entry("", `{"hosts":["a.x"],"location":"MESH_INTERNAL"}`))
	if code != http.StatusCreated || of(o, "metadata", "uid") == nil || of(o, "metadata", "resourceVersion") != "101" {
		t.Fatal(code, o)
	}
	if code, o = send(t, s, http.MethodPatch, one, applyType, entry("", `{"hosts":["a.x"],"location":"MESH_INTERNAL"}`)); code != 200 || of(o, "metadata", "resourceVersion") != "101" {
		t.Error("an apply that changes nothing gives", code, o)
	}
	code, o = send(t, s, http.MethodPatch, two, applyType, entry("", `{"location":"MESH_EXTERNAL"}`))
	causes, _ := of(o, "details", "causes").([]any)
	if code != http.StatusConflict || len(causes) != 1 || of(causes[0].(map[string]any), "field") != ".spec.location" || !strings.Contains(fmt.Sprint(causes), `"one"`) {
		t.Error("a conflict is answered with", code, o)
	}
	if code, o = send(t, s, http.MethodPatch, two+"&force=true&dryRun=All", applyType, entry("", `{"location":"MESH_EXTERNAL"}`)); code != 200 || of(o, "spec", "location") != "MESH_EXTERNAL" {
		t.Error("a dry run shows", code, o)
	}
	if _, o = send(t, s, http.MethodGet, inShop+"/a", "", ""); of(o, "spec", "location") != "MESH_INTERNAL" {
		t.Error("a dry run changed", o)
	}
	if code, o = send(t, s, http.MethodPatch, two+"&force=true", applyType, entry("", `{"location":"MESH_EXTERNAL"}`)); code != 200 || of(o, "spec", "location") != "MESH_EXTERNAL" {
		t.Error("a forced apply gives", code, o)
	}
	if code, o = send(t, s, http.MethodPatch, one, applyType, entry("", `{"hosts":["a.x"]}`)); code != 200 || of(o, "spec", "location") == nil {
		t.Error("a field that another owns is removed:", code, o)
	}
	if code, o = send(t, s, http.MethodPatch, two, applyType, entry("", `{}`)); code != 200 || of(o, "spec", "location") != nil {
		t.Error("a field that its owner leaves out stays:", code, o)
	}
}

func TestPreconditionsOfWrites(t *testing.T) {
	s := withEntries("a")
	s.Put(entries, Object("shop", "b", `{}`)) // the version of a is not the newest
	uid := of(s.Objects[entries]["shop/a"], "metadata", "uid").(string)
	apply := inShop + "/a?fieldManager=one&force=true"
	for name, c := range map[string]struct {
		method, path, kind, body string
		code                     int
	}{
		"apply to another UID":             {http.MethodPatch, apply, applyType, entry(`,"uid":"other"`, `{}`), 409},
		"apply to another version":         {http.MethodPatch, apply, applyType, entry(`,"resourceVersion":"7"`, `{}`), 409},
		"apply a UID to nothing":           {http.MethodPatch, inShop + "/c?fieldManager=one", applyType, entry(`,"uid":"other"`, `{}`), 409},
		"apply to the same":                {http.MethodPatch, apply + "&dryRun=All", applyType, entry(`,"resourceVersion":"101","uid":"`+uid+`"`, `{}`), 200},
		"create what exists":               {http.MethodPost, inShop, "application/json", entry("", `{}`), 409},
		"put another version":              {http.MethodPut, inShop + "/a", "application/json", entry(`,"resourceVersion":"7"`, `{}`), 409},
		"put what is not there":            {http.MethodPut, inShop + "/c", "application/json", entry("", `{}`), 404},
		"delete another UID":               {http.MethodDelete, inShop + "/a", "application/json", `{"preconditions":{"uid":"other"}}`, 409},
		"delete another version":           {http.MethodDelete, inShop + "/a", "application/json", `{"preconditions":{"resourceVersion":"7"}}`, 409},
		"delete what is not there":         {http.MethodDelete, inShop + "/c", "application/json", ``, 404},
		"delete without doing it":          {http.MethodDelete, inShop + "/a?dryRun=All", "application/json", ``, 200},
		"patch with a test that fails":     {http.MethodPatch, inShop + "/a", patchType, `[{"op":"test","path":"/metadata/resourceVersion","value":"7"}]`, 422},
		"write a kind that is not served":  {http.MethodPost, "/apis/a.b/v1/namespaces/shop/things", "application/json", entry("", `{}`), 404},
		"patch in a form that is not here": {http.MethodPatch, inShop + "/a", "application/merge-patch+json", `{}`, 415},
	} {
		if code, o := send(t, s, c.method, c.path, c.kind, c.body); code != c.code {
			t.Errorf("%s: %d %v", name, code, o)
		}
	}
	if s.Version != 102 {
		t.Error("one of them changed something")
	}
	if code, o := send(t, s, http.MethodPatch, inShop+"/a/status", patchType, `[{"op":"test","path":"/metadata/resourceVersion","value":"101"},
		{"op":"add","path":"/status","value":{"conditions":[{"type":"a"}]}},{"op":"add","path":"/status/conditions/-","value":{"type":"b"}}]`); code != 200 || fmt.Sprint(of(o, "status", "conditions")) != "[map[type:a] map[type:b]]" {
		t.Error(code, o)
	}
	if code, o := send(t, s, http.MethodDelete, inShop+"/a", "application/json", `{"preconditions":{"uid":"`+uid+`","resourceVersion":"103"}}`); code != 200 || s.Objects[entries]["shop/a"] != nil {
		t.Error(code, o)
	}
}

func TestNamespacesMayHaveToExist(t *testing.T) {
	s := New()
	s.NeedNamespaces = true
	if code, o := send(t, s, http.MethodPost, inShop, "application/json", entry("", `{}`)); code != 404 || of(o, "details", "kind") != "namespaces" {
		t.Error(code, o)
	}
	if code, o := send(t, s, http.MethodPost, "/api/v1/namespaces", "application/json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`); code != 201 {
		t.Error(code, o)
	}
	if code, o := send(t, s, http.MethodPost, inShop, "application/json", entry("", `{}`)); code != 201 {
		t.Error(code, o)
	}
}

func TestListsAndWatchesSelectByLabel(t *testing.T) {
	s := New()
	s.Selects = true
	label := func(name, labels string) {
		s.Put(entries, Object("shop", name, `{}`, `{"metadata":{"labels":{`+labels+`}}}`))
	}
	label("a", `"mine":"yes"`)
	label("b", ``)
	if names, _, _ := page(t, s, "labelSelector=mine%3Dyes"); len(names) != 1 || names[0] != "a" {
		t.Error(names)
	}
	from := s.Version
	label("a", ``)
	label("b", `"mine":"yes"`)
	label("c", ``)
	s.Stops++
	var got []string
	selected, err := labels.Parse("mine=yes")
	if err != nil {
		t.Fatal(err)
	}
	s.sendSince(from, entries, "", selected, func(kind string, o any) {
		got = append(got, kind+" "+of(o.(map[string]any), "metadata", "name").(string))
	})
	if strings.Join(got, ", ") != "DELETED a, ADDED b" {
		t.Error(got)
	}
}
