package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// oddNames are names that Kubernetes would refuse, by namespace.
var oddNames = [][2]string{
	{"public", "consumers:cn.example.Service::.DEFAULT-GROUP.public"},
	{"public", `it's a "name" #1?x=%2F&y=+;|$(id)` + "`id`\\"},
	{"Public_NS", ".."},
	{"öffentlich", "größe\u202e\tx"},
	{"public", "*"},
}

const oddURL = "networking.istio.io/v1/ServiceEntry"

// odd is a resource with such a name, hosts in upper case, and labels and ports that Kubernetes would refuse.
func odd(name [2]string, at int) fakexds.Resource {
	labels := map[string]string{"side": "left/right ü", "a label": "-", "app": "web"}
	return fakexds.MCP(name[0]+"/"+name[1], &networking.ServiceEntry{
		Hosts: []string{fmt.Sprintf("Consumers-%d.DEFAULT-GROUP.public.nacos", at)}, Resolution: networking.ServiceEntry_STATIC,
		Ports:     []*networking.ServicePort{{Number: 0, Name: "DUBBO", Protocol: "Dubbo"}},
		Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1", Labels: labels}},
	}, func(m *mcp.Resource) {
		m.Metadata.Labels, m.Metadata.Annotations = labels, map[string]string{"An Annotation/with/slashes": "1"}
	})
}

// content returns what must not change of a resource: name, labels, annotations of its source, and the bytes of its body.
func content(t *testing.T, element *anypb.Any) (name, text string) {
	t.Helper()
	m := &mcp.Resource{}
	if err := element.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	delete(m.Metadata.Annotations, mirror.ProvenanceAnnotation)
	labels, err := json.Marshal([]any{m.Metadata.Labels, m.Metadata.Annotations})
	if err != nil {
		t.Fatal(err)
	}
	return m.Metadata.Name, fmt.Sprintf("%s %s %x", labels, m.Body.TypeUrl, m.Body.Value)
}

// wants returns the content of resources by name.
func wants(t *testing.T, all []fakexds.Resource) map[string]string {
	want := map[string]string{}
	for _, r := range all {
		name, text := content(t, r.Any)
		want[name] = text
	}
	return want
}

// received returns the content that a relay serves with either protocol, by name.
func received(t *testing.T, address string, delta bool) map[string]string {
	t.Helper()
	conn := dial(t, address)
	defer conn.Close()
	client, node, got := discoveryv3.NewAggregatedDiscoveryServiceClient(conn), &corev3.Node{Id: "client"}, map[string]string{}
	take := func(element *anypb.Any) {
		name, text := content(t, element)
		got[name] = text
	}
	if !delta {
		stream, err := client.StreamAggregatedResources(t.Context())
		if err != nil || stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: oddURL}) != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.Resources {
			take(r)
		}
		return got
	}
	stream, err := client.DeltaAggregatedResources(t.Context())
	if err != nil || stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: oddURL}) != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Resources {
		take(r.Resource)
		if name, _ := content(t, r.Resource); name != r.Name {
			t.Errorf("the element of %q is called %q", name, r.Name)
		}
	}
	return got
}

func wantContent(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: %q is\n%s, want\n%s", what, name, got[name], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d resources, want %d", what, len(got), len(want))
	}
}

// chain is a source and two relays behind one another, of which the first has a disk.
type chain struct {
	source    *fakexds.Server
	all       []fakexds.Resource
	state     string
	near, far running
	stop      func() // the near relay
	start     func()
}

func newChain(t *testing.T) *chain {
	c := &chain{source: fakexds.Start(t, &fakexds.Server{}), state: filepath.Join(t.TempDir(), "state")}
	for i, name := range oddNames {
		c.all = append(c.all, odd(name, i))
	}
	c.source.Set(oddURL, c.all...)
	ports := freePorts(t, 4)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	c.near, c.far = running{xds: address(0), admin: address(1)}, running{xds: address(2), admin: address(3)}
	config := func(r running, name, more, upstream string) string {
		return fmt.Sprintf("node: {id: %s}\nadmin: {address: %q}\ndownstream: {startupTimeout: 500ms, listeners: [{address: %q, plaintext: true}]}\n%supstreams: [{name: %s-up, guard: {percent: 100}, xds: {addresses: [%q], plaintext: true}}]\n", name, r.admin, r.xds, more, name, upstream)
	}
	near := config(c.near, "near", fmt.Sprintf("state: {dir: %q}\n", c.state), c.source.Addr)
	c.start = func() { c.stop = serveConfig(t, near) }
	c.start()
	c.near.awaitReady(t)
	serveConfig(t, config(c.far, "far", "", c.near.xds))
	c.far.awaitReady(t)
	return c
}

