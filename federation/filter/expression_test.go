package filter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

func TestExpressionsSeeTheBodyAsInYAML(t *testing.T) {
	entry := filterItem()
	service := item{kind: federation.VirtualService, namespace: "team-a", name: "web", body: &networking.VirtualService{
		Hosts: []string{"web"},
		Http: []*networking.HTTPRoute{{
			Match:   []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: "/v1"}}}},
			Timeout: durationpb.New(90 * time.Second),
			Mirror:  &networking.Destination{Host: "shadow"},
		}},
	}}
	rule := item{kind: mirror.Kind{Group: "networking.istio.io", Kind: "DestinationRule"}, namespace: "a", name: "r", body: &networking.DestinationRule{
		Host: "web", TrafficPolicy: &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{Consecutive_5XxErrors: wrapperspb.UInt32(7)}},
	}}
	route := item{kind: mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute"}, namespace: "a", name: "r", body: mustStruct(map[string]any{
		"hostnames": []any{"web.example"}, "rules": []any{map[string]any{"backendRefs": []any{map[string]any{"port": 8080, "weight": 1.5}}}},
	})}
	widget := item{kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, namespace: "a", name: "w", body: mustStruct(map[string]any{"size": 3})}
	for _, test := range []struct {
		item       item
		expression string
	}{
		{entry, `spec.hosts.exists(h, h.endsWith(".example"))`},
		{entry, `"db.example" in spec.hosts && size(spec.hosts) == 2`},
		{entry, `spec.hosts[1] == "db.internal" && spec["hosts"] == ["db.example", "db.internal"]`},
		{entry, `spec.ports[0].number == 443 && spec.ports[0].number + 1 == 444 && spec.ports[0].number < 1000`},
		{entry, `spec.resolution == "STATIC"`},
		{entry, `spec.location == "MESH_EXTERNAL"`}, // the zero value
		{entry, `!has(spec.exportTo) && has(spec.endpoints) && !has(spec.nonsense)`},
		{entry, `spec.?exportTo.orValue(["*"]) == ["*"]`},
		{entry, `spec.endpoints.all(e, e.address.startsWith("192.0.2."))`},
		{entry, `spec.endpoints.all(e, cidr("192.0.2.0/24").containsIP(e.address))`},
		{entry, `spec.endpoints.exists_one(e, has(e.ports) && e.ports.https == 8443)`},
		{entry, `spec.endpoints.filter(e, has(e.labels)).map(e, e.labels.zone) == ["a"]`},
		{entry, `kind == "ServiceEntry" && group == "networking.istio.io" && namespace.matches("^team-[ab]$") && name.size() == 2`},
		{entry, `"tier" in labels && labels["istio.io/rev"] == "stable" && annotations.owner.replace("-", "") == "ateam"`},
		{entry, `labels.exists(k, k.startsWith("istio.io/")) && sets.contains(["prod", "test"], [labels.tier])`},
		{entry, `has(labels.tier) && !has(labels.app) && name.upperAscii() == "DB" && name.split("b")[0] == "d"`},
		{entry, `spec.hosts.join(",") == "db.example,db.internal" && ["", "", "a"].join("-") == "--a" && [].join() == ""`},
		{entry, `"aaa".replace("a", "b", 2) == "bba" && "aaa".replace("a", "b", -1) == "bbb" && "ab".replace("", "-") == "-a-b-" && "a".replace("a", "", 0) == "a"`},
		{entry, `"hosts" in spec && spec.exists(k, k == "endpoints")`},
		{service, `spec.http[0].match[0].uri.prefix == "/v1" && spec.http[0].timeout == "90s"`},
		{service, `duration(spec.http[0].timeout) > duration("1m") && spec.http[0].mirror.host == "shadow"`},
		{rule, `spec.trafficPolicy.outlierDetection.consecutive5xxErrors == 7`},
		{route, `spec.rules[0].backendRefs[0].port == 8080 && spec.rules[0].backendRefs[0].port + 1 == 8081 && spec.rules[0].backendRefs[0].weight > 1.0`},
		{route, `spec.hostnames.exists(h, h == "web.example")`},
		{widget, `spec.size == 3 && kind == "Widget" && group == "example.com"`},
	} {
		t.Run(test.expression, func(t *testing.T) {
			f, err := New(Rules{Expression: test.expression})
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Check(test.item.build(t)); !got.Passes() {
				t.Errorf("%s: %s", got.Reason, got.Sentence())
			}
		})
	}
}

