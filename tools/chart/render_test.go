package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decode decodes YAML, and refuses keys that are there twice.
func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &out); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return out
}

// examples returns the example values of the chart by name.
func examples(t *testing.T) map[string]map[string]any {
	t.Helper()
	paths, err := filepath.Glob("../../deploy/chart/ci/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("examples %q, %v", paths, err)
	}
	out := map[string]map[string]any{}
	for _, path := range paths {
		out[strings.TrimSuffix(filepath.Base(path), ".yaml")] = decode(t, read(t, path))
	}
	return out
}

func mustRender(t *testing.T, values map[string]any) rendered {
	t.Helper()
	r, err := render(t.Context(), repository, values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// object is a Kubernetes object.
type object = map[string]any

// at returns a value inside of an object, nil when it is not there.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(object)
			v = m[p]
		case int:
			s, _ := v.([]any)
			if p >= len(s) {
				return nil
			}
			v = s[p]
		}
	}
	return v
}

func nameOf(o object) string {
	kind, _ := o["kind"].(string)
	name, _ := at(o, "metadata", "name").(string)
	return kind + " " + name
}

// objects returns the objects of documents by kind and name.
func objects(t *testing.T, documents []document) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, d := range documents {
		o := decode(t, []byte(d.Text))
		namespace, _ := at(o, "metadata", "namespace").(string)
		key := nameOf(o)
		if namespace != "" && namespace != "istio-system" {
			key += " in " + namespace
		}
		if out[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		out[key] = o
	}
	return out
}

// golden compares a text with a file, or writes the file with -update.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != text {
		t.Errorf("%s is not what the chart makes (%v): run make manifests, and read the difference", path, err)
	}
}

// TestRenderingsAreUpToDate: the tests of deploy check the config and the ports in them.
func TestRenderingsAreUpToDate(t *testing.T) {
	var names []string
	for name, values := range examples(t) {
		names = append(names, name+".yaml")
		// A new alert or panel is none of the chart's business: TestMonitoringObjectsHaveTheRulesAndTheDashboard.
		documents := slices.DeleteFunc(mustRender(t, values).Documents, func(d document) bool {
			name := nameOf(decode(t, []byte(d.Text)))
			return strings.HasPrefix(name, "PrometheusRule ") || strings.HasSuffix(name, "-dashboard")
		})
		golden(t, filepath.Join("testdata", "rendered", name+".yaml"), file("# Generated from deploy/chart/ci/"+name+".yaml by \"make manifests\".\n", documents))
	}
	entries, err := os.ReadDir("testdata/rendered")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			t.Errorf("testdata/rendered/%s has no example", e.Name())
		}
	}
}

func TestPlainManifestsAreWhatTheChartMakes(t *testing.T) {
	files, err := manifests(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if name := filepath.Base(path); files[name] == "" && name != "kustomization.yaml" {
			t.Errorf("%s: the chart does not make it", path)
		}
	}
	for name, text := range files {
		golden(t, "../../deploy/kubernetes/"+name, text)
	}
}

func TestTheSameValuesRenderTheSame(t *testing.T) {
	for name, values := range examples(t) {
		first := mustRender(t, values)
		for range 3 {
			if again := mustRender(t, values); !reflect.DeepEqual(again, first) {
				t.Fatalf("%s renders differently:\n%v\nand\n%v", name, first, again)
			}
		}
	}
}

// TestEveryValueIsInAnExample: what no example sets is never rendered in a test.
func TestEveryValueIsInAnExample(t *testing.T) {
	defaults, set := decode(t, read(t, "../../deploy/chart/values.yaml")), map[string]bool{}
	for _, values := range examples(t) {
		for key := range leaves(values) {
			set[key] = true
		}
	}
	for key := range leaves(defaults) {
		known := func(k string) bool { return k == key || strings.HasPrefix(k, key+".") || strings.HasPrefix(key, k+".") }
		switch {
		case key == "global" || strings.HasPrefix(key, "config."):
		case slices.ContainsFunc(slices.Collect(maps.Keys(set)), known):
		case key == "image.tag", key == "serviceAccount.create", strings.HasSuffix(key, ".enabled"): // other tests set them
		case strings.HasPrefix(key, "securityContext."), strings.HasPrefix(key, "podSecurityContext."): // maps of Kubernetes
		default:
			t.Errorf("no file of deploy/chart/ci sets %s", key)
		}
	}
}

// leaves returns the paths of what is no map, or an empty one.
func leaves(values map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range values {
		if m, ok := v.(map[string]any); ok && len(m) > 0 {
			for k, inner := range leaves(m) {
				out[key+"."+k] = inner
			}
			continue
		}
		out[key] = v
	}
	return out
}

