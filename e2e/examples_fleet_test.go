package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// fleet is what examples/fleet makes of three clusters: two relays, and a cluster each that is their upstream and client.
type fleet struct {
	t      *testing.T
	dir    string
	relays []*relay
	apis   map[string]*kubernetes
	istiod map[string]*istiod
}

// inFleet are the clusters, and what each tells the others.
var inFleet = map[string][]string{
	"east":  {"networking.istio.io/DestinationRule shop/web", "networking.istio.io/ServiceEntry shop/web"},
	"west":  {"networking.istio.io/ServiceEntry shop/cards"},
	"north": {"networking.istio.io/ServiceEntry shop/search"},
}

// script runs one of the example's scripts, with the contexts of the clusters and a real kubectl.
func (f *fleet) script(name string, args ...string) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "bash", append([]string{"../examples/fleet/" + name}, args...)...)
	var kubeconfigs []string
	for _, k := range f.apis {
		kubeconfigs = append(kubeconfigs, k.kubeconfig)
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+strings.Join(kubeconfigs, ":"), "HOME="+f.t.TempDir(),
		"RELAY="+binary(f.t, "RELAY_BIN", "../bin/relay"), "PATH="+filepath.Dir(binary(f.t, "KUBECTL_BIN", "bin/kubectl"))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// fillToken does what a controller does that these clusters do not have: it writes a token into the Secret of the account.
func (k *kubernetes) fillToken() {
	k.t.Helper()
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(k.kubeconfig), "tls.crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: relay-reader}}")
	k.apply(fmt.Sprintf(`{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, stringData: {token: %q, ca.crt: %q},
metadata: {namespace: istio-system, name: relay-reader-token, annotations: {kubernetes.io/service-account.name: relay-reader}}}`, k.token("istio-system", "relay-reader"), ca))
}

// mounted writes the Secrets that the values name, as the hub has them, into a directory as the kubelet does.
func (f *fleet) mounted() string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, "hub", "values.yaml"))
	var values struct {
		Files []struct{ Name, Secret string }
	}
	if err == nil {
		err = yaml.Unmarshal(b, &values)
	}
	dir := f.t.TempDir()
	for _, file := range values.Files {
		var secret struct{ Data map[string][]byte }
		if err == nil {
			b, err = f.apis["east"].ask(http.MethodGet, "/api/v1/namespaces/istio-system/secrets/"+file.Secret, "", nil)
		}
		if err == nil {
			err = json.Unmarshal(b, &secret)
		}
		for name, content := range secret.Data {
			writeFile(f.t, filepath.Join(mkdir(f.t, dir, file.Name), name), string(content))
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// relay returns a replica, which has not started: with the config in the values of the chart, what the chart adds, and
// addresses of its own in place of those of a pod. at is filled with them.
func (f *fleet) relay(name string, at map[string]string) *relay {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, "hub", "values.yaml"))
	var values struct{ Config map[string]any }
	if err == nil {
		err = yaml.Unmarshal(b, &values)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	home := f.t.TempDir()
	r := &relay{t: f.t, name: name, xds: freePort(f.t), admin: freePort(f.t), config: filepath.Join(home, "relay.yaml")}
	kubeconfig := filepath.Join(home, "orders.kubeconfig")
	f.apis["east"].tokenKubeconfig(kubeconfig, f.apis["east"].token("istio-system", "relay"))
	values.Config["node"] = map[string]any{"id": name}
	values.Config["state"] = map[string]any{"dir": mkdir(f.t, home, "state")}
	values.Config["admin"] = map[string]any{"address": r.admin, "socket": filepath.Join(home, "a.sock")}
	out, err := yaml.Marshal(values.Config)
	if err != nil {
		f.t.Fatal(err)
	}
	text := strings.NewReplacer("/etc/relay-files/", f.mounted()+"/", "inCluster: true", "kubeconfig: "+kubeconfig, "127.0.0.1:15010", r.xds).Replace(string(out))
	for _, port := range []string{"15012", "15101", "15102", "15103"} {
		at[port] = freePort(f.t)
		text = strings.Replace(text, "0.0.0.0:"+port, at[port], 1)
	}
	writeFile(f.t, r.config, text)
	return r
}

// balance listens as a Service does, and leads each connection to the first of some addresses that takes it.
func balance(t *testing.T, to []string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	pass := func(to, from net.Conn) {
		all.Go(func() {
			io.Copy(to, from) //nolint:errcheck // whichever ends first ends the other
			to.Close()
			from.Close()
		})
	}
	serve := func(client net.Conn) {
		for _, address := range to {
			if server, err := net.Dial("tcp", address); err == nil {
				pass(server, client)
				pass(client, server)
				return
			}
		}
		client.Close()
	}
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serve(client)
		}
	})
	return l.Addr().String()
}

// right waits until an istiod has what its cluster has, and what the others tell, and nothing else.
func (f *fleet) right(cluster string, more ...string) {
	f.t.Helper()
	want := slices.Clone(more)
	for _, keys := range inFleet {
		want = append(want, keys...)
	}
	if cluster == "east" {
		want = append(want, "security.istio.io/AuthorizationPolicy shop/web")
	}
	slices.Sort(want)
	eventually(f.t, "the istiod of "+cluster+" has what the fleet has", func() error {
		have, err := configz(f.istiod[cluster].http)
		if err != nil {
			return err
		}
		if got := slices.Sorted(maps.Keys(have)); !slices.Equal(got, want) {
			return fmt.Errorf("it has %q, want %q", got, want)
		}
		return nil
	})
}