func (c *chain) awaitServed(t *testing.T, r running, n int) {
	t.Helper()
	await.Until(t, fmt.Sprintf("%d resources", n), func() bool {
		objects, err := admin.Client{Address: r.admin}.Resources(t.Context())
		return err == nil && len(objects) == n
	})
}

// TestNamesThatKubernetesRefusesPassByteForByte through two relays with either protocol, a restart from disk, a resumed
// stream and a deletion.
func TestNamesThatKubernetesRefusesPassByteForByte(t *testing.T) {
	c := newChain(t)
	want := wants(t, c.all)
	for _, r := range []running{c.near, c.far} {
		c.awaitServed(t, r, len(c.all))
		wantContent(t, "SotW from "+r.xds, received(t, r.xds, false), want)
		wantContent(t, "delta from "+r.xds, received(t, r.xds, true), want)
	}

	c.source.Fail(io.ErrUnexpectedEOF)
	c.source.End(io.ErrUnexpectedEOF)
	c.stop()
	c.start()
	c.awaitServed(t, c.near, len(c.all))
	wantContent(t, "from disk", received(t, c.near.xds, true), want)
	await.Until(t, "the far relay is in contact again", func() bool {
		ups, err := admin.Client{Address: c.far.admin}.Upstreams(t.Context())
		return err == nil && ups[0].State == "synced" && ups[0].Reconnects > 0
	})
	wantContent(t, "after the stream was resumed", received(t, c.far.xds, true), want)
	page, err := admin.Client{Address: c.far.admin}.Events(t.Context(), map[string][]string{"type": {"changed"}})
	if err != nil || len(page.Events) == 0 {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		if e.Resources != nil && e.Resources.Removed > 0 {
			t.Errorf("the resumed stream removed resources: %+v", e.Resources)
		}
	}

	c.source.Fail(nil)
	c.source.Set(oddURL, c.all[1:]...)
	await.Until(t, "a client is not sent what was deleted", func() bool { return len(received(t, c.far.xds, true)) < len(c.all) })
	wantContent(t, "after a deletion", received(t, c.far.xds, true), wants(t, c.all[1:]))
}

