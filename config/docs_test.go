package config_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/xds"
)

// fieldPaths returns the paths of all fields of a type, as the reference writes them.
func fieldPaths(at string, t reflect.Type) (paths []string) {
	for i := range t.NumField() {
		path := config.Join(at, config.YAMLName(t.Field(i)))
		if t.Field(i).Type == reflect.TypeFor[config.Source]() {
			for _, source := range sources() {
				paths = append(paths, config.Join(at, source.Kind()))
				paths = append(paths, fieldPaths(config.Join(at, source.Kind()), reflect.TypeOf(source).Elem())...)
			}
			continue
		}
		if config.YAMLName(t.Field(i)) == "-" {
			continue
		}
		paths = append(paths, path)
		if at == "clusters[]" && t.Field(i).Type == reflect.TypeFor[config.Upstream]() {
			continue // its fields are those of upstreams
		}
		ft := t.Field(i).Type
		if ft.Kind() == reflect.Slice {
			ft, path = ft.Elem(), path+"[]"
		}
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if ft == reflect.TypeFor[config.Cluster]() {
			path = "cluster" // the reference has its fields once
		}
		if ft.Kind() == reflect.Struct {
			paths = append(paths, fieldPaths(path, ft)...)
		}
	}
	return paths
}

// reference returns the rows of the reference by field.
func reference(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` (\\|.*)$").FindAllStringSubmatch(string(data), -1) {
		if documented[m[1]] != "" {
			t.Errorf("%s has two rows", m[1])
		}
		documented[m[1]] = m[2]
	}
	return documented
}

// TestTheReferenceTellsWhenToSetEachField: the last column of each field with a value of its own. A field for which
// nobody can name a case should be a constant.
func TestTheReferenceTellsWhenToSetEachField(t *testing.T) {
	documented, fields := reference(t), settable("", config.SchemaOf(func(string) string { return "" }, sources()...))
	for _, field := range fields {
		field = strings.Replace(field, "clusters[].upstream.", "upstreams[].", 1)
		for _, block := range []string{"upstreams[].kubernetes.", "upstreams[].xds.token.", "clusters[].secrets.", "sinks[].", "replicas."} {
			if of, is := strings.CutPrefix(field, block+"cluster."); is {
				field = "cluster." + of
			}
		}
		cells := regexp.MustCompile(`[^\\]\|`).Split(documented[field], -1)
		if len(cells) != 6 || len(strings.TrimSpace(cells[4])) < len("always") {
			t.Errorf("the row of %s does not tell when one sets it: %q", field, cells)
		}
	}
	if len(fields) < 100 {
		t.Errorf("only %d fields were found", len(fields))
	}
}

func TestReferenceHasEveryFieldAndNoOther(t *testing.T) {
	documented := reference(t)
	fields := fieldPaths("", reflect.TypeFor[config.Config]())
	if len(fields) < 40 {
		t.Fatalf("only %d fields were found: %v", len(fields), fields)
	}
	for _, field := range fields {
		if documented[field] == "" {
			t.Errorf("docs/configuration.md has no row for %s", field)
		}
	}
	for field := range documented {
		if !slices.Contains(fields, field) {
			t.Errorf("docs/configuration.md has a row for %s, which is no field", field)
		}
	}
	var empty config.Config
	empty.SetDefaults()
	checkDefaults(t, "", reflect.ValueOf(empty), documented)
	c, err := parse("relay.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	u := c.Upstreams[0]
	checkDefaults(t, "upstreams[].staleness", reflect.ValueOf(u.Staleness), documented)
	checkDefaults(t, "upstreams[].guard", reflect.ValueOf(u.Guard), documented)
	checkDefaults(t, "upstreams[].limits", reflect.ValueOf(u.Limits), documented)
	section := *u.Source.(*xds.Config)
	section.Addresses = nil
	checkDefaults(t, "upstreams[].xds", reflect.ValueOf(section), documented)
	c, err = parse("relay.yaml", []byte(regexp.MustCompile(`xds:\n.*\n.*`).ReplaceAllString(minimal, "kubernetes: {cluster: {inCluster: true}}")))
	if err != nil {
		t.Fatal(err)
	}
	cluster := *c.Upstreams[0].Source.(*kubernetes.Config)
	cluster.Cluster.InCluster = false
	checkDefaults(t, "upstreams[].kubernetes", reflect.ValueOf(cluster), documented)
}

// checkDefaults compares the defaults of the code with those of the reference.
func checkDefaults(t *testing.T, at string, v reflect.Value, documented map[string]string) {
	for i := range v.NumField() {
		path, f := config.Join(at, config.YAMLName(v.Type().Field(i))), v.Field(i)
		if f.Kind() == reflect.Struct {
			checkDefaults(t, path, f, documented)
			continue
		}
		if f.Kind() == reflect.Pointer || f.IsZero() || config.YAMLName(v.Type().Field(i)) == "-" {
			continue
		}
		columns := strings.Split(documented[path], "|")
		if len(columns) < 4 {
			t.Errorf("the row of %s has %d columns", path, len(columns))
			continue
		}
		got := strings.Trim(strings.TrimSpace(columns[2]), "`")
		want := fmt.Sprint(f)
		if d, ok := f.Interface().(interface{ D() time.Duration }); ok {
			parsed, err := time.ParseDuration(got)
			if err != nil || parsed != d.D() {
				t.Errorf("%s: the reference has the default %q, it is %v", path, got, d.D())
			}
			continue
		}
		if got != want {
			t.Errorf("%s: the reference has the default %q, it is %q", path, got, want)
		}
	}
}