func mustStruct(m map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(m)
	if err != nil {
		panic(err)
	}
	return s
}

func TestExpressionsAreCheckedOnLoading(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{`labels.tier`, "its result is string, want bool"},
		{`spec.ok`, `its result is dyn, want bool: compare it with something, for example "== true"`},
		{`1 +`, "Syntax error"},
		{`nme == "x"`, "undeclared reference to 'nme'"},
		{`name == 1`, "found no matching overload"},
		{`"%s".format([name]) == ""`, "undeclared reference to 'format'"},
		{`name.frobnicate()`, "undeclared reference to 'frobnicate'"},
		{`name.matches("(")`, "invalid matches argument"},
		{`duration("5 parsecs") == duration("1s")`, "invalid duration argument"},
		{`name == "` + strings.Repeat("x", 4<<10) + `"`, "is longer than 4096 bytes"},
		{strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), "recursion limit"},
		{`name.matches("(a{100}){9}(b{100}){9}")`, "regex"},
		{strings.Repeat("[1].all(a, ", 9) + "true" + strings.Repeat(")", 9), "nesting"},
	} {
		_, err := New(Rules{Expression: test.expression})
		var rule *federation.RuleError
		if !errors.As(err, &rule) || rule.Field != "expression" || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.40s: %v, want %q", test.expression, err, test.want)
		}
	}
}

func TestExpressionsThatFailDoNotPass(t *testing.T) {
	many := filterItem()
	many.body = &networking.ServiceEntry{Hosts: make([]string, 2000)}
	many.annotations = map[string]string{"re": "(a{100}){9}(b{100}){9}", "long": strings.Repeat("a", 10_000)}
	for _, test := range []struct{ expression, want string }{
		{`spec.nonsense == 1`, "no such key: nonsense"},
		{`spec.hosts[5000] == ""`, "index out of bounds"},
		{`spec.hosts == ["x"] || spec.hosts.all(a, spec.hosts.all(b, spec.hosts.all(c, a == b)))`, "cost limit exceeded"},
		{`name.matches(annotations.re)`, "program"},
		{`annotations.long.replace("", annotations.long) == ""`, "longer than"},
		{`annotations.long.replace("a", annotations.long, 1000) == ""`, "longer than"},
		{`annotations.long.replace("", "aaaaaaaaaa").replace("", "aaaaaaaaaa").replace("", "aaaaaaaaaa") == ""`, "longer than"},
		{`spec.hosts.map(h, annotations.long).join() == ""`, "longer than"},
		{`[annotations.long]` + strings.Repeat(".map(x, x+x+x+x)", 7) + `.size() == 1`, "cost limit exceeded"},
		{`[[annotations.long]]` + strings.Repeat(".map(x, x+x+x+x)", 7) + `.map(x, x.join()) == []`, "longer than"},
		{`int(name) == 1`, "type conversion error"},
	} {
		f, err := New(Rules{Expression: test.expression})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got := f.Check(many.build(t))
		reason, why := got.Reason, got.Sentence()
		if reason != ReasonExpressionError || !strings.Contains(why, test.want) {
			t.Errorf("%s: %s, %s, want %q", test.expression, reason, why, test.want)
		}
		t.Logf("%v: %s", time.Since(start), why)
	}
}

