package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"meshrelay/config"
	"meshrelay/internal/certfile"
	"meshrelay/internal/doctor"
	"meshrelay/internal/servers"
	"meshrelay/internal/smallfile"
)

// maxCredentials bounds each file of credentials, in bytes.
const maxCredentials = 1 << 20

// accountPath is the usual directory of a pod's service account.
const accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// Credentials name the source of the credentials for an API server: a kubeconfig file, the service account of
// the pod, or the kubeconfig of a found cluster.
type Credentials struct {
	config.Cluster
	Account string      // directory of the service account, empty for the usual one
	Found   *Kubeconfig // used instead of a file, unless nil
}

// Place names the source of the credentials.
func (c *Credentials) Place() string {
	switch {
	case c.Found != nil:
		return "found cluster"
	case c.InCluster:
		return "in cluster"
	}
	return c.Kubeconfig
}

// Check returns an error if the credentials can not be used.
func (c *Credentials) Check() error {
	_, err := accessOf(c)
	return err
}

// Lives returns how long the client certificate and the token are valid. It reads files, and runs no program: what
// a program issues has no life here.
func (c *Credentials) Lives() (certificate, token doctor.Life, err error) {
	a, err := accessOf(c)
	if err != nil {
		return certificate, token, err
	}
	if data := a.config.CertData; len(data) > 0 {
		leaf, err := certfile.First(c.Place(), data)
		if err != nil {
			return certificate, token, err
		}
		certificate = doctor.LifeOf(leaf)
	}
	return certificate, doctor.TokenLife(a.config.BearerToken), nil
}

// access is the address of a server with credentials for it.
type access struct {
	config  *rest.Config
	digest  xxh3.Uint128    // of the files, and of the credential that a program has issued
	program *api.ExecConfig // issues the credential, unless nil
	trust   *Trust          // in a found kubeconfig, nil for any other
}

// accessOf reads an access.
func accessOf(c *Credentials) (access, error) {
	h := xxh3.New()
	cfg, err := restConfig(c, h)
	if err != nil {
		return access{}, err
	}
	tls := &cfg.TLSClientConfig
	files := *tls
	for _, f := range []struct {
		path *string
		data *[]byte
	}{{&tls.CAFile, &tls.CAData}, {&tls.CertFile, &tls.CertData}, {&tls.KeyFile, &tls.KeyData}} {
		if *f.path == "" {
			continue
		}
		// Pass the content, not the path: for a path, client-go starts a goroutine that never ends.
		if *f.data, err = smallfile.Read(*f.path, maxCredentials); err != nil {
			return access{}, err
		}
		h.Write(*f.data) //nolint:errcheck // it never fails
		*f.path = ""
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return access{}, certificateError(files, c.Place(), err)
	}
	if file := cfg.BearerTokenFile; file != "" {
		token, err := smallfile.Read(file, maxCredentials)
		if err != nil {
			return access{}, err
		}
		if token = bytes.TrimSpace(token); len(token) == 0 {
			return access{}, fmt.Errorf("%s has no token", file)
		}
		h.Write(token) //nolint:errcheck // it never fails
		cfg.BearerToken, cfg.BearerTokenFile = string(token), ""
	}
	program := cfg.ExecProvider
	if program != nil && program.APIVersion != "client.authentication.k8s.io/v1" && program.APIVersion != "client.authentication.k8s.io/v1beta1" {
		return access{}, fmt.Errorf("program %q: the apiVersion %q is not accepted: use client.authentication.k8s.io/v1", program.Command, program.APIVersion)
	}
	cfg.ExecProvider = nil // run runs the program
	cfg.QPS = -1           // the server limits requests
	cfg.WarningHandler = rest.NoWarnings{}
	return access{cfg, h.Sum128(), program, c.Found.trust()}, nil
}

