package ingress

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
)

func TestObjectsDecode(t *testing.T) {
	ours, class := "istio", "edge"
	got := decoded(t, `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  uid: 1
  creationTimestamp: "2024-01-31T10:00:00Z"
  annotations: {kubernetes.io/ingress.class: istio, other: x}
  managedFields: [{manager: kubectl}]
spec:
  ingressClassName: edge
  defaultBackend: {resource: {kind: Bucket}}
  tls: [{hosts: [a.example], secretName: cert}]
  rules:
  - host: a.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {name: http}}}}]}
  - host: b.example
status: {loadBalancer: {}}`)
	want := &Ingress{
		Name: Name{"shop", "web"}, Created: time.Date(2024, 1, 31, 10, 0, 0, 0, time.UTC), Annotation: &ours,
		Spec: Spec{
			ClassName: &class, DefaultBackend: &Backend{}, TLS: []TLS{{[]string{"a.example"}, "cert"}},
			Rules: []Rule{{"a.example", &HTTP{[]Path{{"/", "Prefix", Backend{&ServiceBackend{"front", Port{Name: "http"}}}}}}}, {Host: "b.example"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Ingress, - wanted, + got:\n%s", diff)
	}
	c, err := objectOf(t, []byte(`{"metadata":{"name":"edge","creationTimestamp":null},"spec":{"controller":"x/y","parameters":{}}}`)).class()
	if err != nil || *c != (Class{"edge", "x/y"}) {
		t.Errorf("IngressClass %v, %v", c, err)
	}
	s, err := objectOf(t, []byte(`{"metadata":{"name":"front","namespace":"shop"},"spec":{"ports":[{"name":"http","port":80,"targetPort":"web"},{"port":81,"targetPort":8081}]}}`)).service()
	if diff := cmp.Diff(&Service{Name{"shop", "front"}, []Port{{"http", 80}, {"", 81}}}, s); diff != "" || err != nil {
		t.Errorf("Service, %v, - wanted, + got:\n%s", err, diff)
	}
}

func TestObjectsThatDoNotDecodeAreRefusedByName(t *testing.T) {
	ingress := func(o *object) error { _, err := o.ingress(); return err }
	class := func(o *object) error { _, err := o.class(); return err }
	service := func(o *object) error { _, err := o.service(); return err }
	for _, tc := range []struct {
		decode   func(*object) error
		in, want string
	}{
		{ingress, `{"metadata":{"name":"web","namespace":"shop"},"spec":{"tls":{}}}`, "Ingress shop/web: spec.tls: wrong type or out of range: object"},
		{ingress, `{"metadata":{"namespace":"shop"}}`, "Ingress shop/: metadata.name: missing"},
		{ingress, `{"metadata":{"name":"web"}}`, "Ingress /web: metadata.namespace: missing"},
		{ingress, `{"metadata":{"name":"a/b","namespace":"shop"}}`, `Ingress shop/a/b: metadata.name: has a "/"`},
		{ingress, `{"metadata":{"name":"b","namespace":"shop/a"}}`, `Ingress shop/a/b: metadata.namespace: has a "/"`},
		{ingress, `{"metadata":{"name":"b","namespace":"shop"},"spec":{"rules":[{},{"host":"a/b"}]}}`, `Ingress shop/b: spec.rules[1].host: "a/b" is not a host: it has a "/"`},
		{ingress, `{"metadata":{"name":"b","namespace":"shop"},"spec":{"rules":[{"http":{"paths":[{"backend":{"service":{"port":{"number":2147483648}}}}]}}]}}`, "Ingress shop/b: spec.rules.http.paths.backend.service.port.number: wrong type or out of range: number 2147483648"},
		{class, `{"metadata":{},"spec":{"controller":"x"}}`, "IngressClass /: metadata.name: missing"},
		{service, `{"metadata":{"name":"front"}}`, "Service /front: metadata.namespace: missing"},
		{service, `{"metadata":{"name":"` + strings.Repeat("x", 1000) + `"}}`, "Service /" + strings.Repeat("x", 100)},
	} {
		err := tc.decode(objectOf(t, []byte(tc.in)))
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) || len(err.Error()) > 500 {
			t.Errorf("%.100s\n got %v\nwant %s", tc.in, err, tc.want)
		}
	}
}

// FuzzObjects has a State take whatever decodes. Its outputs are resources, or their name is too
// long for one.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{
		ingress("shop", "web", 1, "tls cert a.example", "a.example / front:http", "*.b.example /x back:80", "- / any:80"),
		ingress("bank", "web", 1, "tls cert", "a.example / front:80", "a-example / front:80"),
		service("front", "http", 80),
		"kind: IngressClass\nmetadata: {name: ours}\nspec: {controller: istio.io/ingress-controller}",
		"kind: Ingress\nmetadata: {namespace: a, name: b, annotations: {kubernetes.io/ingress.class: istio}}\nspec: {defaultBackend: {service: {name: x}}, tls: [{}], rules: [{http: {paths: [{path: /*}, {backend: {}}]}}]}",
	} {
		f.Add(jsonOf(f, seed), jsonOf(f, ingress("shop", "other", 1, "a.example / front:http")))
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		s := New(Options{Mode: ModeDefault})
		for i := range inputs {
			s.Synced(i)
		}
		for _, b := range [][]byte{one, two} {
			for _, kind := range []string{"Ingress", "IngressClass", "Service"} {
				_ = tellAs(s, kind, b) // most of it does not decode
			}
			for _, c := range s.Flush() {
				if c.Body != nil {
					check(t, c)
				}
			}
		}
		for p := range s.Problems() {
			if len(p.Reason) > 2000 {
				t.Errorf("a problem of %d bytes", len(p.Reason))
			}
		}
		for n := range s.ingresses {
			s.Remove(Ingresses, n)
		}
		s.Flush()
		if len(s.hosts)+len(s.claims)+len(s.outputs)+len(s.ofClass)+len(s.ofService) != 0 {
			t.Errorf("something is left of no objects: %+v", s)
		}
	})
}

func check(t *testing.T, o *Output) {
	t.Helper()
	body, err := anypb.New(o.Body)
	if err != nil {
		t.Fatalf("%v does not encode: %v", o.Key, err)
	}
	_, err = mirror.New(mirror.Spec{Key: o.Key, Annotations: o.Annotations, Body: body})
	if err != nil && len(o.Key.FullName()) <= 512 {
		t.Errorf("%v is no resource: %v", o.Key, err)
	}
}