// TestExampleFleet runs examples/fleet: three API servers, their istiods of the newest version, and two relays. It kills one
// of each, and finds every cluster right, meanwhile and afterwards.
func TestExampleFleet(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, dir: filepath.Join(t.TempDir(), "fleet"), apis: map[string]*kubernetes{}, istiod: map[string]*istiod{}}
	f.script("make.sh", f.dir, "east=10.1.0.0/16", "west=10.2.0.0/16", "north=10.3.0.0/16")
	for cluster := range inFleet {
		k := newKubernetesWith(t, cluster, "RBAC")
		f.apis[cluster] = k
		k.defineKinds("newest")
		k.createNamespace("istio-system")
		k.createNamespace("shop")
		k.applyFile("../examples/fleet/objects/" + cluster + ".yaml")
		k.fillToken()
	}
	for cluster := range inFleet {
		f.script("connect.sh", f.dir, cluster, cluster, "east")
	}
	f.script("hub.sh", f.dir, "east")
	f.apis["east"].apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: relay}}") // as the chart does
	f.apis["east"].applyFile("../deploy/kubernetes/rbac-replicas.yaml")

	at := []map[string]string{{}, {}}
	for n := range at {
		f.relays = append(f.relays, f.relay(fmt.Sprintf("meshrelay-%d", n), at[n]))
	}
	service := func(port string) string { return balance(t, []string{at[0][port], at[1][port]}) }
	for n, cluster := range []string{"east", "west", "north"} {
		i := newNativeIstiod(t, f.apis[cluster]).newest()
		b, err := os.ReadFile(filepath.Join(f.dir, "istiod", cluster+".yaml"))
		var values struct {
			MeshConfig map[string]any
			Env        map[string]string
		}
		if err == nil {
			err = yaml.Unmarshal(b, &values)
		}
		mesh, _ := yaml.Marshal(values.MeshConfig) // it was decoded
		port := fmt.Sprintf("%d", 15101+n)
		moved := strings.Replace(string(mesh), "relay.fleet.example:"+port, service(port), 1)
		if err != nil || moved == string(mesh) {
			t.Fatalf("the port of %s: %v\n%s", cluster, err, mesh)
		}
		writeFile(t, i.mesh, "trustDomain: "+cluster+".example\n"+moved)
		for name, value := range values.Env {
			i.env = append(i.env, name+"="+value)
		}
		f.istiod[cluster] = i
	}
	// Before a relay is there, an istiod ends.
	early := f.istiod["west"].start()
	eventually(t, "the istiod ends", func() error {
		if early.alive() {
			return errors.New("it runs")
		}
		return nil
	})
	for _, r := range f.relays {
		r.start()
	}
	one, two := f.relays[0].ready(), f.relays[1].ready()
	for cluster := range inFleet {
		f.istiod[cluster].start()
	}
	for cluster := range inFleet {
		f.istiod[cluster].ready()
		f.right(cluster)
	}

	// What the README shows, and what a person with a certificate sees from elsewhere.
	x := &example{t: t, name: "fleet", dir: t.TempDir(), ports: map[string]string{"127.0.0.1:15010": one.xds, "127.0.0.1:15014": one.admin}}
	readme, err := os.ReadFile("../examples/fleet/README.md")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(x.dir, "README.md"), string(readme))
	for _, words := range []string{"status", "get", "explain", "freeze", "unfreeze"} {
		x.shows(t, words)
	}
	secrets := filepath.Join(f.dir, "secrets", "operator")
	operator := []string{"get", "se", "-A", "-o", "name", "--server", service("15012"), "--server-name", "relay.fleet.example", "--ca-file", filepath.Join(secrets, "ca.crt")}
	if out, err := x.command(append(operator, "--cert-file", filepath.Join(secrets, "tls.crt"), "--key-file", filepath.Join(secrets, "tls.key"))...); err != nil || strings.Count(out, "\n") != 3 {
		t.Errorf("the operator sees %q, %v", out, err)
	}
	if out, err := x.command(operator...); err == nil {
		t.Errorf("without a certificate somebody sees %q", out)
	}

	// One of each dies. What north has told stays, what changes elsewhere arrives, and an istiod starts.
	f.apis["north"].server.kill()
	f.istiod["west"].kill()
	one.kill()
	f.apis["east"].entry("shop/new", "new.example")
	const entry = "networking.istio.io/ServiceEntry shop/"
	f.right("north", entry+"new")
	f.istiod["west"].start().ready()
	f.right("west", entry+"new")
	f.right("east", entry+"new")
	two.must(2, "status --exit-code", "north", "disconnected")

	// They come back.
	f.apis["north"].serve()
	one.start().ready()
	f.apis["north"].entry("shop/late", "late.example")
	f.apis["west"].entry("shop/more", "more.example")
	for cluster := range inFleet {
		f.right(cluster, entry+"late", entry+"more", entry+"new")
	}
	for _, r := range f.relays {
		eventually(t, r.name+" has nothing to complain of", func() error {
			if out, code := r.command("status", "--exit-code"); code != 0 {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
}