// certificateError returns an error of certificates, with the file that has the mistake, or with place if
// they are not in a file.
func certificateError(files rest.TLSClientConfig, place string, err error) error {
	if files.CAFile != "" {
		if _, err := certfile.Roots(files.CAFile); err != nil {
			return err
		}
	}
	if files.CertFile != "" && files.KeyFile != "" {
		if _, err := certfile.Pair(files.CertFile, files.KeyFile); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w", place, err)
}

func restConfig(c *Credentials, h io.Writer) (*rest.Config, error) {
	if c.InCluster {
		return inCluster(cmp.Or(c.Account, accountPath))
	}
	if c.Found != nil {
		return c.Found.restConfig(h)
	}
	text, err := smallfile.Read(c.Kubeconfig, maxCredentials)
	if err != nil {
		return nil, err
	}
	h.Write(text) //nolint:errcheck // it never fails
	if text, err = plainOf(text, fileLimits); err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig that is accepted: %w", c.Kubeconfig, err)
	}
	file, err := clientcmd.Load(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig: %w", c.Kubeconfig, err)
	}
	if err := refuse(file, c); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kubeconfig, err)
	}
	for _, cluster := range file.Clusters {
		cluster.LocationOfOrigin = c.Kubeconfig
	}
	for _, user := range file.AuthInfos {
		user.LocationOfOrigin = c.Kubeconfig
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kubeconfig, err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*file, cmp.Or(c.Context, file.CurrentContext), nil, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kubeconfig, err)
	}
	return cfg, nil
}

// inCluster returns the config of a pod for the API server of its cluster, with the service account in a
// directory. rest.InClusterConfig would go on without a CA file that it can not read.
func inCluster(account string) (*rest.Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("inCluster: the relay does not run in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(account, "ca.crt")},
		BearerTokenFile: filepath.Join(account, "token"),
	}, nil
}

// Expired returns the end of the client certificate, and whether it is past.
func (c *Conn) Expired(now time.Time) (end time.Time, is bool) {
	if leaf := c.leaf(); leaf != nil {
		return leaf.NotAfter, now.After(leaf.NotAfter)
	}
	return end, false
}

// leaf returns the client certificate, nil for none.
func (c *Conn) leaf() *x509.Certificate {
	if c == nil {
		return nil
	}
	leaf, _ := certfile.First("", c.config.CertData)
	return leaf
}

// with returns the access with a credential that its program has issued.
func (a access) with(i *issued) access {
	a.config = rest.CopyConfig(a.config)
	a.config.BearerToken, a.config.CertData, a.config.KeyData = i.token, i.cert, i.key
	h := xxh3.New()
	for _, part := range [][]byte{[]byte(i.token), i.cert, i.key} {
		h.Write(part)      //nolint:errcheck // it never fails
		h.Write([]byte{0}) //nolint:errcheck // it never fails
	}
	sum := h.Sum128()
	a.digest = xxh3.Uint128{Hi: a.digest.Hi ^ sum.Hi, Lo: a.digest.Lo ^ sum.Lo}
	return a
}

// transport returns a transport for the server, and a client that adds the credentials. client-go's own cache
// of transports never frees an entry, so transport does not use it.
func (a access) transport() (*http.Transport, *http.Client, error) {
	tls, err := rest.TLSConfigFor(a.config)
	if err != nil {
		return nil, nil, err
	}
	proxy := http.ProxyFromEnvironment
	if a.config.Proxy != nil {
		proxy = a.config.Proxy
	}
	// SetTransportDefaults sets pings: a silent server is detected within 45 s.
	t := utilnet.SetTransportDefaults(&http.Transport{
		Proxy: proxy, DialContext: a.dial(), TLSClientConfig: tls, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		// What nobody has read yet. Without this, it is 4 MiB for each of some sixty streams.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 512 << 10, MaxReceiveBufferPerConnection: 2 << 20},
	})
	rt, err := rest.HTTPWrappersForConfig(a.config, t)
	if err != nil {
		t.CloseIdleConnections()
		return nil, nil, err
	}
	// Follow no redirects: they could lead credentials to another server.
	return t, &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// dial returns the function that connects to the server, or to the proxy of a kubeconfig. Of a found kubeconfig, the
// function refuses addresses that the rules do not allow, after their names are resolved.
func (a access) dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}
	if a.trust == nil || a.config.Proxy == nil && proxyOfEnvironment(a.config.Host) {
		return dialer.DialContext
	}
	rules, _ := servers.Parse(a.trust.AllowServers) // refuseFound has looked at it
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		d := dialer
		d.Control = func(_, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return err
			}
			return rules.Address(host, to.Addr())
		}
		return d.DialContext(ctx, network, address)
	}
}

// proxyOfEnvironment reports whether the environment of the relay has a proxy for a server.
func proxyOfEnvironment(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u})
	return err == nil && proxy != nil
}

// Server returns the URL of the server. It reads files, and runs no program.
func (c *Credentials) Server() (string, error) {
	a, err := accessOf(c)
	if err != nil {
		return "", err
	}
	return a.config.Host, nil
}
