package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/cli"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// cluster is a kube-apiserver over an etcd. No controllers run: the tests make what those would.
type cluster struct {
	t        *testing.T
	settings *cli.EnvSettings // of Helm
	client   dynamic.Interface
}

// newCluster starts a cluster with the namespace istio-system and the definitions in testdata.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("KUBECACHEDIR", filepath.Join(dir, "cache"))
	t.Setenv("HELM_CACHE_HOME", filepath.Join(dir, "helm"))
	etcd, peer, address := "http://"+freePort(t), "http://"+freePort(t), freePort(t)
	start(t, dir, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	crt, key := selfSigned(t)
	crtFile, keyFile := write(t, dir, "tls.crt", crt), write(t, dir, "tls.key", key)
	tokens := write(t, dir, "tokens.csv", "e2e,admin,admin,system:masters\n")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	start(t, dir, "kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--tls-cert-file", crtFile, "--tls-private-key-file", keyFile,
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
		"--token-auth-file", tokens, "--authorization-mode", "RBAC",
		// The controller that would make each namespace's service account does not run.
		"--disable-admission-plugins", "ServiceAccount", "--enable-priority-and-fairness=false", "--profiling=false")

	c := &cluster{t: t, settings: cli.New()}
	c.settings.KubeConfig = write(t, dir, "kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: e2e}}]
contexts: [{name: c, context: {cluster: c, user: admin, namespace: %s}}]
current-context: c
`, "https://"+address, crtFile, namespace))
	c.settings.SetNamespace(namespace)
	c.settings.QPS, c.settings.BurstLimit = 1000, 1000
	config, err := c.settings.RESTClientGetter().ToRESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the API server is ready", func() error { return ready(t.Context(), config) })
	for _, name := range []string{namespace, "fleet", "fleet-test"} {
		// What a pod may do is that of the standard "restricted".
		o := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{
			"name": name, "labels": object{"pod-security.kubernetes.io/enforce": "restricted"},
		}}
		if err := c.create(o, false); err != nil {
			t.Fatal(err)
		}
	}
	for text := range strings.SplitSeq(string(read(t, "testdata/crds.yaml")), "\n---\n") {
		if err := c.create(decode(t, []byte(text)), false); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the definitions are served", func() error {
		_, err := c.list(schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "prometheusrules"})
		return err
	})
	return c
}

// ready asks whether the API server has made what it makes at its start.
func ready(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// start runs a program of e2e/bin until the test ends, and shows its output if the test fails.
func start(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	path, err := filepath.Abs("../../e2e/bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make kube", err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its exit code is that of the kill
		if t.Failed() {
			t.Logf("%s:\n%s", name, out.Bytes()[max(0, out.Len()-4000):])
		}
	})
}

// eventually waits for so long that only a test that hangs meets the end.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// freePort returns a port that a socket keeps for the test, without listening: SO_REUSEADDR lets the program listen on it.
func freePort(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(socket) })
	if err = syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// selfSigned returns a certificate for 127.0.0.1 and its key, as PEM.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
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

// resource returns where the server has objects such as o, in its namespace or istio-system.
func (c *cluster) resource(o object) (dynamic.ResourceInterface, error) {
	u := unstructured.Unstructured{Object: o}
	mapper, err := c.settings.RESTClientGetter().ToRESTMapper()
	if err != nil {
		return nil, err
	}
	gvk := u.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.client.Resource(mapping.Resource), nil
	}
	in := u.GetNamespace()
	if in == "" {
		in = namespace
	}
	return c.client.Resource(mapping.Resource).Namespace(in), nil
}

// create creates an object with strict validation: unknown and repeated fields are errors.
func (c *cluster) create(o object, dryRun bool) error {
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	options := metav1.CreateOptions{FieldManager: "kubectl", FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err = r.Create(c.t.Context(), &unstructured.Unstructured{Object: o}, options)
	return err
}

func (c *cluster) get(o object) (object, error) {
	r, err := c.resource(o)
	if err != nil {
		return nil, err
	}
	have, err := r.Get(c.t.Context(), at(o, "metadata", "name").(string), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return have.Object, nil
}

func (c *cluster) list(gvr schema.GroupVersionResource) ([]unstructured.Unstructured, error) {
	list, err := c.client.Resource(gvr).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// inventory returns all objects of all kinds, without those that the server makes for itself.
func (c *cluster) inventory() []string {
	c.t.Helper()
	discovery, err := c.settings.RESTClientGetter().ToDiscoveryClient()
	if err != nil {
		c.t.Fatal(err)
	}
	discovery.Invalidate()
	lists, err := discovery.ServerPreferredResources()
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, r := range l.APIResources {
			own := []string{"APIService", "ComponentStatus", "Endpoints", "Event", "IPAddress", "Lease"}
			if !slices.Contains(r.Verbs, "list") || slices.Contains(own, r.Kind) {
				continue
			}
			items, err := c.list(gv.WithResource(r.Name))
			if err != nil {
				c.t.Fatal(err)
			}
			for _, o := range items {
				if in := o.GetNamespace(); in == "default" || strings.HasPrefix(in, "kube-") {
					continue
				}
				all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", o.GetNamespace(), o.GetKind(), o.GetName())))
			}
		}
	}
	slices.Sort(all)
	return all
}
