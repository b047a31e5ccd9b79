package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// kubernetes is the API of a cluster: a kube-apiserver over an etcd of its own. Nothing
// else runs: no controllers, no nodes, no containers. What those would write, the test
// writes: a node with its zone, a pod with its status, an EndpointSlice.
type kubernetes struct {
	t          *testing.T
	name       string
	url        string
	kubeconfig string // path
	http       *http.Client
	server     *process
	serve      func() // starts the server, again on the same port and etcd
	etcd       *process
	empty      func() // has the etcd, which was killed, begin anew with nothing
	backup     func() (restore func())
	editor     string // script of "kubectl edit"
}

// adminToken is the only identity that the API server knows. It may do everything.
const adminToken = "e2e"

// newKubernetes starts the API of a cluster and waits until it serves. This takes some
// seconds and 300 MB: subtests should share one.
func newKubernetes(t *testing.T, name string) *kubernetes {
	t.Helper()
	return newKubernetesWith(t, name, "AlwaysAllow")
}

// relayToken is the identity of a relay where the server asks RBAC what it may do.
const relayToken = "relay"

// newKubernetesWith does so with an authorization mode, and more flags of the API server.
func newKubernetesWith(t *testing.T, name, mode string, flags ...string) *kubernetes {
	t.Helper()
	dir := t.TempDir()
	etcd, startEtcd := newEtcd(t, name, dir)

	certificate, key := selfSigned(t)
	crtFile, keyFile, tokens := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "tokens.csv")
	writeFile(t, crtFile, certificate)
	writeFile(t, keyFile, key)
	writeFile(t, tokens, adminToken+",admin,admin,system:masters\n"+relayToken+",relay,relay\n")
	address := freePort(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--tls-cert-file", crtFile, "--tls-private-key-file", keyFile,
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
		// It insists on a key for service accounts. None is used.
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
		"--token-auth-file", tokens, "--authorization-mode", mode,
		// The controller that would make each namespace's service account does not run.
		"--disable-admission-plugins", "ServiceAccount",
		"--enable-priority-and-fairness=false", "--profiling=false",
	}
	args = append(args, flags...)

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	k := &kubernetes{
		t: t, name: name, url: "https://" + address, kubeconfig: filepath.Join(dir, "kubeconfig"),
		http: &http.Client{Timeout: patience, Transport: transport},
	}
	writeFile(t, k.kubeconfig, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: %[1]s, cluster: {server: %[2]q, certificate-authority: %[3]q}}]
