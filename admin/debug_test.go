package admin

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

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

func TestDebugDocumentsHaveIstiodsShape(t *testing.T) {
	f := newFixture(t, Config{})
	for _, name := range []string{"configz", "syncz", "adsz", "mesh", "connections", "upstreams", "leftout", "peers", "summary", "list"} {
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

func TestSyncStatusOverXDS_D1(t *testing.T) {
	f := newFixture(t, Config{})
	var docs []string
	for _, c := range f.deps.Debug.SyncStatus() {
		b, err := protojson.MarshalOptions{}.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, string(b))
	}
	checkJSON(t, "clientconfigs", "["+strings.Join(docs, ",")+"]")
}

func TestMeshConfigIsSyncedOnceSent_S6(t *testing.T) {
	f := newFixture(t, Config{})
	got := f.deps.Debug.SyncStatus()[0].GetGenericXdsConfigs()[0]
	if got.GetTypeUrl() != "core/v1alpha1/MeshConfig" || got.GetConfigStatus().String() != "SYNCED" {
		t.Errorf("%v", got)
	}
}

func TestXDSAndHTTPGiveTheSameDocuments_D2(t *testing.T) {
	f := newFixture(t, Config{})
	for _, name := range []string{"syncz", "configz", "adsz", "connections", "mesh", "list", "configz?kind=ServiceEntry&namespace=bank", "syncz?namespace=ops"} {
		got, err := f.deps.Debug.Handle(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(f.get(t, "/debug/"+name), string(got)); d != "" {
			t.Errorf("%s: -http +xds:\n%s", name, d)
		}
	}
}

func TestUnknownDocumentsAreErrorsThatNameTheOthers_D2(t *testing.T) {
	f := newFixture(t, Config{})
	for _, name := range []string{"", "edsz", "upstreams", "loglevel", "pprof/heap", "configz?%zz", "configz?kind=nonsense", "../configz"} {
		if body, err := f.deps.Debug.Handle(name); err == nil {
			t.Errorf("Handle(%q) = %s", name, body)
		}
	}
	_, err := f.deps.Debug.Handle("edsz")
	if !strings.Contains(err.Error(), "adsz, configz, connections, list, mesh, syncz") {
		t.Error(err)
	}
}

func TestDocumentsOverXDSAreBounded(t *testing.T) {
	var b boundedBuffer
	half := make([]byte, maxXDSBytes/2)
	for i := range 2 {
		if _, err := b.Write(half); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if _, err := b.Write([]byte{1}); err == nil || b.Len() != maxXDSBytes {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

func TestWithoutAMeshConfigMeshIsNull(t *testing.T) {
	d := NewDebug(Views{Resources: merged(t)})
	for name, want := range map[string]string{"mesh": "null\n", "configz": "[]\n"} {
		if b, err := d.Handle(name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func FuzzHandle(f *testing.F) {
	for _, s := range []string{"syncz", "configz?kind=se", "list", "configz?namespace=a&kind=b/c"} {
		f.Add(s)
	}
	d := NewDebug(Views{Resources: nothing{}})
	d.ShowServer(&fixture{})
	f.Fuzz(func(t *testing.T, name string) {
		if b, err := d.Handle(name); err == nil && !json.Valid(b) {
			t.Errorf("Handle(%q) is not JSON: %q", name, b)
		}
	})
}

func TestVersionsAreThoseOfTheConfigs(t *testing.T) {
	f := newFixture(t, Config{})
	address, stop := f.running(t)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	asked := Client{Address: address, HTTP: &http.Client{Transport: transport}}
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
