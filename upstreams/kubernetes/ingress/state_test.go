package ingress

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

func TestNothingComesOutBeforeAllInputsHaveSynced_K2(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "web", 1, "a.example / front:http"))
	w.want()
	w.Synced(Ingresses)
	w.want()
	w.Synced(Classes)
	w.want() // without its Service, the route would be missing
	w.apply(service("front", "http", 80))
	w.Synced(Services)
	w.want(
		"gw istio-system/web-~-shop: 80:*",
		"vs shop/a-example-web-~: a.example @ istio-system/web-~-shop: /…>front.shop:80",
	)
	w.want()
}

func TestOneChangeChangesBothKindsAtOnce(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "web", 1, "a.example / front:80")).synced()
	w.Flush()
	w.apply(ingress("shop", "web", 1, "tls cert b.example", "b.example / front:80"))
	w.want(
		"gw istio-system/web-~-shop: 443:b.example=cert, 80:*",
		"vs shop/a-example-web-~: -",
		"vs shop/b-example-web-~: b.example @ istio-system/web-~-shop: /…>front.shop:80",
	)
	w.Remove(Ingresses, Name{"shop", "web"})
	w.want("gw istio-system/web-~-shop: -", "vs shop/b-example-web-~: -")
	w.Remove(Ingresses, Name{"shop", "web"})
	w.want()
}

// Status, managed fields and labels are no part of an Ingress here.
func TestAChangeOfNoOutputIsNone_K6(t *testing.T) {
	web := ingress("shop", "web", 1, "a.example / front:http")
	w := newWorld(t, byDefault, web, service("front", "http", 80)).synced()
	w.Flush()
	w.apply(web + "status: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}")
	w.want()
	w.apply(web + "  defaultBackend: {service: {name: front, port: {number: 80}}}")
	w.want()
	w.apply(service("unused", "http", 80), strings.Replace(service("front", "http", 80), "port: 1", "port: 2", 1))
	w.want()
	w.apply(fmt.Sprintf(class, "ours", controllerName))
	w.want()
}

func TestOnlyOutputsThatDifferChange(t *testing.T) {
	w := newWorld(t, byDefault,
		ingress("shop", "one", 1, "a.example / one:80", "b.example / one:81"),
		ingress("shop", "two", 2, "a.example /two two:80", "c.example / two:81"),
	).synced()
	w.Flush()
	w.apply(ingress("shop", "two", 2, "a.example /two two:90", "c.example / two:81"))
	w.want("vs shop/a-example-one-~: a.example @ istio-system/one-~-shop: /two…>two.shop:90, /…>one.shop:80")
	w.apply(ingress("shop", "two", 2, "tls cert a.example", "a.example /two two:90", "c.example / two:81"))
	w.want(
		"gw istio-system/two-~-shop: 443:a.example=cert, 80:*",
		"vs shop/a-example-one-~: a.example @ istio-system/one-~-shop, istio-system/two-~-shop: /two…>two.shop:90, /…>one.shop:80",
	)
	w.Remove(Ingresses, Name{"shop", "one"}) // the next one gives the host its name
	w.want(
		"gw istio-system/one-~-shop: -",
		"vs shop/a-example-one-~: -",
		"vs shop/a-example-two-~: a.example @ istio-system/two-~-shop: /two…>two.shop:90",
		"vs shop/b-example-one-~: -",
	)
}

func TestNamedPortsFollowTheirService(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "web", 1, "a.example / front:http", "b.example / front:80")).synced()
	const gateway, other = "gw istio-system/web-~-shop: 80:*", "vs shop/b-example-web-~: b.example @ istio-system/web-~-shop: /…>front.shop:80"
	const vs = "vs shop/a-example-web-~: a.example @ istio-system/web-~-shop: "
	w.want(gateway, vs, other)
	w.apply(service("front", "http", 8080))
	w.want(vs + "/…>front.shop:8080")
	w.apply(service("front", "http", 9090))
	w.want(vs + "/…>front.shop:9090")
	w.apply(service("front", "web", 9090))
	w.want(vs)
	w.apply(service("front", "http", 9090))
	w.want(vs + "/…>front.shop:9090")
	w.Remove(Services, Name{"shop", "front"})
	w.want(vs)
}

