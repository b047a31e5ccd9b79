package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/yamlpos"
	"meshrelay/mirror"
)

// serviceEntry is a document of a ServiceEntry with one host.
func serviceEntry(name, host string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: %s
  namespace: shop
spec:
  hosts:
  - %s
`, name, host)
}

// parsed is what a file of documents has, with lines of the file.
type parsed struct {
	resources []*mirror.Resource
	placed    []string // "LINE kind namespace/name"
	lines     []int
	problems  []string // "a.yaml:LINE WHAT: REASON"
}

func parseText(text string) (p parsed) {
	SplitDocuments([]byte(text), func(text []byte, line int) {
		d := ParseDocument(text, "east")
		for _, r := range d.Resources {
			p.resources = append(p.resources, r.Resource)
			p.lines = append(p.lines, line+r.Line)
			p.placed = append(p.placed, fmt.Sprintf("%d %s", line+r.Line, r.Key()))
		}
		for _, one := range d.Problems {
			where := strings.TrimSpace(fmt.Sprintf("a.yaml:%d %s", line+one.Line, one.What))
			p.problems = append(p.problems, where+": "+one.Reason)
		}
	})
	return p
}

func TestMistakesInFilesAreNamedWithFileAndLine(t *testing.T) {
	good := serviceEntry("db", "db.example")
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the document", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, tc := range []struct{ name, in, want string }{
		{"not YAML", "a: [", "a.yaml:1: the document is not YAML: sequence end token ']' not found"},
		{"not YAML, second document", good + "---\nb: 1\na: [\n", "a.yaml:11: the document is not YAML: sequence end token ']' not found"},
		{"duplicate key", replace("  name: db", "  name: db\n  name: db2"), `a.yaml:5: the document is not YAML: mapping key "name" already defined at [4:3]`},
		{"not an object", "- a\n", "a.yaml:1: this is not a Kubernetes object: it needs apiVersion, kind, metadata and spec"},
		{"no kind", "apiVersion: v1\n", "a.yaml:1: this is not a Kubernetes object: apiVersion or kind is missing"},
		{"kind of wrong type", replace("kind: ServiceEntry", "kind: 1"), "a.yaml:2 shop/db: kind: 1 is not a string: put it in quotes to make it one"},
		{"unknown kind", replace("kind: ServiceEntry", "kind: Pod"), "a.yaml:2 Pod shop/db: kind: networking.istio.io/v1 Pod is not a kind that the relay serves from files: it serves Istio and Gateway API kinds, and MeshConfig of core/v1alpha1"},
		{"unknown core kind", replace("networking.istio.io/v1\nkind: ServiceEntry", "v1\nkind: ConfigMap"), "a.yaml:2 ConfigMap shop/db: kind: v1 ConfigMap is not a kind that the relay serves from files: it serves Istio and Gateway API kinds, and MeshConfig of core/v1alpha1"},
		{"unknown version", replace("istio.io/v1", "istio.io/v2"), `a.yaml:1 ServiceEntry shop/db: apiVersion: networking.istio.io/ServiceEntry has no version "v2": it has v1, v1beta1, v1alpha3`},
		{"unknown field of the object", replace("spec:", "data: {}\nspec:"), "a.yaml:6 ServiceEntry shop/db: data: unknown field: check its spelling and indentation"},
		{"unknown field of the metadata", replace("  name: db", "  name: db\n  lables: {}"), "a.yaml:5 ServiceEntry shop/db: metadata.lables: unknown field: check its spelling and indentation"},
		{"unknown field of the spec", replace("  hosts:", "  hostz: []\n  hosts:"), "a.yaml:7 ServiceEntry shop/db: spec.hostz: unknown field: check its spelling and indentation"},
		{"unknown field deep in the spec", good + "  ports:\n  - name: a\n    number: 1\n  - name: b\n    numbr: 2\n", "a.yaml:13 ServiceEntry shop/db: spec.ports[1].numbr: unknown field: check its spelling and indentation"},
		{"wrong type in the spec", good + "  ports:\n  - name: a\n    number: many\n", `a.yaml:11 ServiceEntry shop/db: spec.ports[0].number: invalid value for uint32 field number: "many"`},
		{"wrong enum in the spec", good + "  resolution: DNZ\n", `a.yaml:9 ServiceEntry shop/db: spec.resolution: invalid value for enum field resolution: "DNZ"`},
		{"wrong shape in the spec", good + "  resolution: DNS\n  ports: none\n", `a.yaml:10 ServiceEntry shop/db: spec.ports: wrong type: unexpected token "none"`},
		{"no name", replace("  name: db\n", ""), "a.yaml:3 ServiceEntry shop/: metadata.name: missing"},
		{"bad name", replace("name: db", "name: a/b"), `a.yaml:4 ServiceEntry shop/a/b: metadata.name: "a/b" is not a name: it has a slash`},
		{"bad namespace", replace("shop", "sh/op"), `a.yaml:5 ServiceEntry sh/op/db: metadata.namespace: "sh/op" is not a namespace: it has a slash`},
		{"bad label", replace("  name: db", "  name: db\n  labels:\n    version: 1"), "a.yaml:6 ServiceEntry shop/db: metadata.labels.version: 1 is not a string: put it in quotes to make it one"},
		{"labels of wrong shape", replace("  name: db", "  name: db\n  labels: [a]"), "a.yaml:5 ServiceEntry shop/db: metadata.labels: [a] is not a map of strings"},
		{"bad time", replace("  name: db", "  name: db\n  creationTimestamp: yesterday"), `a.yaml:5 ServiceEntry shop/db: metadata.creationTimestamp: "yesterday" is not a time: write it like 2024-01-31T10:00:00Z`},
		{"spec of wrong shape", replace("  hosts:\n  - db.example\n", "  - a\n"), "a.yaml:6 ServiceEntry shop/db: spec: [a] is not a map"},
		{"metadata of wrong shape", replace("  name: db\n  namespace: shop\n", "  - a\n"), "a.yaml:3 ServiceEntry: metadata: [a] is not a map"},
		{"not UTF-8", "a: \xff\n", "a.yaml:1: the document is not UTF-8 text"},
		{"deep brackets", strings.Repeat("[", 100_000), "a.yaml:1: the document is nested deeper than 1000"},
		{"deep brackets over lines", strings.Repeat("[\n", 2000), "a.yaml:1: the document is nested deeper than 1000"},
		{"deep keys within brackets", "[" + strings.Repeat("? \n", 2000), "a.yaml:1: the document is nested deeper than 1000"},
		{"deep dashes", strings.Repeat("- ", 100_000), "a.yaml:1: the document is nested deeper than 1000"},
		{"more brackets than tokens are taken", strings.Repeat("[", 1_000_000), "a.yaml:1: the document is too large: it has more than 200000 keys, values and marks"},
		{"200,000 lines", "a: b\nspec:\n" + numberedLines(200_000), "a.yaml:1: the document is too large: it has more than 200000 keys, values and marks"},
		{"40,000 labels", "a: b\nspec:\n" + numberedLines(40_000), "a.yaml:1: the document is too large: it has a mapping of more than 10000 keys, or nested mappings with that many together"},
		{"a document of 5 MiB", "a: " + strings.Repeat("x", 5<<20), "a.yaml:1: the document is larger than 4 MiB: split it"},
		{"aliases of a long text", "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a ,", 1000) + "1]\n", "a.yaml:1: the document has more than 500000 values after aliases are replaced"},
		{"aliases in many documents", strings.Repeat(aliasBomb(5)+"...\n", 20), "a.yaml:1: the document has more than 500000 values after aliases are replaced"},
		{"aliases of aliases", aliasBomb(9), "a.yaml:1: the document has more than 500000 values after aliases are replaced"},
		{"item of a list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: x}\n", "a.yaml:5 Pod x: kind: v1 Pod is not a kind that the relay serves from files: it serves Istio and Gateway API kinds, and MeshConfig of core/v1alpha1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := parseText(tc.in)
			if len(f.problems) != 1 {
				t.Fatalf("%d problems, want 1: %v", len(f.problems), f.problems)
			}
			if got := f.problems[0]; got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

// Brackets and dashes within strings nest nothing.
func TestTextInStringsIsNoNesting(t *testing.T) {
	const n = 2 * yamlpos.MaxNesting
	for name, text := range map[string]string{
		"dashes":           "a - b : c ? d & e ! f",
		"brackets":         "^[{",
		"a key, and quote": `a: - \"`,
	} {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"a%d","annotations":{"note" : "%s"}},"spec":{"hosts":["a.x"]}}`, i, text))
		}
		for form, list := range map[string]string{
			"one line":   `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",") + "]}",
			"many lines": "apiVersion: v1\nkind: List\nitems:\n- " + strings.Join(items, "\n- "),
		} {
			t.Run(name+", "+form, func(t *testing.T) {
				if f := parseText(list); len(f.resources) != n || len(f.problems) > 0 {
					t.Errorf("%d resources, want %d; problems: %v", len(f.resources), n, f.problems)
				}
			})
		}
	}
}