// TestMonitoringObjectsHaveTheRulesAndTheDashboard: they are made of deploy/prometheus and deploy/grafana, and nothing
// is lost.
func TestMonitoringObjectsHaveTheRulesAndTheDashboard(t *testing.T) {
	all := objects(t, mustRender(t, examples(t)["everything"]).Documents)
	var want []any
	for _, name := range []string{"alerts", "rules"} {
		want = append(want, decode(t, read(t, "../../deploy/prometheus/"+name+".yaml"))["groups"].([]any)...)
	}
	if have := at(all["PrometheusRule relay-hub"], "spec", "groups"); !reflect.DeepEqual(have, any(want)) {
		t.Errorf("the PrometheusRule has\n%v\nwant\n%v", have, want)
	}
	dashboard := all["ConfigMap relay-hub-dashboard"]
	if have := at(dashboard, "data", "relay.json"); have != string(read(t, "../../deploy/grafana/relay.json")) {
		t.Errorf("the dashboard is\n%v", have)
	}
	if at(dashboard, "metadata", "labels", "grafana_dashboard") != "relay" || at(dashboard, "metadata", "annotations", "grafana_folder") != "Relay" {
		t.Errorf("the dashboard has %v", dashboard["metadata"])
	}
	for _, name := range []string{"single", "ha"} {
		for key := range objects(t, mustRender(t, examples(t)[name]).Documents) {
			if strings.HasPrefix(key, "PrometheusRule ") || strings.HasPrefix(key, "ServiceMonitor ") || strings.HasSuffix(key, "-dashboard") {
				t.Errorf("%s makes %s, which nobody has asked for", name, key)
			}
		}
	}
}

// TestOneReplicaIsNotAlone: the alert RelayNotAsDeployed would fire for ever.
func TestOneReplicaIsNotAlone(t *testing.T) {
	for replicas, want := range map[int]string{1: "count(relay_build_info) < 1", 2: "count(relay_build_info) < 2", 5: "count(relay_build_info) < 2"} {
		values := with("prometheusRule.create", true)
		values["replicas"] = replicas
		rules := at(objects(t, mustRender(t, values).Documents)["PrometheusRule meshrelay"], "spec", "groups", 0, "rules")
		found := 0
		for _, rule := range rules.([]any) {
			if at(rule, "alert") == "RelayNotAsDeployed" {
				found++
				if have, _ := at(rule, "expr").(string); !strings.Contains(have, "("+want+" and ") {
					t.Errorf("%d replicas: %v, want %s", replicas, have, want)
				}
			}
		}
		if found != 1 {
			t.Errorf("%d alerts RelayNotAsDeployed", found)
		}
	}
}

// TestAConfigChangeRestartsNothing: the relay reads the file again.
func TestAConfigChangeRestartsNothing(t *testing.T) {
	one := objects(t, mustRender(t, with("config.provenance.relay", "one")).Documents)
	two := objects(t, mustRender(t, with("config.provenance.relay", "two")).Documents)
	for key := range one {
		if same := reflect.DeepEqual(one[key], two[key]); same != (key != "ConfigMap meshrelay") {
			t.Errorf("%s is the same: %v", key, same)
		}
	}
}

// TestSwitchesLeaveObjectsOut: what is off leaves nothing behind.
func TestSwitchesLeaveObjectsOut(t *testing.T) {
	all := func(values map[string]any) []string {
		return slices.Sorted(maps.Keys(objects(t, mustRender(t, values).Documents)))
	}
	want := []string{
		"ClusterRole relay-reader", "ClusterRole relay-sink", "ClusterRoleBinding relay-reader", "ClusterRoleBinding relay-sink", "Role relay-sink", "RoleBinding relay-sink",
		"ServiceAccount relay-reader", "ServiceAccount relay-sink",
	}
	if have := all(examples(t)["reader"]); !slices.Equal(have, want) {
		t.Errorf("readerOnly makes %q, want %q", have, want)
	}
	full := all(nil)
	for value, kind := range map[string]string{
		"disruptionBudget.enabled": "PodDisruptionBudget relay", "networkPolicy.enabled": "NetworkPolicy relay", "serviceAccount.create": "ServiceAccount relay",
	} {
		want := slices.DeleteFunc(slices.Clone(full), func(k string) bool { return k == kind })
		if have := all(with(value, false)); !slices.Equal(have, want) || len(want) != len(full)-1 {
			t.Errorf("%s: false makes %q, want %q", value, have, want)
		}
	}
	if have := all(with("replicas", 1)); slices.Contains(have, "PodDisruptionBudget relay") {
		t.Errorf("one replica has a budget, and its node can not be drained: %q", have)
	}
	for _, name := range []string{"single", "ha"} {
		values := examples(t)[name]
		values["rbac"] = map[string]any{"replicas": map[string]any{"create": false}}
		set := objects(t, mustRender(t, values).Documents)["StatefulSet meshrelay"]
		if have := at(set, "spec", "template", "spec", "automountServiceAccountToken"); have != false {
			t.Errorf("%s: pods that read no API server have a token for it: %v", name, have)
		}
	}
	reads := objects(t, mustRender(t, examples(t)["kubernetes"]).Documents)["StatefulSet meshrelay"]
	if have := at(reads, "spec", "template", "spec", "automountServiceAccountToken"); have != true {
		t.Errorf("pods that read the API server have a token for it: %v", have)
	}
}