func TestAPortWithoutNameAndNumberIsThePortWithoutName(t *testing.T) {
	newWorld(t, byDefault,
		"kind: Ingress\nmetadata: {namespace: shop, name: web}\nspec: {rules: [{host: a, http: {paths: [{backend: {service: {name: front, port: {}}}}]}}]}",
		"kind: Service\nmetadata: {namespace: shop, name: front}\nspec: {ports: [{port: 80}]}",
	).synced().want("gw istio-system/web-~-shop: 80:*", "vs shop/a-web-~: a @ istio-system/web-~-shop: all>front.shop:80")
}

func TestAnIngressThatLeavesTheClassLosesItsOutputs(t *testing.T) {
	ofClass := func(name string) string {
		return ingress("shop", "web", 1, "a.example / front:80") + "  ingressClassName: " + name
	}
	w := newWorld(t, byDefault, ofClass("ours"), fmt.Sprintf(class, "ours", controllerName), fmt.Sprintf(class, "other", "nginx")).synced()
	there := []string{"gw istio-system/web-~-shop: 80:*", "vs shop/a-example-web-~: a.example @ istio-system/web-~-shop: /…>front.shop:80"}
	gone := []string{"gw istio-system/web-~-shop: -", "vs shop/a-example-web-~: -"}
	w.want(there...)
	w.apply(ofClass("other"))
	w.want(gone...)
	w.apply(ofClass("ours"))
	w.want(there...)
	w.apply(fmt.Sprintf(class, "ours", "nginx"))
	w.want(gone...)
	w.apply(fmt.Sprintf(class, "ours", controllerName))
	w.want(there...)
	w.Remove(Classes, Name{Name: "ours"})
	w.want(gone...)
	w.apply(fmt.Sprintf(class, "ours", controllerName))
	w.want(there...)
}

func TestOptionsMayChange(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "web", 1, "- / front:80"), ingress("shop", "quiet", 2)).synced()
	w.Flush()
	w.SetOptions(byDefault)
	w.want()
	w.SetOptions(Options{Mode: ModeDefault, Namespace: "edge", Older: true})
	w.want(
		"gw edge/quiet-~-shop: 80:*", "gw edge/web-~-shop: 80:*",
		"gw istio-system/quiet-~-shop: -", "gw istio-system/web-~-shop: -",
		"vs shop/*-web-~: -", "vs shop/-web-~: * @ edge/web-~-shop: /…>front.shop:80",
	)
	w.SetOptions(Options{Mode: ModeStrict, Namespace: "edge", Older: true})
	w.want("gw edge/quiet-~-shop: -", "gw edge/web-~-shop: -", "vs shop/-web-~: -")
}

func TestWhatAListDoesNotHaveIsRemoved(t *testing.T) {
	w := newWorld(t, byDefault,
		ingress("shop", "one", 1, "a.example / front:http"), ingress("shop", "two", 2, "b.example / front:80"),
		ingress("shop", "three", 3)+"  ingressClassName: ours", service("front", "http", 80), fmt.Sprintf(class, "ours", controllerName)).synced()
	w.Flush()
	w.Remove(Ingresses, Name{"shop", "two"})
	w.Remove(Classes, Name{Name: "ours"})
	w.Remove(Services, Name{"shop", "front"})
	w.want(
		"gw istio-system/three-~-shop: -", "gw istio-system/two-~-shop: -",
		"vs shop/a-example-one-~: a.example @ istio-system/one-~-shop: ", "vs shop/b-example-two-~: -",
	)
}

