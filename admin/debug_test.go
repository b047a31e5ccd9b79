package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/internal/kube"
	"meshrelay/internal/testing/golden"
	"meshrelay/mirror"
)

// checkJSON compares JSON, indented, with a file in testdata.
func checkJSON(t *testing.T, name, body string) {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(body), "", "  "); err != nil {
		t.Fatalf("%s: %v:\n%s", name, err, body)
	}
	// Package mirror tests the versions. Here one must exist.
	got := regexp.MustCompile(`"resourceVersion": "[^"]+"`).ReplaceAllString(strings.TrimRight(out.String(), "\n"), `"resourceVersion": "*"`) + "\n"
	golden.Check(t, filepath.Join("testdata", name+".json"), got)
}

func TestDebugDocumentsHaveTheirShape(t *testing.T) {
	f := newFixture(t, Config{})
	for _, name := range []string{"configz", "mesh", "connections", "upstreams", "leftout", "peers"} {
		code, body, header := f.do(t, request{path: "/debug/" + name})
		if code != http.StatusOK || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d, %s", name, code, header.Get("Content-Type"))
		}
		checkJSON(t, name, body)
	}
}

func TestConfigzFilters(t *testing.T) {
	f := newFixture(t, Config{})
	names := func(query string) string {
		var objects []struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		if err := json.Unmarshal([]byte(f.get(t, "/debug/configz"+query)), &objects); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, o := range objects {
			out = append(out, o.Kind+" "+o.Metadata.Namespace+"/"+o.Metadata.Name)
		}
		return strings.Join(out, ", ")
	}
	for query, want := range map[string]string{
		"":                                "ServiceEntry bank/ledger, ServiceEntry shop/cache, ServiceEntry shop/db, Widget shop/w",
		"?kind=se":                        "ServiceEntry bank/ledger, ServiceEntry shop/cache, ServiceEntry shop/db",
		"?kind=ServiceEntry":              "ServiceEntry bank/ledger, ServiceEntry shop/cache, ServiceEntry shop/db",
		"?namespace=bank":                 "ServiceEntry bank/ledger",
		"?kind=Widget":                    "Widget shop/w",
		"?kind=example.com/Widget":        "Widget shop/w",
		"?kind=vs":                        "",
		"?kind=se&namespace=x":            "",
		"?kind=se&namespace=shop&name=db": "ServiceEntry shop/db",
		"?kind=se&name=db":                "",
	} {
		if got := names(query); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	code, body, _ := f.do(t, request{path: "/debug/configz?kind=nonsense"})
	if code != http.StatusBadRequest || !strings.Contains(body, `kind "nonsense"`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestWithoutAMeshConfigMeshIsNull(t *testing.T) {
	d := NewDebug(Views{Resources: merged(t)}, nil)
	var mesh, configs bytes.Buffer
	if err := errors.Join(d.mesh(&mesh, nil), d.configz(&configs, nil)); err != nil || mesh.String() != "null\n" || configs.String() != "[]\n" {
		t.Errorf("%q, %q, %v", &mesh, &configs, err)
	}
}

func TestVersionsAreThoseOfTheConfigs(t *testing.T) {
	f := newFixture(t, Config{})
	address, stop := f.running(t)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	asked := Client{Address: address}
	all, err := asked.Resources(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("%d resources, %v", len(all), err)
	}
	versions, err := asked.ConfigVersions(t.Context())
	if err != nil || len(versions) != len(all) {
		t.Fatalf("%d versions of %d resources, %v", len(versions), len(all), err)
	}
	for i, v := range versions {
		o := all[i]
		if v.Kind.String() != kube.KindOf(&o) || v.Namespace != o.Metadata.Namespace || v.Name != o.Metadata.Name || v.Version != o.Metadata.ResourceVersion {
			t.Errorf("%+v is of %+v", v, o.Metadata)
		}
		if one, err := asked.Config(t.Context(), v.Key); err != nil || cmp.Diff([]kube.Object{o}, one) != "" {
			t.Errorf("%s: %v %s", v.Key, err, cmp.Diff([]kube.Object{o}, one))
		}
	}
	gone := versions[0].Key
	gone.Name = "gone"
	last := gone // of a kind without resources since its version was read
	last.Kind.Kind = "Gone"
	for _, key := range []mirror.Key{gone, last} {
		if none, err := asked.Config(t.Context(), key); err != nil || len(none) > 0 {
			t.Errorf("%s: %v %v", key, none, err)
		}
	}
}