func TestUnknownBodyIsAnExpressionErrorOnlyWhenReferredTo(t *testing.T) {
	r, err := mirror.New(mirror.Spec{
		Key:  mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, Namespace: "a", Name: "w"},
		Body: unknownBody(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for expression, want := range map[string]Reason{`name == "w"`: ReasonNone, `has(spec.size)`: ReasonExpressionError} {
		f, err := New(Rules{Expression: expression})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Check(r); got.Reason != want {
			t.Errorf("%s: %s, %s", expression, got.Reason, got.Sentence())
		}
	}
}

// The filter decodes only the fields that the expression names: a large body costs nothing.
func TestFieldsNotReferredToAreNotDecoded(t *testing.T) {
	small, large := filterItem(), filterItem()
	body := large.body.(*networking.ServiceEntry)
	for range 5000 {
		body.Endpoints = append(body.Endpoints, body.Endpoints[0])
	}
	a, b := small.build(t), large.build(t)
	for _, expression := range []string{`spec.hosts.exists(h, h == "db.example")`, `labels.tier == "prod"`} {
		f, err := New(Rules{Expression: expression})
		if err != nil {
			t.Fatal(err)
		}
		allocs := func(r *mirror.Resource) float64 { return testing.AllocsPerRun(20, func() { f.Check(r) }) }
		if few, many := allocs(a), allocs(b); many > few+2 {
			t.Errorf("%s: %v allocations, %v with many endpoints", expression, few, many)
		}
	}
}

func TestNamespaceIsAVariableAlthoughReserved(t *testing.T) {
	r := filterItem()
	r.labels["namespace"] = "x"
	for _, expression := range []string{
		`namespace == "team-a"`,
		`"namespace" in labels && labels.namespace == "x" && labels . namespace == 'x'`,
		`labels.?namespace.orValue("") == "x"`,
		`(true ? namespace : "") == "team-a" && [?optional.of(namespace)] == ["team-a"]`,
		`"\"namespace" + r"\" + 'namespace' == "\"namespace\\namespace"`,
		"\"\"\"a\"namespace\"\"\" == 'a\"namespace' // namespace\n && size(namespace) == 6",
		`namespace+namespace=="team-ateam-a"&&[1].all(namespace,namespace==1)`,
		`b"namespace" == bytes("name" + "space")`,
		strings.Repeat(`"é" != namespace && `, 150) + "true",
	} {
		f, err := New(Rules{Expression: expression})
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got := f.Check(r.build(t)); !got.Passes() {
			t.Errorf("%s: %s", expression, got.Sentence())
		}
	}
	_, err := New(Rules{Expression: `namespace() == namespace2`})
	if err == nil || strings.Contains(err.Error(), "nspace_") {
		t.Error(err)
	}
}

func FuzzExpression(f *testing.F) {
	for _, seed := range []string{
		`labels.tier == "prod"`, `spec.hosts.exists(h, h.endsWith(".example"))`, `spec.?exportTo.orValue([])[?0].hasValue()`,
		`"\u0000" in spec`, `[spec, labels].map(x, size(x)) == [1]`, `name.matches("(a+)+$")`, `cidr("1.2.3.4/33").ip() == ip("::1")`,
		`.spec.hosts[-1] == spec[name]`, "name.format([1])\n== '%s'", `type(spec) == map`,
	} {
		f.Add(seed)
	}
	r, mc := filterItem().build(f), meshConfig(f)
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := New(Rules{Expression: text})
		if err != nil {
			return
		}
		for _, r := range []*mirror.Resource{r, mc} {
			if a, b := filter.Check(r), filter.Check(r); a.Reason != b.Reason || a.Sentence() != b.Sentence() {
				t.Fatalf("%q: %q, then %q", text, a.Sentence(), b.Sentence())
			}
		}
	})
}

func unknownBody() *anypb.Any {
	return &anypb.Any{TypeUrl: "type.googleapis.com/example.com.Widget", Value: []byte{0x0a, 0x01, 'x'}}
}
