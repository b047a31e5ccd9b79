package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	kubeBinaries = "../e2e/bin"
	adminToken   = "chaos"
)

// program is a process that is started again and again with the same arguments.
type program struct {
	name string
	path string
	args []string
	log  *boundedLog

	mu   sync.Mutex // guards all below
	cmd  *exec.Cmd
	done chan struct{}
}

func newProgram(name, path, dir string, args ...string) (*program, error) {
	log, err := newBoundedLog(filepath.Join(dir, name+".log"), logBytes)
	return &program{name: name, path: path, args: args, log: log}, err
}

// start runs it, unless it runs.
func (p *program) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		select {
		case <-p.done:
		default:
			return nil
		}
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w: `make kube` builds it", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait() // it is ended by a signal
		close(done)
	}()
	return nil
}

// signal sends a signal, and waits for the end of the process after SIGKILL.
func (p *program) signal(s syscall.Signal) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(s) // it may have ended
	if s == syscall.SIGKILL {
		<-done
	}
}

// site is the API of a cluster: a kube-apiserver over an etcd.
type site struct {
	dir, address    string // where the API server listens
	etcdURL         string
	certificate     string // path
	etcd, apiserver *program
	client          *http.Client
}

func newSite(dir string) (*site, error) {
	c := &site{dir: dir, address: freePort(), etcdURL: "http://" + freePort(), certificate: filepath.Join(dir, "tls.crt")}
	key, tokens := filepath.Join(dir, "tls.key"), filepath.Join(dir, "tokens.csv")
	if err := errors.Join(siteCertificate(c.certificate, key), os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600)); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	peer := "http://" + freePort()
	if c.etcd, err = newProgram("etcd", filepath.Join(kubeBinaries, "etcd"), dir,
		"--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "warn", "--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return nil, err
	}
	ip, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return nil, err
	}
	// Objects are kept as JSON, and their past stays: the model reads them in etcd.
	c.apiserver, err = newProgram("kube-apiserver", filepath.Join(kubeBinaries, "kube-apiserver"), dir,
		"--etcd-servers", c.etcdURL, "--storage-media-type", "application/json", "--etcd-compaction-interval", "0",
		"--bind-address", ip, "--advertise-address", "127.0.0.1", "--secure-port", port, "--tls-cert-file", c.certificate, "--tls-private-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", tokens, "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount",
		"--enable-priority-and-fairness=false", "--profiling=false")
	return c, err
}

// start runs both, and defines the kinds and namespaces.
func (c *site) start(ctx context.Context) error {
	if err := errors.Join(c.etcd.start(), c.apiserver.start()); err != nil {
		return err
	}
	if err := c.await(ctx, "/readyz"); err != nil {
		return err
	}
	module := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api")
	dir, err := module.Output()
	if err != nil {
		return fmt.Errorf("the module istio.io/api, which has the definitions, is not found: %w", err)
	}
	all, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "kubernetes", "customresourcedefinitions.gen.yaml"))
	if err != nil {
		return err
	}
	for doc := range strings.SplitSeq(string(all), "\n---\n") {
		for _, k := range kinds {
			name := pluralOf(k) + "." + k.group
			if !strings.Contains(doc, "\n  name: "+name+"\n") {
				continue
			}
			if err := c.apply(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, []byte(doc)); err != nil {
				return err
			}
		}
	}
	for _, name := range append(numbered("team", 17), "istio-system") {
		if err := c.apply(ctx, "/api/v1/namespaces/"+name, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, name)); err != nil {
			return err
		}
	}
	for _, k := range kinds {
		if err := c.await(ctx, "/apis/"+k.group+"/v1/"+pluralOf(k)); err != nil {
			return err
		}
	}
	return nil
}

func (c *site) close() {
	for _, p := range []*program{c.apiserver, c.etcd} {
		if p != nil {
			p.signal(syscall.SIGKILL)
			p.log.close()
		}
	}
	c.client.CloseIdleConnections()
}

// pluralOf is the plural of a kind in paths.
func pluralOf(k *kind) string {
	name := strings.ToLower(k.name)
	if stem, is := strings.CutSuffix(name, "y"); is {
		return stem + "ies"
	}
	return name + "s"
}

// pathOf is the path of the object of a key.
func pathOf(key int) string {
	k := kinds[key%len(kinds)]
	namespace, name, _ := strings.Cut(keyName(key), "/")
	return "/apis/" + k.group + "/v1/namespaces/" + namespace + "/" + pluralOf(k) + "/" + name
}

func (c *site) await(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := c.ask(ctx, http.MethodGet, path, "", nil)
		if err == nil {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the API server does not serve %s: %w: its log is %s", path, err, c.apiserver.log.path)
		}
	}
}

// apply creates or changes an object by server-side apply, as somebody who is no relay.
func (c *site) apply(ctx context.Context, path string, object []byte) error {
	return c.ask(ctx, http.MethodPatch, path+"?fieldManager=somebody&force=true", "application/apply-patch+yaml", object)
}

// ask makes one request. An answer that is no success is an error.
func (c *site) ask(ctx context.Context, method, path, contentType string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text[:min(len(text), 500)])
	}
	return err
}

// writeKubeconfig writes a kubeconfig for the API server at an address.
func (c *site) writeKubeconfig(path, address string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: site, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: site, context: {cluster: site, user: admin}}]
current-context: site
`, address, c.certificate, adminToken), 0o600)
}

// siteCertificate writes a certificate for this run's address, and its key.
func siteCertificate(certificate, key string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	id := &url.URL{Scheme: "spiffe", Host: "chaos.example", Path: "/relay"}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(host())}, URIs: []*url.URL{id}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
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