users: [{name: admin, user: {token: %[4]s}}]
contexts: [{name: %[1]s, context: {cluster: %[1]s, user: admin}}]
current-context: %[1]s
`, name, k.url, crtFile, adminToken))
	k.serve = func() {
		t.Helper()
		k.server = run(t, "kube-apiserver "+name, dir, nil, binary(t, "APISERVER_BIN", "bin/kube-apiserver"), args...)
		eventually(t, k.server.name+" is ready", func() error {
			if !k.server.alive() {
				return fmt.Errorf("it has ended")
			}
			return k.do(http.MethodGet, "/readyz", "", nil)
		})
	}
	k.etcd = startEtcd("etcd")
	emptied := 0
	k.empty = func() {
		emptied++
		k.etcd = startEtcd(fmt.Sprintf("etcd-%d", emptied))
	}
	// backup takes a copy of the etcd. restore ends the servers, and starts them with that copy.
	k.backup = func() func() {
		t.Helper()
		stop := func() { k.server.kill(); k.etcd.kill() }
		data := k.etcd.cmd.Dir
		again := func() { k.etcd = startEtcd(filepath.Base(data)); k.serve() }
		stop()
		saved := t.TempDir()
		if err := os.CopyFS(saved, os.DirFS(data)); err != nil {
			t.Fatal(err)
		}
		again()
		return func() {
			t.Helper()
			stop()
			if err := os.RemoveAll(data); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(mkdir(t, filepath.Dir(data), filepath.Base(data)), os.DirFS(saved)); err != nil {
				t.Fatal(err)
			}
			again()
		}
	}
	k.serve()
	return k
}

// newEtcd returns the URL at which an etcd will serve, and what starts it with the data that a
// directory within dir has. It does not sync its files: they go with the test.
func newEtcd(t *testing.T, name, dir string) (url string, start func(data string) *process) {
	t.Helper()
	client, peer := "http://"+freePort(t), "http://"+freePort(t)
	return client, func(data string) *process {
		t.Helper()
		data = mkdir(t, dir, data)
		return run(t, "etcd "+name, data, nil, binary(t, "ETCD_BIN", "bin/etcd"),
			"--data-dir", data, "--unsafe-no-fsync", "--log-level", "warn",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		)
	}
}

// selfSigned returns a certificate for 127.0.0.1 and its key, as PEM.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour * 24),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	crt, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: crt})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// do makes one request of the API.
func (k *kubernetes) do(method, path, contentType string, body []byte) error {
	_, err := k.ask(method, path, contentType, body)
	return err
}

// ask makes one request of the API and returns the answer.
func (k *kubernetes) ask(method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(k.t.Context(), method, k.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// apply creates or changes an object of any kind, given as YAML, as kubectl apply
// --server-side would: what an earlier apply set and this one leaves out, is removed.
func (k *kubernetes) apply(manifest string) {
	k.t.Helper()
	k.patch(manifest, "")
}

// applyStatus does the same to an object's status, which apply leaves alone.
func (k *kubernetes) applyStatus(manifest string) {
	k.t.Helper()
	k.patch(manifest, "/status")
}

func (k *kubernetes) patch(manifest, subresource string) {
	k.t.Helper()
	var o struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(manifest), &o); err != nil {
		k.t.Fatalf("%v in\n%s", err, manifest)
	}
	path := objectPath(o.APIVersion, o.Kind, o.Metadata.Namespace, o.Metadata.Name) + subresource
	if err := k.do(http.MethodPatch, path+"?fieldManager=e2e&force=true", "application/apply-patch+yaml", []byte(manifest)); err != nil {
		k.t.Fatal(err)
	}
}

// delete removes an object at once.
func (k *kubernetes) delete(apiVersion, kind, namespace, name string) {
	k.t.Helper()
	if err := k.do(http.MethodDelete, objectPath(apiVersion, kind, namespace, name)+"?gracePeriodSeconds=0", "", nil); err != nil {
		k.t.Fatal(err)
	}
}

func objectPath(apiVersion, kind, namespace, name string) string {
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	plural := strings.ToLower(kind) + "s"
	if stem, ok := strings.CutSuffix(plural, "sss"); ok {
		plural = stem + "sses"
	}
	if stem, ok := strings.CutSuffix(plural, "ys"); ok && kind != "Gateway" {
		plural = stem + "ies"
	}
	return path + "/" + plural + "/" + name
}

// createNamespace makes a namespace. labels are "key=value".
func (k *kubernetes) createNamespace(name string, labels ...string) {
	k.t.Helper()
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: %s}}", name, flow(labels)))
}

// createNode makes a node, from which the endpoints on it have their locality.
func (k *kubernetes) createNode(name, region, zone string) {
	k.t.Helper()
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {topology.kubernetes.io/region: %s, topology.kubernetes.io/zone: %s}}}",
		name, region, zone))
}

// servicePort is a port of a service and the one of its pods that it leads to.
type servicePort struct {
	name         string
	port, target int
}

// createService makes a service of the pods with the label app=NAME.
func (k *kubernetes) createService(namespace, name string, ports ...servicePort) {
	k.t.Helper()
	var spec []map[string]any
	for _, p := range ports {
		spec = append(spec, map[string]any{"name": p.name, "port": p.port, "targetPort": p.target, "protocol": "TCP"})
	}
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s}, spec: {selector: {app: %s}, ports: %s}}",
		namespace, name, name, encode(k.t, spec)))
}

// pod is an instance of a service.
type pod struct {
	name, ip string
	node     string   // none when empty
	labels   []string // in addition to app
	unready  bool
}

// inMesh is what the sidecar injector sets, by which istiod knows that a pod speaks mTLS.
const inMesh = "security.istio.io/tlsMode=istio"

// createPod makes a pod of a service that runs and has its address.
func (k *kubernetes) createPod(namespace, service string, p pod) {
	k.t.Helper()
	node := ""
	if p.node != "" {
		node = "nodeName: " + p.node + ", "
	}
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s, labels: %s}, spec: {%scontainers: [{name: app, image: app}]}}",
		namespace, p.name, flow(append([]string{"app=" + service}, p.labels...)), node))
	ready := "True"
	if p.unready {
		ready = "False"
	}
	k.applyStatus(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s}, status: {phase: Running, podIP: %s, podIPs: [{ip: %[3]s}], conditions: [{type: Ready, status: %q}]}}",
		namespace, p.name, p.ip, ready))
}

// setEndpoints makes pods the endpoints of a service, in place of those it had. ports are
// those of createService.
func (k *kubernetes) setEndpoints(namespace, service string, ports []servicePort, pods ...pod) {
	k.t.Helper()
	targets := []map[string]any{}
	for _, p := range ports {
		targets = append(targets, map[string]any{"name": p.name, "port": p.target, "protocol": "TCP"})
	}
	endpoints := []map[string]any{} // not null, which the API refuses
	for _, p := range pods {
		e := map[string]any{
			"addresses":  []string{p.ip},
			"conditions": map[string]any{"ready": !p.unready, "serving": !p.unready, "terminating": false},
			"targetRef":  map[string]any{"kind": "Pod", "namespace": namespace, "name": p.name},
		}
		if p.node != "" {
			e["nodeName"] = p.node
		}
		endpoints = append(endpoints, e)
	}
	k.apply(fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: %s, ports: %s, metadata: {namespace: %s, name: %s-1, labels: {kubernetes.io/service-name: %[4]s}}}",
		encode(k.t, endpoints), encode(k.t, targets), namespace, service))
}

// createEndpoints makes the pods and lets a service have them.
func (k *kubernetes) createEndpoints(namespace, service string, ports []servicePort, pods ...pod) {
	k.t.Helper()
	for _, p := range pods {
		k.createPod(namespace, service, p)
	}
	k.setEndpoints(namespace, service, ports, pods...)
}

// createGateway makes the service of an east-west gateway, by which an istiod knows where
// a network is entered from outside, and gives it the address that a load balancer would.
func (k *kubernetes) createGateway(namespace, name, network, ip string) {
	k.t.Helper()
	k.apply(fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s, labels: {topology.istio.io/network: %s}}, spec: {type: LoadBalancer, ports: [{name: tls, port: 15443}]}}",
		namespace, name, network))
	k.applyStatus(fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s}, status: {loadBalancer: {ingress: [{ip: %s}]}}}",
		namespace, name, ip))
}

// flow writes "key=value" pairs as a mapping of YAML.
func flow(pairs []string) string {
	var out []string
	for _, kv := range pairs {
		key, value, _ := strings.Cut(kv, "=")
		out = append(out, fmt.Sprintf("%s: %q", key, value))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// newKubernetesIstiod returns an istiod, not yet started, of a cluster that has its
// services in Kubernetes and its configs in the files of configDir. networks is its
// MeshNetworks, as YAML; sources are further configSources.
func newKubernetesIstiod(t *testing.T, k *kubernetes, networks string, sources ...string) *istiod {
	t.Helper()
	i := newIstiod(t, k.name)
	mesh := "trustDomain: " + k.name + ".example\nconfigSources:\n- address: fs://" + i.configDir + "\n"
	for _, s := range sources {
		mesh += "- address: xds://" + s + "\n"
	}
	writeFile(t, i.mesh, mesh)
	networksFile := filepath.Join(filepath.Dir(i.mesh), "networks.yaml")
	writeFile(t, networksFile, networks)
	// Of a flag that comes twice, the last counts.
	i.args = append(i.args, "--registries=Kubernetes", "--configDir=", "--kubeconfig", k.kubeconfig, "--networksConfig", networksFile)
	return i
}