// aliasBomb returns a small document of ten to the levels values.
func aliasBomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [" + strings.Repeat("x,", 9) + "x]\n")
	for i := 1; i < levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), i-1)
	}
	return b.String()
}

func TestDocumentsAreReadWithTheirLines(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"comments", "# a\n---\n# b\n---\n", nil},
		{"two", serviceEntry("a", "a.x") + "---\n" + serviceEntry("b", "b.x"), []string{"1 networking.istio.io/ServiceEntry shop/a", "10 networking.istio.io/ServiceEntry shop/b"}},
		{"leading separator and comment", "---\n# c\n" + serviceEntry("a", "a.x"), []string{"3 networking.istio.io/ServiceEntry shop/a"}},
		{"directive", "%YAML 1.2\n---\n" + serviceEntry("a", "a.x"), []string{"3 networking.istio.io/ServiceEntry shop/a"}},
		{"Windows lines", strings.ReplaceAll(serviceEntry("a", "a.x")+"---\n"+serviceEntry("b", "b.x"), "\n", "\r\n"), []string{"1 networking.istio.io/ServiceEntry shop/a", "10 networking.istio.io/ServiceEntry shop/b"}},
		{"byte order mark", "\ufeff" + serviceEntry("a", "a.x"), []string{"1 networking.istio.io/ServiceEntry shop/a"}},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(serviceEntry("a", "a.x")), "\n", "\n  ") + "\n", []string{"4 networking.istio.io/ServiceEntry shop/a"}},
		{"JSON with tabs", "{\n\t\"apiVersion\": \"networking.istio.io/v1\", \"kind\": \"ServiceEntry\",\n\t\"metadata\": {\"name\": \"a\"},\n\t\"spec\": {\"hosts\": [\"a.x\"]}\n}\n", []string{"2 networking.istio.io/ServiceEntry default/a"}},
		{"cluster-scoped has no namespace", "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: a, namespace: b}\nspec: {controllerName: x.y/z}\n", []string{"1 gateway.networking.k8s.io/GatewayClass /a"}},
		{"MeshConfig", "apiVersion: core/v1alpha1\nkind: MeshConfig\nspec: {trustDomain: x}\n", []string{"1 core/MeshConfig mesh"}},
		{"separator within a text", "---\n" + serviceEntry("a", "a.x") + "  # ---\n", []string{"2 networking.istio.io/ServiceEntry shop/a"}},
		{"anchors", strings.Replace(serviceEntry("a", "a.x"), "  hosts:\n  - a.x", "  hosts: &h [a.x]\n  addresses: *h", 1), []string{"1 networking.istio.io/ServiceEntry shop/a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := parseText(tc.in)
			if len(f.problems) > 0 {
				t.Fatalf("problems: %v", f.problems)
			}
			if d := cmp.Diff(tc.want, f.placed); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestMetadataAndSpecAreCarried(t *testing.T) {
	f := parseText(`apiVersion: networking.istio.io/v1beta1
kind: ServiceEntry
metadata:
  name: db
  labels: {app: db, rev: "1"}
  annotations: {note: "yes"}
  creationTimestamp: 2024-01-31T10:00:00Z
  resourceVersion: "42"
  uid: 11111111-2222-3333-4444-555555555555
  managedFields: []
spec:
  hosts: [db.example]
  ports: [{number: 5432, name: tcp, protocol: TCP}]
  resolution: DNS
status: {anything: [goes]}
`)
	if len(f.problems) > 0 || len(f.resources) != 1 {
		t.Fatalf("%d resources, problems %v", len(f.resources), f.problems)
	}
	r := f.resources[0]
	md := r.Metadata()
	if r.FullName() != "default/db" || r.Source() != "east" || r.SourceVersion() != "42" ||
		!md.CreateTime.Equal(time.Date(2024, 1, 31, 10, 0, 0, 0, time.UTC)) {
		t.Errorf("%s of %s, version %s, metadata %+v", r.Key(), r.Source(), r.SourceVersion(), md)
	}
	if d := cmp.Diff(map[string]string{"app": "db", "rev": "1"}, md.Labels); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"note": "yes"}, md.Annotations); d != "" {
		t.Error(d)
	}
	got, err := r.Body().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	want := &networking.ServiceEntry{
		Hosts: []string{"db.example"}, Resolution: networking.ServiceEntry_DNS,
		Ports: []*networking.ServicePort{{Number: 5432, Name: "tcp", Protocol: "TCP"}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("body is %v, want %v", got, want)
	}
}

// A sample of each kind comes out as it went in.
func TestEveryKindRoundTrips(t *testing.T) {
	var all parsed
	for _, path := range samples(t, "east") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p := parseText(string(data))
		if len(p.problems) > 0 {
			t.Fatalf("%s: %v", path, p.problems)
		}
		all.resources = append(all.resources, p.resources...)
	}
	seen := map[mirror.Kind]bool{}
	for _, r := range all.resources {
		info, known := mirror.LookupKind(r.Kind())
		if !known {
			t.Fatalf("unknown kind %s", r.Kind())
		}
		seen[r.Kind()] = true
		body, err := r.Body().UnmarshalNew()
		if err != nil {
			t.Fatalf("%s: %v", r.Key(), err)
		}
		if proto.Size(body) == 0 {
			t.Errorf("%s: the body is empty", r.Key())
		}
		spec, err := protojson.Marshal(body)
		if err != nil {
			t.Fatalf("%s: %v", r.Key(), err)
		}
		text := fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": %q, "namespace": %q}, "spec": %s}`,
			strings.TrimSuffix(info.TypeURLs()[0], "/"+info.Kind.Kind), info.Kind.Kind, r.Key().Name, r.Namespace(), spec)
		f := parseText(text)
		if len(f.problems) > 0 || len(f.resources) != 1 {
			t.Fatalf("%s: %v\n%s", r.Key(), f.problems, text)
		}
		again, err := f.resources[0].Body().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if f.resources[0].Key() != r.Key() || !proto.Equal(again, body) {
			t.Errorf("%s became %s:\n%v\n%v", r.Key(), f.resources[0].Key(), body, again)
		}
	}
	for _, info := range mirror.Kinds() {
		if !seen[info.Kind] {
			t.Errorf("no sample of %s", info.Kind)
		}
	}
}

