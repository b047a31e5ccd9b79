package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"meshrelay/bench/internal/watchlist"
)

const (
	adminToken = "bench"
	writers    = 32 // requests at a time
	objects    = "/apis/networking.istio.io/v1/serviceentries"
)

// cluster is a kube-apiserver over an etcd of its own. Nothing else runs.
type cluster struct {
	dir, url, etcdURL string
	certificate       string // path, as the next
	kubeconfig        string
	args              []string
	binaries          binaries
	client            *http.Client
	storeClient       *http.Client // of etcd
	etcd, server      *process
	objectBytes       int // of the first object, as the server sends it

	mu    sync.Mutex // guards seen
	seen  map[[2]int]time.Time
	waken chan struct{}
}

// newCluster starts a cluster and waits until it serves.
func newCluster(b binaries) (*cluster, error) {
	dir, err := os.MkdirTemp("", "bench-cluster-")
	if err != nil {
		return nil, err
	}
	c := &cluster{
		dir: dir, certificate: filepath.Join(dir, "tls.crt"), kubeconfig: filepath.Join(dir, "kubeconfig"),
		binaries: b, seen: map[[2]int]time.Time{}, waken: make(chan struct{}),
		storeClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: writers, IdleConnTimeout: time.Minute}},
	}
	if err := errors.Join(c.startEtcd(), c.configure()); err != nil {
		c.close()
		return nil, err
	}
	if err := errors.Join(c.serve(), c.define()); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) close() {
	for _, p := range []*process{c.server, c.etcd} {
		if p != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	_ = os.RemoveAll(c.dir)
}

func (c *cluster) startEtcd() error {
	client, err := freePort()
	if err != nil {
		return err
	}
	peer, err := freePort()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "etcd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c.etcdURL, peer = "http://"+client, "http://"+peer
	c.etcd, err = launch(exec.Command(c.binaries.etcd, "--data-dir", filepath.Join(dir, "data"), "--unsafe-no-fsync", "--log-level", "warn",
		"--quota-backend-bytes", "8589934592", "--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer), dir)
	return err
}

// configure writes the files of the API server.
func (c *cluster) configure() error {
	address, err := freePort()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	c.url = "https://" + address
	key, tokens := filepath.Join(c.dir, "tls.key"), filepath.Join(c.dir, "tokens.csv")
	if err := selfSigned(c.certificate, key); err != nil {
		return err
	}
	c.args = []string{
		"--etcd-servers", c.etcdURL, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--tls-cert-file", c.certificate, "--tls-private-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", tokens, "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount",
		"--enable-priority-and-fairness=false", "--profiling=false", "--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000",
	}
	if c.client, err = watchlist.Client(c.certificate); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600),
		os.WriteFile(c.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: bench, context: {cluster: bench, user: admin}}]
current-context: bench
`, c.url, c.certificate, adminToken), 0o600))
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(certificate, key string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	crt, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: crt}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}

// serve starts the API server, again on the same port and etcd.
func (c *cluster) serve() (err error) {
	if c.server, err = launch(exec.Command(c.binaries.apiserver, c.args...), c.dir); err != nil {
		return err
	}
	return c.eventually("/readyz")
}

func (c *cluster) eventually(path string) (err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err = c.ask(http.MethodGet, path, "", nil); err == nil {
			return nil
		}
		if err := c.server.alive(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not serve %s: %w", c.url, path, err)
}

// settle waits, for patience at most, until the server and its store have little to do: they go on with
// what was written and read before, and whoever comes next would seem slow.
func (c *cluster) settle() {
	const calm, little = 3, 250 * time.Millisecond
	used := func() time.Duration { return c.server.cpu() + c.etcd.cpu() }
	deadline := time.Now().Add(patience)
	for before, quiet := used(), 0; quiet < calm && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		now := used()
		if quiet++; now-before > little {
			quiet = 0
		}
		before = now
	}
}

// ask makes one request and returns the answer.
func (c *cluster) ask(method, path, contentType string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", contentType)
	resp, err := c.client.Do(req)
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

const definition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "serviceentries.networking.istio.io"}, "spec": {"group": "networking.istio.io", "scope": "Namespaced",
"names": {"kind": "ServiceEntry", "listKind": "ServiceEntryList", "plural": "serviceentries", "singular": "serviceentry"},
"versions": [%s]}}`

const definedVersion = `{"name": %q, "served": true, "storage": %t, "subresources": {"status": {}},
"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}`

// define has the server serve ServiceEntries, and makes the namespaces.
func (c *cluster) define() error {
	var versions bytes.Buffer
	for i, v := range []string{"v1", "v1beta1", "v1alpha3"} {
		if i > 0 {
			versions.WriteByte(',')
		}
		fmt.Fprintf(&versions, definedVersion, v, i == 0)
	}
	_, err := c.ask(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json", fmt.Appendf(nil, definition, versions.Bytes()))
	for n := range namespaces {
		_, failed := c.ask(http.MethodPost, "/api/v1/namespaces", "application/json", fmt.Appendf(nil, `{"metadata": {"name": "team-%02d"}}`, n))
		err = errors.Join(err, failed)
	}
	return errors.Join(err, c.eventually(objects))
}

// inParallel calls f for 0 to n-1, some at a time.
func inParallel(n int, f func(int) error) error {
	next, failed := make(chan int), make(chan error, writers)
	for range writers {
		go func() {
			var err error
			for i := range next {
				if err == nil {
					err = f(i)
				}
			}
			failed <- err
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	var errs []error
	for range writers {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// create makes an object and returns when the server has made it.
func (c *cluster) create(index int, spec []byte) (created time.Time, err error) {
	answer, err := c.ask(http.MethodPost, objectPath(index, ""), "application/json", object(index, spec))
	if err != nil {
		return created, err
	}
	var made struct {
		Metadata struct {
			CreationTimestamp time.Time `json:"creationTimestamp"`
		} `json:"metadata"`
	}
	if index == 0 {
		c.objectBytes = len(answer)
	}
	return made.Metadata.CreationTimestamp, errors.Join(json.Unmarshal(answer, &made), nil)
}

// patch changes an object.
func (c *cluster) patch(index int, patch []byte) error {
	_, err := c.ask(http.MethodPatch, objectPath(index, itemShort(index)), "application/merge-patch+json", patch)
	return err
}

// writeStatus changes the status of an object where the API server keeps it: of patches it takes about 300 a
// second on two cores, and all who watch it see the same.
func (c *cluster) writeStatus(index, generation int) error {
	key := fmt.Appendf(nil, "/registry/networking.istio.io/serviceentries/team-%02d/%s", index%namespaces, itemShort(index))
	var found struct {
		Kvs []struct{ Value []byte }
	}
	if err := c.store("range", map[string][]byte{"key": key}, &found); err != nil {
		return err
	}
	if len(found.Kvs) != 1 {
		return fmt.Errorf("etcd has %d of %s", len(found.Kvs), key)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(found.Kvs[0].Value, &fields); err != nil {
		return err
	}
	fields["status"] = fmt.Appendf(nil, `{"observedGeneration": %d}`, generation)
	value, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return c.store("put", map[string][]byte{"key": key, "value": value}, nil)
}

// store asks etcd.
func (c *cluster) store(operation string, request map[string][]byte, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return c.storeText(operation, body, answer)
}

// storeText is store for a request in JSON.
func (c *cluster) storeText(operation string, body []byte, answer any) error {
	resp, err := c.storeClient.Post(c.etcdURL+"/v3/kv/"+operation, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd: %s: %s", resp.Status, text)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}

func objectPath(index int, name string) string {
	path := fmt.Sprintf("/apis/networking.istio.io/v1/namespaces/team-%02d/serviceentries", index%namespaces)
	if name != "" {
		path += "/" + name
	}
	return path
}

func itemShort(index int) string { return fmt.Sprintf("service-%06d", index) }

// expire has watches of what was before begin anew with a list: the API server starts again, over
// an etcd that has gone on meanwhile.
func (c *cluster) expire() error {
	_ = c.server.cmd.Process.Kill()
	<-c.server.ended
	c.client.CloseIdleConnections()
	if err := c.store("put", map[string][]byte{"key": []byte("bench"), "value": []byte("bench")}, nil); err != nil {
		return err
	}
	return c.serve()
}

// follow reads all changes from now on and notes when it has each, until the returned function is
// called. A server that has just begun does not serve at once.
func (c *cluster) follow() (stop func(), err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if stop, err = c.followOnce(); err == nil {
			return stop, nil
		}
	}
	return nil, err
}

func (c *cluster) followOnce() (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	synced, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		following := false
		ended <- watchlist.Read(ctx, c.client, c.url+objects, adminToken, func(frame []byte) {
			now := time.Now()
			if i := bytes.IndexByte(frame, markerByte); following && i >= 0 && len(frame) >= i+markerLen {
				if index, seq, ok := parseMarker(frame[i : i+markerLen]); ok {
					c.saw(index, seq, now)
				}
			}
		}, func() { following = true; close(synced) })
	}()
	select {
	case <-synced:
		return func() { cancel(); <-ended }, nil //nolint:errcheck // it ends because of that
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("the raw reader: %w", err)
	}
}

func (c *cluster) saw(index, seq int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[[2]int{index, seq}] = now
	close(c.waken)
	c.waken = make(chan struct{})
}

// seenAt waits until the raw reader has a change, and returns when that was.
func (c *cluster) seenAt(index, seq int) (time.Time, error) {
	for deadline := time.After(patience); ; {
		c.mu.Lock()
		at, ok := c.seen[[2]int{index, seq}]
		waken := c.waken
		c.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-waken:
		case <-deadline:
			return at, errors.New("the raw reader has not seen the change")
		}
	}
}
