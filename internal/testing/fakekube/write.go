package fakekube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/yaml"
)

const maxWrite = 3 << 20 // bytes of a request body, as real servers have it

// place is what a path names: an object, or a collection if name is empty.
type place struct{ group, version, plural, namespace, name string }

// placeOf reads the path of an object or collection. The path of a status names its object.
func placeOf(path string) (p place, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		p.version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		p.group, p.version, parts = parts[1], parts[2], parts[3:]
	default:
		return p, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		p.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) == 3 && parts[2] == "status" {
		parts = parts[:2]
	}
	if p.plural = parts[0]; len(parts) == 2 {
		p.name = parts[1]
	}
	return p, len(parts) <= 2
}

func (p place) of() string { return p.group + "/" + p.plural }

func (p place) resource() schema.GroupResource {
	return schema.GroupResource{Group: p.group, Resource: p.plural}
}

// key is as Put has it: objects without a namespace have none at all there.
func (p place) key(name string) string {
	if p.namespace == "" {
		return fmt.Sprint(nil, "/", name)
	}
	return p.namespace + "/" + name
}

// change answers a request that writes: POST, PUT, PATCH (server-side apply or JSON patch) or DELETE. It heeds
// dryRun=All, field managers, and the preconditions of UID and resourceVersion. Schemas are not checked.
func (s *Server) change(w http.ResponseWriter, r *http.Request) {
	p, ok := placeOf(r.URL.Path)
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxWrite))
	if !ok || err != nil || (p.name == "") != (r.Method == http.MethodPost) {
		Fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	var code int
	var answer []byte // encoded under the lock: tests change objects
	s.Set(func() {
		var o *unstructured.Unstructured
		if code, o, err = s.changed1(p, r, body); err == nil {
			answer, err = json.Marshal(o.Object)
		}
	})
	switch status, is := errors.AsType[*apierrors.StatusError](err); {
	case is:
		refuse(w, status)
	case err != nil:
		Fail(w, http.StatusInternalServerError, err.Error())
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(answer)
	}
}

// changed1 carries out one request. The caller holds the lock.
func (s *Server) changed1(p place, r *http.Request, body []byte) (int, *unstructured.Unstructured, error) {
	q := r.URL.Query()
	builtin := p.group == "" || p.group == "coordination.k8s.io"
	if s.NeedNamespaces && p.namespace != "" && s.Objects["/namespaces"]["<nil>/"+p.namespace] == nil {
		return 0, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, p.namespace)
	}
	if !builtin && !s.serves(p) {
		return 0, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, p.resource(), p.name, "", 0, false)
	}
	live := s.live(p, p.name)
	var next *unstructured.Unstructured
	var err error
	switch kind := r.Header.Get("Content-Type"); {
	case r.Method == http.MethodDelete:
		return s.deleted(p, live, body, q)
	case kind == "application/apply-patch+yaml":
		next, err = s.applied(p, live, body, q)
	case r.Method == http.MethodPatch:
		if live == nil {
			return 0, nil, apierrors.NewNotFound(p.resource(), p.name)
		}
		if kind != "application/json-patch+json" {
			return 0, nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", p.resource(), p.name, "", 0, false)
		}
		if next, err = patched(live, body); err != nil {
			return 0, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", p.resource(), p.name, err.Error(), 0, false)
		}
		next, err = s.updated(p, live, next, q)
	default:
		next = &unstructured.Unstructured{}
		if err = next.UnmarshalJSON(body); err != nil {
			return 0, nil, apierrors.NewBadRequest(err.Error())
		}
		if next.SetNamespace(p.namespace); r.Method == http.MethodPost {
			live = s.live(p, next.GetName())
		}
		switch {
		case r.Method == http.MethodPost && live != nil:
			return 0, nil, apierrors.NewAlreadyExists(p.resource(), next.GetName())
		case r.Method == http.MethodPut && live == nil:
			return 0, nil, apierrors.NewNotFound(p.resource(), p.name)
		}
		next, err = s.updated(p, live, next, q)
	}
	if err != nil {
		return 0, nil, err
	}
	return s.keep(p, live, next, q)
}

// live returns a copy of an object with the version of the path, nil if there is none.
func (s *Server) live(p place, name string) *unstructured.Unstructured {
	o := s.Objects[p.of()][p.key(name)]
	if o == nil {
		return nil
	}
	text, _ := json.Marshal(o)
	u := &unstructured.Unstructured{Object: map[string]any{}}
	_ = json.Unmarshal(text, &u.Object)
	u.SetGroupVersionKind(s.kindAt(p, u.GetKind()))
	return u
}

func (s *Server) kindAt(p place, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: p.group, Version: p.version, Kind: cmp.Or(s.kind[p.of()], kind)}
}

