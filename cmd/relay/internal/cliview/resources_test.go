package cliview

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/mirror"
	"meshrelay/upstreams/file"
)

var now = time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)

func entry(t *testing.T, namespace, name, version string, age time.Duration) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"*.example.com", "on"}, Addresses: []string{"10.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	s := mirror.Spec{
		Key:    mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: namespace, Name: name},
		Source: "s", SourceVersion: version, Body: body, Annotations: map[string]string{"script": "if x\n  then y\n", "yes": "no"},
	}
	if age > 0 {
		s.CreateTime = now.Add(-age)
	}
	r, err := mirror.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var serviceEntries = selection.Kind{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Version: "v1"}

func groups(t *testing.T) []selection.Group {
	t.Helper()
	body, err := anypb.New(&mesh.MeshConfig{IngressClass: "istio"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, Source: "s", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	sidecar := mirror.Kind{Group: "networking.istio.io", Kind: "Sidecar"}
	return []selection.Group{
		{Kind: selection.Kind{Kind: mirror.MeshConfig, Version: "v1alpha1"}, Resources: []*mirror.Resource{m}},
		{Kind: selection.Kind{Kind: sidecar, Version: "v1"}},
		{Kind: serviceEntries, Resources: []*mirror.Resource{
			entry(t, "bank", "ledger", "", 0),
			entry(t, "shop", "a-rather-long-name", "2024-05-01T10:00:00Z", 3*time.Hour),
			entry(t, "shop", "evil\x1b[2J", "7", time.Minute),
		}},
	}
}

func printed(t *testing.T, g []selection.Group, o ResourceOptions) string {
	t.Helper()
	var out strings.Builder
	if err := Resources(&out, g, o, now); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTables(t *testing.T) {
	want := `NAMESPACE   NAME              UPSTREAM   AGE
            meshconfig/mesh   -          <unknown>

NAMESPACE   NAME                                                  UPSTREAM   AGE
bank        serviceentry.networking.istio.io/ledger               -          <unknown>
shop        serviceentry.networking.istio.io/a-rather-long-name   -          3h
shop        serviceentry.networking.istio.io/'evil?[2J'           -          60s
`
	got := printed(t, groups(t), ResourceOptions{Format: Table, Namespaces: true, Kinds: true})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	one := []selection.Group{{Resources: []*mirror.Resource{entry(t, "shop", "a", "2024-05-01T10:00:00Z", 5*time.Second).Stamped(&mirror.Stamp{Source: "east", Cluster: "cluster-1", Relay: "hub"})}}}
	lost := func(r *mirror.Resource) bool { return r.Key().Name == "a" }
	for _, tc := range []struct {
		o    ResourceOptions
		want string
	}{
		{ResourceOptions{Format: Table}, "NAME   UPSTREAM   AGE\na      east       5s\n"},
		{ResourceOptions{Format: Table, NoHeaders: true}, "a   east   5s\n"},
		{ResourceOptions{Format: Wide}, "NAME   UPSTREAM   AGE   CLUSTER     RELAYS   VERSION\na      east       5s    cluster-1   hub      …1T10:00:00Z\n"},
		{ResourceOptions{Format: Table, Lost: lost}, "NAME   UPSTREAM   AGE\na      east*      5s\n"},
	} {
		if d := cmp.Diff(tc.want, printed(t, one, tc.o)); d != "" {
			t.Errorf("%+v: -want +got:\n%s", tc.o, d)
		}
	}
}

func TestNames(t *testing.T) {
	want := "meshconfig/mesh\nserviceentry.networking.istio.io/ledger\nserviceentry.networking.istio.io/a-rather-long-name\nserviceentry.networking.istio.io/evil?[2J\n"
	if d := cmp.Diff(want, printed(t, groups(t), ResourceOptions{Format: Name})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestJSONIsAListOrOneObject(t *testing.T) {
	var list struct {
		Kind, APIVersion string
		Items            []struct{ Kind string }
	}
	if err := json.Unmarshal([]byte(printed(t, groups(t), ResourceOptions{Format: JSON})), &list); err != nil {
		t.Fatal(err)
	}
	if list.Kind != "List" || list.APIVersion != "v1" || len(list.Items) != 4 || list.Items[3].Kind != "ServiceEntry" {
		t.Errorf("%+v", list)
	}
	var one struct{ Kind string }
	if err := json.Unmarshal([]byte(printed(t, groups(t)[:1], ResourceOptions{Format: JSON, Single: true})), &one); err != nil || one.Kind != "MeshConfig" {
		t.Errorf("%+v %v", one, err)
	}
	if got := printed(t, nil, ResourceOptions{Format: JSON}); !json.Valid([]byte(got)) || !strings.Contains(got, `"items": []`) {
		t.Error(got)
	}
}

// The list is written in pieces, and equals the output of the encoder.
func TestJSONListIsIndentedAsAWhole(t *testing.T) {
	for _, all := range [][]selection.Group{nil, groups(t)} {
		got := printed(t, all, ResourceOptions{Format: JSON})
		var want bytes.Buffer
		if err := json.Indent(&want, []byte(got), "", "    "); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.String(), got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
}

// A file source reads back the YAML or JSON that the command prints: the same resources, to the
// last byte, with the versions that API servers gave them.
func TestAFileSourceReadsBackWhatIsPrinted(t *testing.T) {
	for _, format := range []Format{YAML, JSON} {
		readable := groups(t)
		last := &readable[len(readable)-1]
		last.Resources = last.Resources[:2] // the third has a name that no file may have
		path := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(path, []byte(printed(t, readable, ResourceOptions{Format: format})), 0o600); err != nil {
			t.Fatal(err)
		}
		got, problems, err := file.Read(path, "s", false)
		if err != nil || len(problems) > 0 {
			t.Fatalf("%s: %v %v", format, err, problems)
		}
		want := map[mirror.Key]*mirror.Resource{}
		for _, g := range readable {
			for _, r := range g.Resources {
				want[r.Key()] = r
			}
		}
		for _, r := range got {
			w := want[r.Key()]
			_, err := strconv.ParseUint(w.SourceVersion(), 10, 64) // others are not printed
			if !r.Equal(w) || err == nil && r.SourceVersion() != w.SourceVersion() {
				t.Errorf("%s: %s came back changed", format, r.Key())
			}
			delete(want, r.Key())
		}
		for key := range want {
			t.Errorf("%s: %s did not come back", format, key)
		}
	}
}

func TestWatchers(t *testing.T) {
	a, b := entry(t, "shop", "a", "7", time.Minute), entry(t, "shop", "a-longer-name", "8", time.Hour)
	watched := func(o ResourceOptions) string {
		var out strings.Builder
		w := NewWatcher(&out, o)
		for i, e := range []struct {
			event string
			r     *mirror.Resource
		}{{Added, a}, {Modified, b}, {Deleted, a}} {
			if err := w.Print(e.event, serviceEntries, e.r, now); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		return out.String()
	}
	want := `TIME                   EVENT      NAMESPACE   NAME            UPSTREAM   AGE
2024-02-03T04:05:06Z   ADDED      shop        a               -          60s
2024-02-03T04:05:06Z   MODIFIED   shop        a-longer-name   -          60m
2024-02-03T04:05:06Z   DELETED    shop        a               -          60s
`
	if d := cmp.Diff(want, watched(ResourceOptions{Format: Table, Namespaces: true})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	want = "ADDED serviceentry.networking.istio.io/a\nMODIFIED serviceentry.networking.istio.io/a-longer-name\nDELETED serviceentry.networking.istio.io/a\n"
	if d := cmp.Diff(want, watched(ResourceOptions{Format: Name})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := watched(ResourceOptions{Format: YAML}); strings.Count(got, "--- # ") != 3 || strings.Count(got, "\nkind: ServiceEntry\n") != 3 {
		t.Error(got)
	}
	dec := json.NewDecoder(strings.NewReader(watched(ResourceOptions{Format: JSON})))
	for _, want := range []string{"ADDED", "MODIFIED", "DELETED"} {
		var e struct {
			Type   string
			Object struct{ Kind string }
		}
		if err := dec.Decode(&e); err != nil || e.Type != want || e.Object.Kind != "ServiceEntry" {
			t.Errorf("%+v %v", e, err)
		}
	}
}

// full is a closed terminal.
type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorsAreReturned(t *testing.T) {
	for _, f := range []Format{Table, YAML, JSON, Name} {
		if err := Resources(full{}, groups(t), ResourceOptions{Format: f}, now); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", f, err)
		}
	}
}