// An istiod serves one of the two.
func TestTwoHostsOfOneNameAreBothServed(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "web", 1, "a-b.example / dash:80", "a.b.example / dot:80")).synced()
	const gateway = " @ istio-system/web-~-shop: "
	changes := w.Flush()
	if len(changes) != 3 || !strings.HasPrefix(show(changes[1]), "vs shop/a-b-example-web-~: a-b.example"+gateway) {
		t.Fatalf("%v", changes)
	}
	second := changes[2].Key.Name
	if want := "a-b-example-web-istio-autogenerated-k8s-ingress-"; !strings.HasPrefix(second, want) || len(second) != len(want)+32 {
		t.Errorf("the second host has the name %s, want %s and a hash", second, want)
	}
	w.apply(ingress("shop", "web", 1, "a.b.example / dot:80"))
	w.want("vs shop/a-b-example-web-~: a.b.example"+gateway+"/…>dot.shop:80", "vs shop/"+strings.ReplaceAll(second, generatedName, "~")+": -")
}

// The first of two hosts of one name has it, also when the other one had it before.
func TestAHostLeavesItsNameToOneThatComesBefore(t *testing.T) {
	w := newWorld(t, byDefault, ingress("shop", "one", 1, "a.b / one:80"), ingress("shop", "two", 2, "a.b / two:80", "a-b / two:81")).synced()
	w.want(
		"gw istio-system/one-~-shop: 80:*", "gw istio-system/two-~-shop: 80:*",
		"vs shop/a-b-one-~: a.b @ istio-system/one-~-shop: /…>one.shop:80, /…>two.shop:80",
		"vs shop/a-b-two-~: a-b @ istio-system/two-~-shop: /…>two.shop:81",
	)
	w.Remove(Ingresses, Name{"shop", "one"})
	w.want(
		"gw istio-system/one-~-shop: -",
		"vs shop/a-b-one-~: -",
		"vs shop/a-b-two-~: a.b @ istio-system/two-~-shop: /…>two.shop:80",
		fmt.Sprintf("vs shop/a-b-two-~-%.16x: a-b @ istio-system/two-~-shop: /…>two.shop:81", sha256.Sum256([]byte("a-b"))),
	)
}

// Two Ingresses can not have a Gateway of one name.
func TestNamespacesThatMakeGatewayNamesAmbiguousAreNotConverted(t *testing.T) {
	w := newWorld(t, byDefault, ingress("istio-autogenerated-k8s-ingress-shop", "web", 1, "a.example / evil:80")).synced()
	w.want()
	w.apply(ingress("shop", "web-istio-autogenerated-k8s-ingress", 1, "a.example / good:80"))
	w.want("gw istio-system/web-~-~-shop: 80:*", "vs shop/a-example-web-~-~: a.example @ istio-system/web-~-~-shop: /…>good.shop:80")
}

