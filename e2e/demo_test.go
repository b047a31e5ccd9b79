package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"sigs.k8s.io/yaml"
)

// servedVersions are the API versions of each kind, written down here a second time
// on purpose.
var servedVersions = map[string][]string{
	"security.istio.io/AuthorizationPolicy": {"v1", "v1beta1"}, "security.istio.io/PeerAuthentication": {"v1", "v1beta1"},
	"security.istio.io/RequestAuthentication": {"v1", "v1beta1"},
	"networking.istio.io/DestinationRule":     {"v1", "v1beta1", "v1alpha3"}, "networking.istio.io/Gateway": {"v1", "v1beta1", "v1alpha3"},
	"networking.istio.io/ServiceEntry": {"v1", "v1beta1", "v1alpha3"}, "networking.istio.io/Sidecar": {"v1", "v1beta1", "v1alpha3"},
	"networking.istio.io/VirtualService": {"v1", "v1beta1", "v1alpha3"}, "networking.istio.io/WorkloadEntry": {"v1", "v1beta1", "v1alpha3"},
	"networking.istio.io/WorkloadGroup": {"v1", "v1beta1", "v1alpha3"}, "networking.istio.io/EnvoyFilter": {"v1alpha3"},
	"networking.istio.io/ProxyConfig": {"v1beta1"}, "telemetry.istio.io/Telemetry": {"v1", "v1alpha1"},
	"extensions.istio.io/WasmPlugin": {"v1alpha1"}, "extensions.istio.io/TrafficExtension": {"v1alpha1"},
	"gateway.networking.k8s.io/GatewayClass": {"v1", "v1beta1"}, "gateway.networking.k8s.io/Gateway": {"v1", "v1beta1"},
	"gateway.networking.k8s.io/HTTPRoute": {"v1", "v1beta1"}, "gateway.networking.k8s.io/GRPCRoute": {"v1"},
	"gateway.networking.k8s.io/ReferenceGrant": {"v1beta1"}, "gateway.networking.k8s.io/TCPRoute": {"v1", "v1alpha2"},
	"gateway.networking.k8s.io/TLSRoute": {"v1", "v1alpha2"}, "gateway.networking.k8s.io/UDPRoute": {"v1alpha2"},
	"gateway.networking.k8s.io/BackendTLSPolicy": {"v1"}, "gateway.networking.k8s.io/ListenerSet": {"v1"},
}

// sampleNames reads the names in the samples' directories, by "group/Kind", without
// any of the relay's code.
func sampleNames(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	paths, err := filepath.Glob("../samples/*/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split("\n"+string(b), "\n---") {
			var list struct {
				object
				Items []object `json:"items"`
			}
			if err := yaml.Unmarshal([]byte(doc), &list); err != nil {
				t.Fatalf("%s: %v", p, err)
			}
			for _, o := range append(list.Items, list.object) {
				if o.Kind == "" || o.Kind == "MeshConfig" || o.Kind == "List" {
					continue
				}
				group, _, _ := strings.Cut(o.APIVersion, "/")
				kind := group + "/" + o.Kind
				if out[kind] == nil {
					out[kind] = map[string]bool{}
				}
				out[kind][o.Metadata.Namespace+"/"+o.Metadata.Name] = true
			}
		}
	}
	return out
}

// TestDemoServesEverySampleOnce runs what make demo runs, on other ports, and asks for everything.
func TestDemoServesEverySampleOnce_S3_S13(t *testing.T) {
	t.Parallel()
	x := copyOf(t, "samples", "../samples")
	for _, name := range []string{"east", "west"} {
		x.relay(name + ".yaml").start()
	}
	c := dial(t, x.relay("relay.yaml").start().ready().xds)
	samples := sampleNames(t)
	for n := range samples["extensions.istio.io/WasmPlugin"] {
		samples["extensions.istio.io/TrafficExtension"][n+translated] = true
	}
	asked := 0
	for kind, want := range samples {
		group, name, _ := strings.Cut(kind, "/")
		versions := servedVersions[kind]
		if len(versions) == 0 {
			if !strings.HasPrefix(group, "gateway.networking.x-k8s.io") {
				t.Errorf("the samples have a kind that this test does not know: %s", kind)
			}
			continue
		}
		for _, v := range versions {
			url := group + "/" + v + "/" + name
			asked++
			got, err := c.list(url)
			if err != nil {
				t.Errorf("%s: %v", url, err)
				continue
			}
			delta := c.follow(url, nil)
			if len(got) != len(want) || delta.size() != len(want) {
				t.Errorf("%s: SotW brings %d, delta %d, want %d", url, len(got), delta.size(), len(want))
			}
			for n := range want {
				if got[n] == nil {
					t.Errorf("%s: %s is missing (SotW)", url, n)
				}
				if delta.have[n] == "" {
					t.Errorf("%s: %s is missing (delta)", url, n)
				}
			}
		}
	}
	if asked < 40 {
		t.Errorf("only %d types were asked for", asked)
	}
	if got, err := c.list("example.com/v1/Unknown"); err != nil || len(got) != 0 {
		t.Errorf("an unknown type brings %v, %v", got, err)
	}
}

