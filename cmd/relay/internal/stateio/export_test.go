package stateio_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networkingapi "istio.io/api/networking/v1alpha3"

	"meshrelay/cmd/relay/internal/stateio"
	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/relay"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	fileupstream "meshrelay/upstreams/file"
	"meshrelay/upstreams/xds"
)

// received returns a resource as the relay "hub" gets it from an istiod.
func received(t *testing.T, source, cluster, kind, name string, body proto.Message, change func(*mcp.Metadata)) state.Record {
	t.Helper()
	info := mirror.MatchKinds(kind)[0]
	md := &mcp.Metadata{Name: name, Version: "12345", CreateTime: timestamppb.New(time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)), Labels: map[string]string{"app": "x"}}
	if change != nil {
		change(md)
	}
	packed := func(m proto.Message) *anypb.Any {
		a := &anypb.Any{}
		if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
			t.Fatal(err)
		}
		return a
	}
	element := packed(body)
	if info.Kind != mirror.MeshConfig {
		element = packed(&mcp.Resource{Metadata: md, Body: element})
	}
	data, err := proto.Marshal(element)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := mirror.DecodeStamped(info.Kind, data, source, &mirror.Stamp{Source: source, Cluster: cluster, Relay: "hub"})
	if err != nil {
		t.Fatal(err)
	}
	return state.Record{Resource: r, TypeURL: info.Kind.PreferredTypeURL()}
}

func exampleState(t *testing.T, dir string) map[string][]state.Record {
	t.Helper()
	entry := func(host string) proto.Message {
		return &networkingapi.ServiceEntry{
			Hosts: []string{host}, Resolution: networkingapi.ServiceEntry_STATIC, Ports: []*networkingapi.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingapi.WorkloadEntry{{Address: "10.0.0.1", Labels: map[string]string{"a": "1", "b": "2"}}},
		}
	}
	all := map[string][]state.Record{
		"zone-b": {
			received(t, "zone-b", "c-b", "se", "shop/db", entry("db.b"), nil),
			received(t, "zone-b", "c-b", "se", "shop/only-b", entry("only.b"), func(md *mcp.Metadata) {
				md.Annotations = map[string]string{
					"kubectl.kubernetes.io/last-applied-configuration": "{}", mirror.ProvenanceAnnotation: "far(c-far)@9 via other,another", "text": "on\nno: \"x\"  ",
				}
			}),
			received(t, "zone-b", "c-b", "vs", "shop/route", &networkingapi.VirtualService{Hosts: []string{"db.b", "db"}, Http: []*networkingapi.HTTPRoute{{Timeout: durationpb.New(1500 * time.Millisecond)}}}, nil),
		},
		"zone-a": {
			received(t, "zone-a", "c-a", "se", "shop/db", entry("db.a"), func(md *mcp.Metadata) { md.CreateTime = nil }),
			received(t, "zone-a", "c-a", "gatewayclasses", "/istio", &structpb.Struct{Fields: map[string]*structpb.Value{"controllerName": structpb.NewStringValue("istio.io/gateway-controller"), "n": structpb.NewNumberValue(1)}}, nil),
			received(t, "zone-a", "c-a", "meshconfigs", "", &mesh.MeshConfig{TrustDomain: "td", DefaultConfig: &mesh.ProxyConfig{DrainDuration: durationpb.New(time.Second)}}, nil),
		},
	}
	for name, records := range all {
		err := local.Replace(dir, state.History{Revisions: 9}, name, state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: "f"}, Records: records})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// merged returns the merged resources of a config's upstreams.