// relayPrints runs a command and returns what it prints.
func relayPrints(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := execute(args, &stdout, &stderr); code != 0 {
		t.Fatalf("relay %q: exit code %d: %s%s", args, code, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// TestToolsTakeNamesThatKubernetesRefuses: all commands, the page and the support bundle.
func TestToolsTakeNamesThatKubernetesRefuses(t *testing.T) {
	c := newChain(t)
	c.awaitServed(t, c.far, len(c.all))
	server, at := "--server="+c.near.xds, "--admin="+c.near.admin
	table := relayPrints(t, "get", "se", "-A", server)
	markdown := relayPrints(t, "get", "se", "-A", "-o", "json", server)
	for i, name := range oddNames {
		full := name[0] + "/" + name[1]
		if quoted := strings.NewReplacer("\u202e", "?", "\t", "?").Replace(text.Name(name[1])); !strings.Contains(table, quoted) || name[1] != ".." && quoted[0] != '\'' {
			t.Errorf("the table has no %s:\n%s", quoted, table)
		}
		host := fmt.Sprintf("Consumers-%d.DEFAULT-GROUP.public.nacos", i)
		for what, printed := range map[string]string{
			"get":     relayPrints(t, "get", "se", name[1], "-n", name[0], "-o", "yaml", server),
			"get all": markdown,
			"explain": relayPrints(t, "explain", "se", name[1], "-n", name[0], "-o", "json", at),
			"ns/name": relayPrints(t, "explain", "se", full, "-o", "json", at),
		} {
			if !strings.Contains(printed, host) && what[0] == 'g' || what[0] != 'g' && !strings.Contains(printed, `"outcome": "served"`) {
				t.Errorf("%s of %q: %s", what, full, printed)
			}
		}
		if got := relayPrints(t, "explain", "se", full, at); !strings.Contains(got, strings.NewReplacer("\u202e", "?", "\t", "?").Replace(text.Name(full))+" is served") {
			t.Errorf("explain of %q: %s", full, got)
		}
		if e, err := (admin.Client{Address: c.near.admin}).Explain(t.Context(), "se", name[0], name[1]); err != nil || e.Outcome != admin.Served || e.Namespace != name[0] || e.Name != name[1] {
			t.Errorf("the client explains %q: %+v %v", full, e, err)
		}
	}
	if got := relayPrints(t, "diff", c.near.xds, c.far.xds, "--kinds", "se"); !strings.Contains(got, "No differences") {
		t.Errorf("diff: %s", got)
	}
	if got := relayPrints(t, "events", "--type", "changed", at); !strings.Contains(got, "se 'public/consumers:cn.example.Service::.DEFAULT-GROUP.public'") && !strings.Contains(got, "more") {
		t.Errorf("events: %s", got)
	}
	archive := filepath.Join(t.TempDir(), "support.tar.gz")
	relayPrints(t, "support-bundle", "-o", archive, "--seconds", "0", "--with-resources", at)
	files := archived(t, archive)
	for i := range oddNames {
		host := fmt.Sprintf("Consumers-%d.DEFAULT-GROUP.public.nacos", i)
		if !slices.ContainsFunc(slices.Collect(maps.Values(files)), func(text string) bool { return strings.Contains(text, host) }) {
			t.Errorf("the support bundle has no %s, in the files %q", host, slices.Collect(maps.Keys(files)))
		}
	}
}

// get returns a page.
func getPage(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", address, resp.Status, err)
	}
	return string(page)
}

// TestLinksOfThePageLeadToNamesThatKubernetesRefuses, and what they show has the commands for a shell.
func TestLinksOfThePageLeadToNamesThatKubernetesRefuses(t *testing.T) {
	c := newChain(t)
	base := "http://" + c.near.admin
	list := getPage(t, base+"/ui/resources")
	links := regexp.MustCompile(`href="(/ui/resource\?[^"]*)"`).FindAllStringSubmatch(list, -1)
	seen := map[string]bool{}
	for _, link := range links {
		page := html.UnescapeString(getPage(t, base+html.UnescapeString(link[1])))
		for i, name := range oddNames {
			if !strings.Contains(page, fmt.Sprintf("Consumers-%d.DEFAULT-GROUP.public.nacos", i)) {
				continue
			}
			seen[name[1]] = true
			command := commandsOf(t, base+html.UnescapeString(link[1]))
			explain := slices.IndexFunc(command, func(s string) bool { return strings.HasPrefix(s, "relay explain") })
			if explain < 0 {
				t.Fatalf("no command to explain %q: %q", name, command)
			}
			if strings.ContainsAny(name[1], "\t\u202e") {
				continue
			}
			if args := words(t, command[explain]); !slices.Contains(args, name[1]) {
				t.Errorf("a shell makes %q of %q", args, command[explain])
			}
		}
	}
	if len(seen) != len(oddNames) {
		t.Errorf("the links of the list lead to %v", seen)
	}
}

// TestAStateWithNamesThatKubernetesRefusesIsRead as YAML that a relay serves byte for byte.
func TestAStateWithNamesThatKubernetesRefusesIsRead(t *testing.T) {
	c := newChain(t)
	c.awaitServed(t, c.near, len(c.all))
	c.stop()
	dir, config := t.TempDir(), filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(relayPrints(t, "get", "se", "-A", "-o", "yaml", "--state", c.state)), 0o600); err != nil {
		t.Fatal(err)
	}
	upstream := fmt.Sprintf("upstreams: [{name: near-up, file: {path: %q}}]\n", dir)
	if err := os.WriteFile(config, []byte(upstream+"downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := runRelay(t, upstream)
	c.awaitServed(t, again, len(c.all))
	got := received(t, again.xds, true)
	for name, want := range wants(t, c.all) {
		have, body, _ := strings.Cut(got[name], " type.googleapis.com")
		wanted, wantBody, _ := strings.Cut(want, " type.googleapis.com")
		if have != wanted || !sameBody(t, body, wantBody) {
			t.Errorf("%q is\n%s, want\n%s", name, got[name], want)
		}
	}
	_, found := examined(t, fmt.Sprintf("file: {path: %q}", dir), "")
	wantObjections(t, found, len(c.all))
	var stdout, stderr bytes.Buffer
	if code := execute([]string{"validate", "-c", config}, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "upstream near-up: Kubernetes or the validation of an istiod would refuse 5 resources: ") {
		t.Errorf("validate: exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
	if got := relayPrints(t, "diff", again.xds, dir); !strings.Contains(got, "No differences") {
		t.Errorf("diff: %s", got)
	}
}

// sameBody compares encoded bodies: those of files have another order of map entries.
func sameBody(t *testing.T, a, b string) bool {
	t.Helper()
	decode := func(text string) *networking.ServiceEntry {
		var value []byte
		se := &networking.ServiceEntry{}
		if _, err := fmt.Sscanf(text[strings.LastIndex(text, " ")+1:], "%x", &value); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(value, se); err != nil {
			t.Fatal(err)
		}
		return se
	}
	return proto.Equal(decode(a), decode(b))
}

// wantObjections checks that doctor warns about n resources, and names some with the reason.
func wantObjections(t *testing.T, found []doctor.Finding, n int) {
	t.Helper()
	i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "names" })
	if i < 0 {
		t.Fatalf("no finding about names: %+v", found)
	}
	f := found[i]
	if f.Level != doctor.Warning || f.Upstream != "east" || !strings.Contains(f.What, fmt.Sprintf("would refuse %d resources", n)) || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	if strings.Count(f.Why, "; ") > 5 {
		t.Errorf("the list is long: %s", f.Why)
	}
}

// TestDoctorNamesWhatConsumersWouldRefuse: it warns only, and bounds the list.
func TestDoctorNamesWhatConsumersWouldRefuse(t *testing.T) {
	good := func(name string) fakexds.Resource {
		return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{"A.example"}, Ports: []*networking.ServicePort{{Number: 80}}})
	}
	entry := func(name string, change func(*networking.ServiceEntry)) fakexds.Resource {
		se := &networking.ServiceEntry{Hosts: []string{"a.example"}, Ports: []*networking.ServicePort{{Number: 80}}}
		change(se)
		return fakexds.MCP(name, se)
	}
	labelled := fakexds.MCP("shop/l", &networking.ServiceEntry{}, func(m *mcp.Resource) { m.Metadata.Labels = map[string]string{"side": "a/b"} })
	for name, tc := range map[string]struct {
		r   fakexds.Resource
		why string
	}{
		"name":      {good("shop/a:B"), "networking.istio.io/ServiceEntry shop/a:B: its name is not of at most 253 lower-case letters, digits, dashes and dots"},
		"namespace": {good("Shop/a"), "networking.istio.io/ServiceEntry Shop/a: its namespace is not of at most 63 lower-case letters, digits and dashes"},
		"label":     {labelled, `shop/l: the label "side" has the value "a/b"`},
		"port":      {entry("shop/p", func(se *networking.ServiceEntry) { se.Ports[0].Number = 0 }), "shop/p: its port 1 has the number 0"},
		"endpoint label": {entry("shop/e", func(se *networking.ServiceEntry) {
			se.Endpoints = []*networking.WorkloadEntry{{Labels: map[string]string{"a b": ""}}}
		}), `shop/e: the label "a b" has the value ""`},
		"none": {good("shop/fine"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Set(oddURL, tc.r, good("shop/other"))
			code, found := examined(t, fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", s.Addr), "")
			if tc.why == "" {
				if code != 0 || slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == "names" }) {
					t.Errorf("exit code %d, %+v", code, found)
				}
				return
			}
			wantOne(t, code, found, doctor.Warning, "names", regexp.QuoteMeta(tc.why), "they are served as they came")
		})
	}
	s := fakexds.Start(t, &fakexds.Server{})
	var many []fakexds.Resource
	for i := range 1000 {
		many = append(many, good(fmt.Sprintf("shop/UPPER-%04d", i)))
	}
	s.Set(oddURL, many...)
	_, found := examined(t, fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", s.Addr), "")
	wantObjections(t, found, 1000)
}