// TestTheDemoIsBrokenWithoutTheCheckout: what people are told to delete is a copy, and the relay holds it.
func TestTheDemoIsBrokenWithoutTheCheckout(t *testing.T) {
	t.Parallel()
	samples := os.DirFS("../samples")
	was := filesIn(t, samples)
	var ports []string
	for range 6 {
		_, port, _ := strings.Cut(freePort(t), ":")
		ports = append(ports, port)
	}
	relay := binary(t, "RELAY_BIN", "../bin/relay")
	work := t.TempDir()
	demo := run(t, "demo", "", []string{"DEMO_PORTS=" + strings.Join(ports, " "), "RELAY=" + relay, "TMPDIR=" + work}, "../hack/demo.sh")
	var east string
	eventually(t, "the demo runs", func() error {
		out := demo.out.tail()
		_, east, _ = strings.Cut(out, "now edit or delete a file in ")
		east, _, _ = strings.Cut(east, ", a copy of the samples")
		if !strings.Contains(out, "Running until interrupted") {
			return errors.New(out)
		}
		return nil
	})
	files, err := filepath.Glob(filepath.Join(east, "*.yaml"))
	if err != nil || len(files) == 0 || !strings.HasPrefix(east, work) {
		t.Fatalf("the demo names %q, with the files %q: %v", east, files, err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the deletions are held", func() error {
		out, _ := exec.CommandContext(t.Context(), relay, "status", "--admin", "127.0.0.1:"+ports[5]).CombinedOutput() // it is degraded
		if !strings.Contains(string(out), "held") {
			return errors.New(string(out))
		}
		return nil
	})
	demo.terminate()
	if now := filesIn(t, samples); !maps.Equal(was, now) {
		t.Error("the samples in the checkout are others")
	}
}

// filesIn returns the contents of a directory, by path.
func filesIn(t *testing.T, dir fs.FS) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(dir, path)
		all[path] = string(b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRejectionDoesNotLoop_S7 rejects what comes and makes sure that nothing comes of
// it.
func TestRejectionDoesNotLoop_S7(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a.yaml"), serviceEntry("a", "a.example"))
	r := newRelay(t, "hub", []string{"files=" + dir}).start().ready()
	c := dial(t, r.xds)
	s, err := c.stub.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(req *discoveryv3.DiscoveryRequest) {
		t.Helper()
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	recv := func() *discoveryv3.DiscoveryResponse {
		t.Helper()
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	send(&discoveryv3.DiscoveryRequest{Node: testNode(), TypeUrl: seV1})
	first := recv()
	for range 5 {
		send(&discoveryv3.DiscoveryRequest{TypeUrl: seV1, ResponseNonce: first.Nonce, ErrorDetail: &rpcstatus.Status{Message: "I do not want it"}})
	}
	// The next push is the answer to the next question, and nothing else.
	for i := range 3 {
		url := fmt.Sprintf("example.com/v1/Sentinel%d", i)
		send(&discoveryv3.DiscoveryRequest{TypeUrl: url})
		if got := recv().TypeUrl; got != url {
			t.Fatalf("%s came after it was rejected", got)
		}
	}
	body, err := httpGet("http://" + r.admin + "/debug/connections")
	if err != nil || !contains(body, "I do not want it") {
		t.Errorf("the rejection is not shown (%v): %s", err, body)
	}
}