// TestImagesAreNamedByDigestOrTag: a digest wins.
func TestImagesAreNamedByDigestOrTag(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for want, image := range map[string]map[string]any{
		"relay:latest":                  {},
		"relay:v0.2.0":                  {"tag": "v0.2.0"},
		"registry.example/relay:latest": {"repository": "registry.example/relay"},
		"relay@" + digest:               {"tag": "v0.2.0", "digest": digest},
	} {
		all := objects(t, mustRender(t, with("image", image)).Documents)
		if have := at(all["StatefulSet meshrelay"], "spec", "template", "spec", "containers", 0, "image"); have != want {
			t.Errorf("%v: image %v, want %s", image, have, want)
		}
	}
}

func TestNotesTellWhatIsMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		values  map[string]any
		want    []string
		without string
	}{
		"defaults": {nil, []string{"WARNING: config.provenance.relay", "statefulset/meshrelay", "xds://relay.istio-system.svc:15010"}, ""},
		"named":    {with("config.provenance.relay", "hub"), []string{"kubectl rollout status -n istio-system"}, "WARNING"},
		"file":     {examples(t)["file"], []string{":16010"}, "WARNING"},
		"reader":   {examples(t)["reader"], []string{"create token -n istio-system relay-reader"}, "statefulset"},
	} {
		notes := mustRender(t, tc.values).Notes
		for _, want := range tc.want {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: no %q in\n%s", name, want, notes)
			}
		}
		if tc.without != "" && strings.Contains(notes, tc.without) {
			t.Errorf("%s: %q in\n%s", name, tc.without, notes)
		}
		if strings.Contains(notes, "root namespace") || strings.Contains(notes, "namespaceSelector") {
			t.Errorf("%s: notes on other namespaces in\n%s", name, notes)
		}
	}
	// Elsewhere istiods refuse the token, and the network policy refuses istiods.
	elsewhere, err := renderIn(t.Context(), "relays", repository, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"root namespace of the mesh", "This release is in relays.\n", "a pod in relays. For istiods\nelsewhere: {namespaceSelector"} {
		if !strings.Contains(elsewhere.Notes, want) {
			t.Errorf("no %q in\n%s", want, elsewhere.Notes)
		}
	}
}

// untar returns the files of an archive.
func untar(t *testing.T, path string) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for archive := tar.NewReader(z); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		out[header.Name] = string(content)
	}
}

func TestTwoPackagesAreTheSame(t *testing.T) {
	var sums [][]byte
	var packed map[string]string
	for range 2 {
		path, err := writePackage(repository, "v0.2.0", t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(path); name != "meshrelay-0.2.0.tgz" {
			t.Errorf("the archive is called %s", name)
		}
		packed = untar(t, path)
		sum := sha256.Sum256(read(t, path))
		sums = append(sums, sum[:])
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("digests %x and %x", sums[0], sums[1])
	}
	// The chart has links to these, and an archive of it their content.
	for name, source := range map[string]string{"alerts.yaml": "prometheus/alerts.yaml", "rules.yaml": "prometheus/rules.yaml", "dashboard.json": "grafana/relay.json"} {
		if have := packed["meshrelay/files/"+name]; have == "" || have != string(read(t, "../../deploy/"+source)) {
			t.Errorf("files/%s has %d bytes in the archive, and is not deploy/%s", name, len(have), source)
		}
	}
	if _, err := writePackage(repository, "", t.TempDir()); err == nil || !strings.Contains(err.Error(), "-version") {
		t.Errorf("a package without a version: %v", err)
	}
}