func merged(t *testing.T, cfg *config.Config, fill func(a *mirror.Aggregate, sources []mirror.Source) func(context.Context) error) map[mirror.Key]*mirror.Resource {
	t.Helper()
	aggregate := mirror.NewAggregate()
	policies, others, err := relay.MergePolicies(cfg.Merge)
	if err != nil {
		t.Fatal(err)
	}
	aggregate.SetPolicies(policies, others)
	run := fill(aggregate, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group errgroup.Group
	group.Go(func() error { return aggregate.Run(ctx) })
	group.Go(func() error { return run(ctx) })
	await.Closed(t, "the aggregate syncs", aggregate.Synced())
	out := map[mirror.Key]*mirror.Resource{}
	for _, kind := range aggregate.Kinds() {
		for _, r := range aggregate.List(kind, "") {
			out[r.Key()] = r
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// A relay serves an export as it served the state: resources are Equal, with the same source and cluster. The
// provenance has no earlier relays, because files have none.
func TestExportedStateIsServedAsItWasKept(t *testing.T) {
	for _, withConfig := range []bool{true, false} {
		t.Run(fmt.Sprint("with the config: ", withConfig), func(t *testing.T) {
			dir := t.TempDir()
			kept := exampleState(t, filepath.Join(dir, "state"))
			original := filepath.Join(dir, "relay.yaml")
			merge := "merge: [{policy: newest}, {kinds: [se], policy: union, sameHost: true}]\n"
			order := []string{"zone-b", "zone-a", "empty"}
			if !withConfig {
				merge, order = "", []string{"zone-a", "zone-b"}
			}
			text := merge + "node: {id: hub}\nstate: {dir: state}\nupstreams:\n"
			for _, name := range order {
				text += fmt.Sprintf("- {name: %s, clusterID: %s, xds: {addresses: ['127.0.0.1:1'], plaintext: true}}\n", name, strings.Replace(name, "zone-", "c-", 1))
			}
			text += "downstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n"
			if err := os.WriteFile(original, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			before, err := loadConfig(original)
			if err != nil {
				t.Fatal(err)
			}
			file, err := local.ReadFile(local.Path(filepath.Join(dir, "state")))
			if err != nil {
				t.Fatal(err)
			}
			e := &stateio.Export{File: file}
			if withConfig {
				e.Config, e.ConfigPath = before, original
			}
			out := filepath.Join(dir, "out")
			if _, _, err := e.Directory(out); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(e.Problems()...); err != nil {
				t.Fatal(err)
			}
			want := merged(t, before, func(a *mirror.Aggregate, sources []mirror.Source) func(context.Context) error {
				for _, name := range order {
					store := mirror.NewStore()
					for _, r := range kept[name] {
						store.Put(r.Resource)
					}
					store.SetSynced()
					sources = append(sources, mirror.Source{Name: name, Store: store})
				}
				a.SetSources(sources)
				return func(context.Context) error { return nil }
			})
			after, err := loadConfig(filepath.Join(out, "relay.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			got := merged(t, after, func(a *mirror.Aggregate, _ []mirror.Source) func(context.Context) error {
				m, err := upstreams.NewManager(after, []upstreams.Kind{fileupstream.Kind()}, a, nil, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				return m.Run
			})
			if len(want) != 5 || len(got) != len(want) {
				t.Fatalf("%d resources, want %d", len(got), len(want))
			}
			for key, w := range want {
				g := got[key]
				if g == nil || !g.Equal(w) || g.Source() != w.Source() || g.Cluster() != w.Cluster() {
					t.Errorf("%s is another: %v", key, g)
					continue
				}
				p, q := g.Provenance(), w.Provenance()
				if p.Source != q.Source || p.Cluster != q.Cluster || p.SourceVersion != q.SourceVersion ||
					fmt.Sprint(p.Path) != "[hub]" && key.Kind != mirror.MeshConfig {
					t.Errorf("%s has provenance %+v, had %+v", key, p, q)
				}
			}
		})
	}
}

func TestResourcesThatAFileUpstreamWouldNotReadAreNamed(t *testing.T) {
	dir := t.TempDir()
	body, err := anypb.New(&structpb.Struct{})
	if err != nil {
		t.Fatal(err)
	}
	widget, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, Namespace: "shop", Name: "w"}, Source: "east", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	records := []state.Record{
		{Resource: widget},
		received(t, "east", "east", "se", "shop/Upper", &networkingapi.ServiceEntry{Hosts: []string{"a"}}, nil),
		received(t, "east", "east", "se", "shop/good", &networkingapi.ServiceEntry{Hosts: []string{"a"}}, nil),
	}
	if err := local.Replace(dir, state.History{}, "east", state.Saved{Records: records}); err != nil {
		t.Fatal(err)
	}
	file, err := local.ReadFile(local.Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	e := &stateio.Export{File: file}
	if _, _, err := e.Directory(filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	problems := fmt.Sprint(e.Problems())
	for _, want := range []string{
		"upstream east: example.com/Widget shop/w: file upstreams do not read this kind",
		"resources missing or different in the export: 1",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("no problem says %q:\n%s", want, problems)
		}
	}
	if strings.Contains(problems, "shop/good") || strings.Contains(problems, "shop/Upper") {
		t.Error(problems)
	}
}

// An export of a damaged state has only the upstreams that were found: a config with empty upstreams would delete
// their resources at clients.
func TestOfADamagedStateOnlyWhatWasFoundIsExported(t *testing.T) {
	dir := t.TempDir()
	original := filepath.Join(dir, "relay.yaml")
	text := `
upstreams:
- {name: lost, file: {path: .}}
- {name: found, file: {path: .}}
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
`
	if err := os.WriteFile(original, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(original)
	if err != nil {
		t.Fatal(err)
	}
	found := state.Contents{Name: "found", Saved: state.Saved{Records: []state.Record{
		received(t, "found", "found", "se", "shop/db", &networkingapi.ServiceEntry{Hosts: []string{"a"}}, nil),
	}}}
	for _, tc := range []struct {
		name    string
		sources []state.Contents
		want    []string
	}{
		{"one of two", []state.Contents{found}, []string{"01-found", "relay.yaml"}},
		{"none", nil, nil},
	} {
		out := filepath.Join(dir, tc.name)
		e := &stateio.Export{File: &state.File{Path: "relay.state", Damage: "torn", Sources: tc.sources}, Config: cfg, ConfigPath: original}
		_, _, err := e.Directory(out)
		if (err == nil) != (len(tc.sources) > 0) {
			t.Errorf("%s: %v", tc.name, err)
		}
		entries, _ := os.ReadDir(out)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, tc.want) {
			t.Errorf("%s: wrote %q, want %q", tc.name, names, tc.want)
		}
		if said := fmt.Sprint(e.Problems()); !strings.Contains(said, "upstream lost: nothing found in the damaged state") {
			t.Errorf("%s: said %s", tc.name, said)
		}
		if len(tc.want) == 0 {
			continue
		}
		written, err := os.ReadFile(filepath.Join(out, "relay.yaml"))
		if err != nil || strings.Contains(string(written), "lost") || !strings.Contains(string(written), "# The state was damaged") {
			t.Errorf("%v %s", err, written)
		}
	}
}

// TestAnExportStaysInItsDirectory, even if a forged state file has a path as a name.
func TestAnExportStaysInItsDirectory(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	e := &stateio.Export{File: &state.File{Path: "relay.state", Sources: []state.Contents{{Name: "x/../../evil"}}}}
	if _, _, err := e.Directory(out); err == nil || !strings.Contains(err.Error(), `"x/../../evil" is not a valid upstream name`) {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
		t.Errorf("beside the output there are %v, %v", entries, err)
	}
}

func loadConfig(path string) (*config.Config, error) {
	return config.Load(path, &xds.Config{}, &fileupstream.Config{})
}