// precondition compares UID and resourceVersion of a request, if it has them, with the object.
func precondition(p place, live *unstructured.Unstructured, uid, version string) error {
	switch {
	case live == nil && uid != "":
		return apierrors.NewConflict(p.resource(), p.name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	case live == nil:
		return nil
	case uid != "" && uid != string(live.GetUID()):
		return apierrors.NewConflict(p.resource(), p.name, fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
	case version != "" && version != live.GetResourceVersion():
		return apierrors.NewConflict(p.resource(), p.name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// applied returns the result of a server-side apply.
func (s *Server) applied(p place, live *unstructured.Unstructured, body []byte, q url.Values) (*unstructured.Unstructured, error) {
	next := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(body, &next.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if q.Get("fieldManager") == "" {
		return nil, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	if len(next.GetManagedFields()) > 0 {
		return nil, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	uid, version, was := string(next.GetUID()), next.GetResourceVersion(), live
	kind := s.kindAt(p, next.GetKind())
	if live == nil {
		live = empty(kind)
		live.SetNamespace(p.namespace)
		live.SetName(p.name)
	}
	m, err := managers(kind)
	if err != nil {
		return nil, err
	}
	o, err := m.Apply(live, next, q.Get("fieldManager"), q.Get("force") == "true")
	if err == nil { // a real server looks at the managers first, too
		err = precondition(p, was, uid, version)
	}
	if err != nil {
		return nil, err
	}
	return o.(*unstructured.Unstructured), nil
}

// updated returns an object as a request has it, with the fields that its manager owns by the change.
func (s *Server) updated(p place, live, next *unstructured.Unstructured, q url.Values) (*unstructured.Unstructured, error) {
	if err := precondition(p, live, string(next.GetUID()), next.GetResourceVersion()); err != nil {
		return nil, err
	}
	kind := s.kindAt(p, next.GetKind())
	next.SetGroupVersionKind(kind)
	m, err := managers(kind)
	if err != nil {
		return nil, err
	}
	if live == nil {
		live = empty(kind)
	} else {
		next.SetUID(live.GetUID())
	}
	o, err := m.Update(live, next, cmp.Or(q.Get("fieldManager"), "unknown"))
	if err != nil {
		return nil, err
	}
	return o.(*unstructured.Unstructured), nil
}

// keep stores an object, unless it is as before or for a dry run. The caller holds the lock.
func (s *Server) keep(p place, live, next *unstructured.Unstructured, q url.Values) (int, *unstructured.Unstructured, error) {
	code := http.StatusOK
	if live == nil {
		code = http.StatusCreated
		s.uids++
		next.SetUID(uidOf(s.uids))
		next.SetCreationTimestamp(metav1.Time{Time: time.Unix(1700000000, 0)})
	} else {
		next.SetResourceVersion(live.GetResourceVersion())
		if reflect.DeepEqual(plain(live), plain(next)) {
			return code, live, nil
		}
	}
	if q.Get("dryRun") == "All" {
		return code, next, nil
	}
	s.put(p.of(), next.Object)
	return code, next, nil
}

// plain returns an object as it is after JSON, in which all numbers have one type.
func plain(o *unstructured.Unstructured) (v any) {
	text, _ := json.Marshal(o.Object)
	_ = json.Unmarshal(text, &v)
	return v
}

// deleted deletes an object. The caller holds the lock.
func (s *Server) deleted(p place, live *unstructured.Unstructured, body []byte, q url.Values) (int, *unstructured.Unstructured, error) {
	var options metav1.DeleteOptions
	if len(body) > 0 {
		if err := json.Unmarshal(body, &options); err != nil {
			return 0, nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if live == nil {
		return 0, nil, apierrors.NewNotFound(p.resource(), p.name)
	}
	var uid, version string
	if c := options.Preconditions; c != nil {
		if c.UID != nil {
			uid = string(*c.UID)
		}
		if c.ResourceVersion != nil {
			version = *c.ResourceVersion
		}
	}
	if err := precondition(p, live, uid, version); err != nil {
		return 0, nil, err
	}
	if q.Get("dryRun") != "All" {
		s.remove(p.of(), p.key(p.name))
	}
	return http.StatusOK, live, nil
}

// managers returns what merges applied objects. It deduces the types of fields from their values, as a real
// server does for kinds without a schema.
func managers(kind schema.GroupVersionKind) (*managedfields.FieldManager, error) {
	return managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), converter{}, converter{}, converter{}, kind, kind.GroupVersion(), "", nil)
}

// converter has the versions of a kind be the same, and knows no defaults.
type converter struct{}

func (converter) Convert(any, any, any) error { return nil }
func (converter) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (converter) ConvertFieldLabel(schema.GroupVersionKind, string, string) (string, string, error) {
	return "", "", errors.New("there are no field labels")
}
func (converter) Default(runtime.Object)                                   {}
func (converter) New(kind schema.GroupVersionKind) (runtime.Object, error) { return empty(kind), nil }

func empty(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(kind)
	return u
}
