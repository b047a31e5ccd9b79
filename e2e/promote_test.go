package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// mirrored are five kinds that a sink may have written, with a spec for objects of each.
var mirrored = []struct{ apiVersion, kind, spec string }{
	{"networking.istio.io/v1", "ServiceEntry", `{"hosts":["%s.example"],"location":"MESH_EXTERNAL"}`},
	{"networking.istio.io/v1", "VirtualService", `{"hosts":["%s.example"],"http":[{"route":[{"destination":{"host":"a.example"}}]}]}`},
	{"networking.istio.io/v1", "DestinationRule", `{"host":"%s.example"}`},
	{"networking.istio.io/v1", "Sidecar", `{"egress":[{"hosts":["./*","%s/*"]}]}`},
	{"security.istio.io/v1", "PeerAuthentication", `{"selector":{"matchLabels":{"app":"%s"}},"mtls":{"mode":"STRICT"}}`},
}

// applyAs has a manager apply an object of a kind of mirrored, with more metadata.
func (k *kubernetes) applyAs(manager string, kind int, name, metadata, host string) error {
	m := mirrored[kind]
	body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"namespace":"shop","name":%q%s},"spec":%s}`, m.apiVersion, m.kind, name, metadata, fmt.Sprintf(m.spec, host))
	return k.do(http.MethodPatch, objectPath(m.apiVersion, m.kind, "shop", name)+"?fieldManager="+manager, "application/apply-patch+yaml", []byte(body))
}

// shown is an object with its metadata as text.
type shown struct {
	Metadata json.RawMessage `json:"metadata"`
	Spec     json.RawMessage `json:"spec"`
}

// all returns the objects of mirrored by "kind name".
func (k *kubernetes) all() map[string]shown {
	k.t.Helper()
	all := map[string]shown{}
	for _, m := range mirrored {
		answer, err := k.ask(http.MethodGet, strings.TrimSuffix(objectPath(m.apiVersion, m.kind, "", ""), "/"), "", nil)
		if err != nil {
			k.t.Fatal(err)
		}
		var list struct{ Items []shown }
		if err := json.Unmarshal(answer, &list); err != nil {
			k.t.Fatal(err)
		}
		for _, o := range list.Items {
			var is struct{ Name string }
			if err := json.Unmarshal(o.Metadata, &is); err != nil {
				k.t.Fatal(err)
			}
			all[m.kind+" "+is.Name] = o
		}
	}
	return all
}

// through returns a kubeconfig of a server in front of the API server, which passes on requests for which passes returns true,
// and never answers others.
func (k *kubernetes) through(passes func(r *http.Request) bool) string {
	k.t.Helper()
	dir := filepath.Dir(k.kubeconfig)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		k.t.Fatal(err)
	}
	target, err := url.Parse(k.url)
	if err != nil {
		k.t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport, forward.FlushInterval = k.http.Transport, -1
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // else the end of the connection would not be noticed
		if err != nil || !passes(r) {
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	k.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	config, err := os.ReadFile(k.kubeconfig)
	if err != nil {
		k.t.Fatal(err)
	}
	path := filepath.Join(dir, "through.kubeconfig")
	writeFile(k.t, path, strings.ReplaceAll(string(config), k.url, s.URL))
	return path
}

// sinks returns how many objects have the label of the sink dr.
func sinks(all map[string]shown) (n int) {
	for _, o := range all {
		if strings.Contains(string(o.Metadata), `"meshrelay.io/sink":"dr"`) {
			n++
		}
	}
	return n
}

// TestADisownThatIsKilledIsCompleted disowns 200 objects of a real API server.
func TestADisownThatIsKilledIsCompleted(t *testing.T) {
	t.Parallel()
	const labels = `,"labels":{"meshrelay.io/sink":"dr","app.kubernetes.io/managed-by":"meshrelay","team":"a"},"annotations":{"meshrelay.io/version":"1","meshrelay.io/from":"east","note":"n"}`
	k := newKubernetes(t, "dr")
	k.defineIstio()
	k.createNamespace("istio-system")
	k.createNamespace("shop")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for kind := range mirrored {
		for i := range 40 {
			must(k.applyAs("meshrelay-sink-dr", kind, fmt.Sprintf("a%d", i), labels, "a"))
		}
		must(k.applyAs("meshrelay-sink-other", kind, "other", strings.Replace(labels, `"dr"`, `"other"`, 1), "a"))
		must(k.applyAs("kubectl", kind, "person", "", "a"))
	}
	before := k.all()
	// edit changes the host or hosts of an object as kubectl edit would.
	edit := func(name, host string) {
		t.Helper()
		must(k.do(http.MethodPatch, objectPath("networking.istio.io/v1", "DestinationRule", "shop", name)+"?fieldManager=kubectl-edit", "application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"host":%q}}`, host)))
	}
	edit("a0", "first.example")
	bin := binary(t, "RELAY_BIN", "../bin/relay")
	relay := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), bin, append([]string{"sink", args[0], "dr", "--kubeconfig", k.kubeconfig}, args[1:]...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}

	promoted := k.all()
	if out := relay("promote", "--yes", "--reason", "fire"); !strings.Contains(out, "sink dr is promoted") {
		t.Error(out)
	}
	for name, o := range k.all() {
		if string(o.Metadata) != string(promoted[name].Metadata) {
			t.Fatalf("a promotion touches %s: %s", name, o.Metadata)
		}
	}
	answer, err := k.ask(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/meshrelay-sink-dr", "", nil)
	if err != nil || !strings.Contains(string(answer), `"holderIdentity":"promoted"`) || !strings.Contains(string(answer), `"meshrelay.io/promoted-reason":"fire"`) {
		t.Errorf("the Lease is %s (%v)", answer, err)
	}

	// Only half of the DestinationRules get through, so that the command is killed in the middle.
	const half = 20
	written, mu := map[string]bool{}, sync.Mutex{}
	through := k.through(func(r *http.Request) bool {
		if r.Method == http.MethodGet || !strings.Contains(r.URL.Path, "/destinationrules/") {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if len(written) < half {
			written[r.URL.Path] = true
		}
		return written[r.URL.Path]
	})
	p := run(t, "disown", "", nil, bin, "sink", "disown", "dr", "--kubeconfig", through, "--yes", "--writes-per-second", "1000")
	eventually(t, "half of the DestinationRules are disowned", func() error {
		n := 0
		for name, o := range k.all() {
			if strings.HasPrefix(name, "DestinationRule a") && !strings.Contains(string(o.Metadata), "meshrelay") {
				n++
			}
		}
		if n < half {
			return fmt.Errorf("%d are: %s", n, p.out.tail())
		}
		return nil
	})
	p.kill()
	cleaned, dirty := "", ""
	for name, o := range k.all() {
		if kind, short, _ := strings.Cut(name, " "); kind == "DestinationRule" && short != "a0" && strings.HasPrefix(short, "a") {
			if strings.Contains(string(o.Metadata), "meshrelay") {
				dirty = short
			} else {
				cleaned = short
			}
		}
	}
	if cleaned == "" || dirty == "" {
		t.Fatalf("%q %q: no DestinationRule is disowned, or all are", cleaned, dirty)
	}
	edit(cleaned, "cleaned.example")
	edit(dirty, "dirty.example")
	if out := relay("disown", "--yes", "--writes-per-second", "1000"); !strings.Contains(out, "objects are disowned") {
		t.Error(out)
	}

	after := k.all()
	for name, o := range after {
		switch _, short, _ := strings.Cut(name, " "); {
		case short == "other" || short == "person":
			if string(o.Metadata) != string(before[name].Metadata) || string(o.Spec) != string(before[name].Spec) {
				t.Errorf("%s is not the sink's, and was touched: %s", name, o.Metadata)
			}
		case strings.Contains(string(o.Metadata), "meshrelay") || !strings.Contains(string(o.Metadata), `"team":"a"`) || !strings.Contains(string(o.Metadata), `"note":"n"`):
			t.Fatalf("%s: %s", name, o.Metadata)
		}
	}
	for short, host := range map[string]string{"a0": "first", cleaned: "cleaned", dirty: "dirty"} {
		if spec := after["DestinationRule "+short].Spec; string(spec) != fmt.Sprintf(`{"host":"%s.example"}`, host) {
			t.Errorf("an edit is lost: %s", spec)
		}
	}
	if n := sinks(after); n != 0 {
		t.Errorf("%d objects are still the sink's", n)
	}
}

// TestASinkWritesNothingFromPromoteToAdopt promotes a sink whose relay runs, and has something to write.
func TestASinkWritesNothingFromPromoteToAdopt(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "dr")
	k.defineIstio()
	k.createNamespace("istio-system")
	k.createNamespace("shop")
	source := filepath.Join(t.TempDir(), "shop.yaml")
	tell := func(host string) {
		t.Helper()
		var all strings.Builder
		for i := range 20 {
			fmt.Fprintf(&all, "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: a%d, labels: {team: a}, annotations: {note: n}}\nspec: {host: %s}\n", i, host)
		}
		writeFile(t, source, all.String())
	}
	tell("one.example")
	r := relayOf(t, "relay", fmt.Sprintf(`upstreams:
- {name: shop, file: {path: %q}}
views: [{name: all}]
sinks: [{name: dr, view: all, mode: apply, writesPerSecond: 1000, cluster: {kubeconfig: %q}}]
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, source, k.kubeconfig)).start().ready()
	has := func(host string) {
		t.Helper()
		eventually(t, "the sink writes "+host, func() error {
			n := 0
			for _, o := range k.all() {
				if strings.Contains(string(o.Spec), host) && strings.Contains(string(o.Metadata), `"meshrelay.io/sink":"dr"`) {
					n++
				}
			}
			if n != 20 {
				out, _ := r.command("sink", "dr")
				return fmt.Errorf("%d objects are written: %s", n, out)
			}
			return nil
		})
	}
	has("one.example")
	promoter := func(verb string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), binary(t, "RELAY_BIN", "../bin/relay"), "sink", verb, "dr", "-c", r.config, "--yes").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	promoted := k.all()
	if out := promoter("promote"); !strings.Contains(out, "sink dr is promoted") {
		t.Error(out)
	}
	tell("two.example")
	eventually(t, "the relay serves the change, and tells why it does not write it", func() error {
		if all := fmt.Sprint(r.configs()); !strings.Contains(all, "two.example") {
			return fmt.Errorf("%s", all)
		}
		if out, _ := r.command("sink", "dr"); !strings.Contains(out, "promoted") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	for name, o := range k.all() {
		if string(o.Metadata) != string(promoted[name].Metadata) {
			t.Fatalf("%s was written: %s", name, o.Metadata)
		}
	}
	if out := promoter("adopt"); !strings.Contains(out, "sink dr is the relay's again, frozen") {
		t.Error(out)
	}
	eventually(t, "the sink is frozen", func() error {
		if out, _ := r.command("sink", "dr"); !strings.Contains(out, "frozen") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out, code := r.command("sink", "diff", "dr"); code != 0 || !strings.Contains(out, "two.example") {
		t.Errorf("the difference: %d %s", code, out)
	}
	for name, o := range k.all() {
		if string(o.Metadata) != string(promoted[name].Metadata) {
			t.Fatalf("%s was written: %s", name, o.Metadata)
		}
	}
	if out, code := r.command("unfreeze", "sink/dr"); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	has("two.example")
}
