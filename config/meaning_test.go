package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/goccy/go-yaml"

	"meshrelay/config"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// TestEachFieldMeansWhatItMeant: each testdata/*/relay.yaml is a config file, and relay.json what it means. A release
// never changes those that the one before has: it would break an upgrade.
func TestEachFieldMeansWhatItMeant(t *testing.T) {
	for _, path := range fixtures(t) {
		cfg, err := config.Load(path, sources()...)
		if err != nil {
			t.Fatal(err)
		}
		text, err := cfg.YAML()
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		got := parsed(t, bytes.ReplaceAll(text, []byte(dir), []byte("/etc/relay")))
		golden := filepath.Join(dir, "relay.json")
		if *update {
			b, err := json.MarshalIndent(got, "", "  ")
			if err == nil {
				err = os.WriteFile(golden, append(b, '\n'), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		var want any
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		compare(t, path, want, got)
	}
}

// compare reports what of want is not in got, which may have fields that are newer.
func compare(t *testing.T, at string, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		fields, _ := got.(map[string]any)
		for name := range want {
			compare(t, config.Join(at, name), want[name], fields[name])
		}
	case []any:
		elements, _ := got.([]any)
		if len(elements) != len(want) {
			t.Errorf("%s: %v, want %v", at, got, want)
			return
		}
		for i := range want {
			compare(t, at, want[i], elements[i])
		}
	default:
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
}

// TestEveryFieldIsInAConfig looks for each field in both files: a field that relay.json lacks could change
// its meaning, and no test would fail.
func TestEveryFieldIsInAConfig(t *testing.T) {
	written, meant := map[string]bool{}, map[string]bool{}
	for _, path := range fixtures(t) {
		for file, has := range map[string]map[string]bool{path: written, filepath.Join(filepath.Dir(path), "relay.json"): meant} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			given("", parsed(t, text), has)
		}
	}
	fields := 0
	eachField("", config.SchemaOf(func(string) string { return "" }, sources()...), func(field string) {
		if fields++; !written[field] || !meant[field] {
			t.Errorf("no relay.yaml, or no relay.json, in testdata has %s: set it in one, and write relay.json with go test ./config -update", field)
		}
	})
	if fields < 150 {
		t.Errorf("the schema has only %d fields", fields)
	}
}

// eachField calls f with the path of each field of a schema.
func eachField(at string, s *config.Schema, f func(path string)) {
	for name, field := range s.Properties {
		path := config.Join(at, name)
		f(path)
		if path == "clusters[].upstream" {
			continue // its fields are those of upstreams
		}
		eachField(path, field, f)
		if field.Items != nil {
			eachField(path+"[]", field.Items, f)
		}
	}
}

// given notes the paths of the fields that a config file has.
func given(at string, value any, has map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			path := config.Join(at, name)
			has[path] = true
			given(path, v, has)
		}
	case []any:
		for _, v := range value {
			given(at+"[]", v, has)
		}
	}
}

func fixtures(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/relay.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no config", err)
	}
	return paths
}

// parsed returns a YAML document as JSON has it.
func parsed(t *testing.T, text []byte) (out any) {
	t.Helper()
	b, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
