package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"meshrelay/config"
	"meshrelay/docs"
	"meshrelay/relay"
)

// compiled returns the schema that the command prints.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var out, errs bytes.Buffer
	if code := execute([]string{"schema"}, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	doc, err := jsonschema.UnmarshalJSON(&out)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// check returns the mistakes that a schema finds in a config.
func check(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

// TestTheSchemaAcceptsEverySampleAndExample, and the config of each release: what Load accepts, with all defaults written out too.
func TestTheSchemaAcceptsEverySampleAndExample(t *testing.T) {
	s := compiled(t)
	files := 0
	for _, dir := range []string{"../../samples", "../../examples", "../../config/testdata"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(text, []byte("\nupstreams:\n")) {
				return err
			}
			files++
			if err := check(t, s, text); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			cfg, refused := config.Parse(path, text, relay.Sources()...)
			if refused != nil && bytes.Contains(text, []byte("<")) { // the config has placeholders
				return nil
			}
			if refused != nil {
				return refused
			}
			whole, err := cfg.YAML()
			if err != nil {
				return err
			}
			if err := check(t, s, whole); err != nil {
				t.Errorf("%s with defaults: %v", path, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 6 {
		t.Errorf("only %d configs were found", files)
	}
}

func TestTheSchemaRefusesWhatLoadRefuses(t *testing.T) {
	s := compiled(t)
	const good = "upstreams: [{name: east, xds: {addresses: [\"a:1\"], plaintext: true}}]\ndownstream: {listeners: [{address: \"127.0.0.1:1\", plaintext: true}]}\n"
	if err := check(t, s, []byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"an unknown field":              good + "bogus: 1\n",
		"an unknown field below":        strings.Replace(good, "plaintext: true}}", "plaintext: true, bogus: 1}}", 1),
		"no upstreams":                  "downstream: {}\n",
		"no name":                       strings.Replace(good, "name: east, ", "", 1),
		"two sources":                   strings.Replace(good, "xds:", "file: {path: x}, xds:", 1),
		"no source":                     "upstreams: [{name: east}]\ndownstream: {}\n",
		"a bad duration":                good + "clusters: [{name: a, removeAfter: soon}]\n",
		"a number out of range":         strings.Replace(good, "upstreams:", "log: {}\nupstreams:", 1) + "state: {history: {revisions: -1}}\n",
		"an integer too large":          good + "state: {history: {revisions: 10001}}\n",
		"an unknown word":               good + "log: {level: loud}\n",
		"a program of arguments":        good + "clusters: [{name: a, allowExec: [b, {args: [c]}]}]\n",
		"an unknown field of a program": good + "clusters: [{name: a, allowExec: [{command: b, arg: [c]}]}]\n",
		"a list for a program":          good + "clusters: [{name: a, allowExec: [[b]]}]\n",
		"a list for a text":             good + "node: {id: [a]}\n",
	} {
		if check(t, s, []byte(text)) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
		if _, err := config.Parse("relay.yaml", []byte(text), relay.Sources()...); err == nil {
			t.Errorf("%s: Load accepts it", name)
		}
	}
}

func TestEveryFieldOfTheSchemaIsDescribed(t *testing.T) {
	fields := docs.Fields()
	if len(fields) < 100 {
		t.Fatalf("%d fields", len(fields))
	}
	b, err := json.Marshal(config.SchemaOf(func(path string) string {
		if _, ok := fields[path]; !ok {
			t.Errorf("%s has no description: it is the last column of the row in docs/configuration.md", path)
		}
		return fields[path]
	}, relay.Sources()...))
	if err != nil || len(b) > 100<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