func TestProblemsAreNamed(t *testing.T) {
	w := newWorld(t, byDefault, `
kind: Ingress
metadata: {namespace: shop, name: web, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  defaultBackend: {service: {name: front, port: {number: 80}}}
  tls: [{secretName: a}, {hosts: [x]}]
  rules:
  - host: a.example
    http:
      paths:
      - {path: /a, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}
      - {path: /b, pathType: Prefix, backend: {service: {name: front, port: {name: http}}}}
      - {path: /c, pathType: Prefix, backend: {resource: {kind: Bucket, name: b}}}
      - {path: /a, pathType: Exact, backend: {service: {name: front, port: {number: 80}}}}
  - host: b.example`,
		ingress("bank", "late", 1, "a.example /a late:80", "c.example / late:80"),
		ingress("istio-autogenerated-k8s-ingress-x", "a", 1),
		"kind: Ingress\nmetadata: {namespace: shop, name: foreign, annotations: {kubernetes.io/ingress.class: nginx}}\nspec: {tls: [{}]}").synced()
	want := []string{
		`Ingress istio-autogenerated-k8s-ingress-x/a: metadata.namespace: not converted: the name of the namespace contains "istio-autogenerated-k8s-ingress-", which makes names of Gateways ambiguous`,
		"Ingress shop/web: spec.defaultBackend: not converted: write a rule without host and path instead",
		"Ingress shop/web: spec.tls[1]: not converted: it has no secretName",
		"Ingress shop/web: spec.rules[1]: not converted: it has no http",
		`Ingress shop/web: spec.rules[0].http.paths[1].backend: not converted: there is no Service shop/front with a port "http"`,
		"Ingress shop/web: spec.rules[0].http.paths[2].backend: not converted: it is not a Service",
		"Ingress bank/late: spec.rules[0].http.paths[0]: shadowed: spec.rules[0].http.paths[0] of Ingress shop/web has the same path of host a.example and comes first",
	}
	var got []string
	for p := range w.Problems() {
		got = append(got, p.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems, - wanted, + got:\n%s", diff)
	}
	for range w.Problems() {
		break // a reader may stop
	}
}

// A change costs what the Ingresses of its hosts cost, whatever else there is.
func TestAChangeCostsWhatItsHostsCost(t *testing.T) {
	cost := func(others int) float64 {
		s := many(others)
		s.Flush()
		one, two := decoded(t, ingress("shop", "web", 1, "a.example / front:80")), decoded(t, ingress("shop", "web", 1, "a.example / front:81"))
		return testing.AllocsPerRun(100, func() {
			s.SetIngress(one)
			s.Flush()
			s.SetIngress(two)
			if len(s.Flush()) == 0 {
				t.Error("nothing changed")
			}
		})
	}
	if few, all := cost(1), cost(2000); all > few+5 {
		t.Errorf("%v allocations beside 2000 Ingresses, %v beside one", all, few)
	}
}

func decoded(t testing.TB, manifest string) *Ingress {
	t.Helper()
	i, err := objectOf(t, jsonOf(t, manifest)).ingress()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// After any changes, in any order, with any flushes between them, the outputs are those that
// Convert makes of the inputs.
func TestChangesComeToWhatAConversionOfAllMakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawOptions(t)
		s, in, outputs := New(o), allInputs{}, map[mirror.Key]*Output{}
		flush := func() {
			for _, c := range s.Flush() {
				if c.Body == nil {
					if outputs[c.Key] == nil {
						t.Fatalf("%v is removed, and was never there", c.Key)
					}
					delete(outputs, c.Key)
					continue
				}
				outputs[c.Key] = c
			}
		}
		for i := range inputs {
			s.Synced(i)
		}
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			change(t, s, &in, &o)
			if rapid.Bool().Draw(t, "flush") {
				flush()
			}
		}
		flush()
		want := map[mirror.Key]*Output{}
		for _, out := range convertAll(in, o) {
			if want[out.Key] != nil {
				t.Fatalf("two outputs have the key %v", out.Key)
			}
			want[out.Key] = out
		}
		if diff := cmp.Diff(want, outputs, protocmp.Transform()); diff != "" {
			t.Fatalf("- converted at once, + by changes:\n%s", diff)
		}
		if len(s.claims) > len(s.hosts) || len(s.outputs) != len(outputs) {
			t.Fatalf("the state keeps %d claims of %d hosts, %d hashes of %d outputs", len(s.claims), len(s.hosts), len(s.outputs), len(outputs))
		}
	})
}

func TestAllReturnsWhatConvertDoes(t *testing.T) {
	s := New(Options{Mode: ModeDefault})
	for _, n := range []string{"b", "a"} {
		s.SetIngress(&Ingress{Name: Name{"shop", n}, Spec: Spec{Rules: []Rule{{Host: n + ".x", HTTP: &HTTP{Paths: []Path{{Path: "/", Type: "Prefix", Backend: Backend{Service: &ServiceBackend{Name: "v", Port: Port{Number: 80}}}}}}}}}})
	}
	if all := s.All(); all != nil {
		t.Errorf("outputs before all inputs have synced: %v", all)
	}
	for i := range inputs {
		s.Synced(i)
	}
	first := s.Flush()
	s.Remove(Ingresses, Name{"shop", "b"})
	all := s.All()
	if len(first) != 4 || len(all) != 2 || all[0].Key != first[0].Key || all[0].Digest() != first[0].Digest() {
		t.Errorf("first %v, all %v", first, all)
	}
	if more := s.Flush(); len(more) != 0 {
		t.Errorf("changes after that: %v", more)
	}
	if n, converted := s.Counts(); n != 1 || converted != 1 {
		t.Errorf("%d Ingresses, %d converted", n, converted)
	}
}
