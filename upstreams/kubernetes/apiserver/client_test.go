package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"k8s.io/client-go/rest"

	"meshrelay/config"
)

// kubeconfigOf returns a kubeconfig with other parts.
func kubeconfigOf(cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: %s}]
users: [{name: u, user: %s}]
contexts: [{name: east, context: {cluster: c, user: u}}, {name: lost, context: {cluster: x, user: u}}, {name: nobody, context: {cluster: c, user: x}}]
current-context: east
`, cluster, user)
}

// A server tells "Unauthorized", whatever the reason is. That a client certificate has expired can be
// told all the same.
func TestAClientCertificateThatHasExpiredIsNamed_K9(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	unauthorized := apierrors.NewUnauthorized("Unauthorized")
	for end, want := range map[time.Duration]bool{-time.Hour: true, time.Hour: false} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(end)}
		crt, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for name, data := range map[string][]byte{
			"crt":        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: crt}),
			"key":        pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
			"kubeconfig": []byte(kubeconfigOf(`{server: "https://127.0.0.1:1"}`, `{client-certificate: crt, client-key: key}`)),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := NewClient(&Credentials{Cluster: config.Cluster{Kubeconfig: filepath.Join(dir, "kubeconfig")}}, "test")
		if err := c.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		told := c.Explain(unauthorized)
		if !errors.Is(told, unauthorized) || !strings.Contains(told.Error(), "renew the token or certificate in "+dir) || strings.Contains(told.Error(), "the client certificate has expired at 20") != want {
			t.Errorf("a certificate that ends in %v: %v", end, told)
		}
	}
	// Others are told where to look.
	for want, section := range map[string]*Credentials{"service account of the pod": {Cluster: config.Cluster{InCluster: true}}, "kubeconfig that was found": {Found: NewKubeconfig("")}} {
		c := NewClient(section, "test")
		c.now = &Conn{access: access{config: &rest.Config{}}}
		if told := c.Explain(unauthorized); !strings.Contains(told.Error(), want) {
			t.Errorf("%s: %v", want, told)
		}
	}
	if err := (&Client{}).Explain(nil); err != nil {
		t.Error(err)
	}
}

func TestATransportFollowsNoRedirectAndIsHTTP2(t *testing.T) {
	section := &Credentials{Cluster: config.Cluster{Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}}
	if err := os.WriteFile(section.Kubeconfig, []byte(kubeconfigOf(`{server: "https://127.0.0.1:1"}`, `{token: t}`)), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := accessOf(section)
	if err != nil {
		t.Fatal(err)
	}
	transport, client, err := a.transport()
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(client.CheckRedirect(nil, nil), http.ErrUseLastResponse) {
		t.Error("redirects are followed, with the token")
	}
	if transport.TLSNextProto["h2"] == nil {
		t.Error("no HTTP/2: silent servers are not noticed")
	}
	if h := transport.HTTP2; h == nil || h.MaxReceiveBufferPerStream > 1<<20 || h.MaxReceiveBufferPerConnection > 4<<20 {
		t.Errorf("what a server may send before it is read: %+v", h)
	}
	if a.config.QPS != -1 || a.config.Timeout != 0 {
		t.Errorf("limits of client-go: %v, %v", a.config.QPS, a.config.Timeout)
	}
}

func TestProxiesAreThoseOfTheKubeconfigOrTheEnvironment_K8(t *testing.T) {
	proxyOf := func(cluster string) func(*http.Request) (interface{ String() string }, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(kubeconfigOf(cluster, `{token: t}`)), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := accessOf(&Credentials{Cluster: config.Cluster{Kubeconfig: path}})
		if err != nil {
			t.Fatal(err)
		}
		transport, _, err := a.transport()
		if err != nil {
			t.Fatal(err)
		}
		fromEnvironment := reflect.ValueOf(transport.Proxy).Pointer() == reflect.ValueOf(http.ProxyFromEnvironment).Pointer()
		if fromEnvironment == strings.Contains(cluster, "proxy-url") {
			t.Errorf("%s: the proxy is of the environment: %v", cluster, fromEnvironment)
		}
		return func(r *http.Request) (interface{ String() string }, error) { return transport.Proxy(r) }
	}
	proxyOf(`{server: "https://127.0.0.1:1"}`)
	req, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := proxyOf(`{server: "https://127.0.0.1:1", proxy-url: "http://127.0.0.1:3128"}`)(req); err != nil || u.String() != "http://127.0.0.1:3128" {
		t.Errorf("%v: %v", u, err)
	}
}