// samples returns the files of a directory of samples, or of all.
func samples(tb testing.TB, dir string) []string {
	files, err := filepath.Glob(filepath.Join("..", "..", "samples", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no samples: %v", err)
	}
	return files
}

func TestPathOfAColumn(t *testing.T) {
	text := `{"a":{"b":[1,{"c":"é"},[2]],"d":null},"e":true}`
	for at, want := range map[string]string{
		`"a"`: "a", `"b"`: "a.b", `1`: "a.b[0]", `"c"`: "a.b[1].c", `"é"`: "a.b[1].c", `2`: "a.b[2][0]", `"d"`: "a.d", `null`: "a.d", `"e"`: "e", `true`: "e",
	} {
		column := len([]rune(text[:strings.Index(text, at)])) + 1
		if got := fieldName(pathAt([]byte(text), column)); got != want {
			t.Errorf("%s at column %d is %q, want %q", at, column, got, want)
		}
	}
	if got := pathAt([]byte(text), 1000); len(got) > 0 {
		t.Errorf("behind the end is %v", got)
	}
}

func FuzzParseDocuments(f *testing.F) {
	f.Add([]byte(serviceEntry("a", "a.x") + "---\n" + serviceEntry("b", "b.x")))
	f.Add([]byte("%YAML 1.2\n---\n{\"kind\": \"List\", \"items\": [&a {x: *a}]}\n...\n"))
	f.Add([]byte("a: !!binary |\n  aGk=\nb: <<\n? [x]\n: &x y\n"))
	for _, path := range samples(f, "*") {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := parseText(string(data))
		lines := strings.Count(string(data), "\n") + 1
		for i, r := range p.resources {
			if p.lines[i] < 1 || p.lines[i] > lines {
				t.Errorf("%s is on line %d of %d", r.Key(), p.lines[i], lines)
			}
			if r.Key().Name == "" || r.Body() == nil {
				t.Errorf("%s has no name or body", r.Key())
			}
		}
	})
}

// numberedLines are so many lines of one mapping.
func numberedLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  k%d: v\n", i)
	}
	return b.String()
}
