package apiserver

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
)

// foundKubeconfig returns a kubeconfig with all that it needs, as a Secret has it.
func foundKubeconfig(server *httptest.Server, user string) []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server.URL, base64.StdEncoding.EncodeToString(ca), user)
}

func TestAFoundKubeconfigRunsNothingAndReadsNoFile(t *testing.T) {
	server := fakekube.New().Start(t)
	good := string(foundKubeconfig(server, "{token: t}"))
	with := func(old, replaced string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in %s", old, good)
		}
		return strings.Replace(good, old, replaced, 1)
	}
	const exec = `{exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}}`
	const loopback = "127.0.0.1"
	for text, want := range map[string]string{
		good:                     "",
		with("{token: t}", exec): `runs the program "aws": name it in allowExec`,
		with("{token: t}", "{}"): "",
		with("certificate-authority-data", "insecure-skip-tls-verify: true, x"):                        "insecure-skip-tls-verify is not accepted",
		with("certificate-authority-data", "certificate-authority: /etc/ca, x"):                        "names files of the relay's own host (certificate-authority)",
		with("{token: t}", "{tokenFile: /etc/passwd, client-key: /etc/shadow}"):                        "(client-key, tokenFile)",
		with("{token: t}", "{client-certificate: /etc/passwd}"):                                        "(client-certificate)",
		with("{token: t}", "{auth-provider: {name: gcp}}"):                                             `the auth-provider "gcp" is not accepted`,
		with("https://", "http://"):                                                                    "credentials are not sent in the clear",
		with("certificate-authority-data: ", "certificate-authority-data: AAAA"):                       "certificate",
		with("current-context: x", ""):                                                                 "no current-context",
		with("https://127", "https://user:SECRET@127"):                                                 "the server must be a URL without user and password",
		with("127.0.0.1", "a%20b.example"):                                                             "must be a URL",
		with("127.0.0.1", "a'b.example"):                                                               "the server is not https:// with a DNS name or an IP address",
		with(server.URL, server.URL+"/?a=b"):                                                           "the server is not https:// with a DNS name or an IP address",
		with(server.URL, server.URL+"/#a"):                                                             "the server is not https:// with a DNS name or an IP address",
		with(server.URL, server.URL+"/k8s/clusters/a"):                                                 "",
		with("certificate-authority-data", `tls-server-name: "a\r\nQUIT", certificate-authority-data`): `the tls-server-name "a\r\nQUIT" is neither a DNS name nor an IP address`,
		with("certificate-authority-data", `tls-server-name: api.example, certificate-authority-data`): "",
		"":         "is empty",
		"a: [":     "it is not a kubeconfig",
		"users: a": "it is not a kubeconfig",
		good + strings.Repeat("#", MaxKubeconfig): "it is larger than 256 KiB",
	} {
		err := CheckKubeconfig([]byte(text), Trust{AllowExec: []config.Program{{Command: "gke"}}, AllowServers: []string{loopback}})
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("the error quotes a secret: %v", err)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.400s\n%v, want %s", text, err, want)
		}
	}
	if err := CheckKubeconfig([]byte(with("{token: t}", exec)), Trust{AllowExec: []config.Program{{Command: "aws"}}, AllowServers: []string{loopback}}); err != nil {
		t.Error(err)
	}
	if err := CheckKubeconfig([]byte(with("certificate-authority-data", "proxy-url: 'http://p:1', certificate-authority-data")), Trust{AllowServers: []string{loopback}}); err != nil {
		t.Error(err)
	}
	if err := CheckKubeconfig([]byte(with("certificate-authority-data", "proxy-url: 'http://evil:1', certificate-authority-data")), Trust{}); err == nil || !strings.Contains(err.Error(), "name the proxy in allowServers") {
		t.Error(err)
	}
	if err := CheckKubeconfig([]byte("token: SECRET: ["), Trust{}); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the error quotes the kubeconfig: %v", err)
	}
	for _, proxy := range []string{"http://relay:SECRET@proxy:port", "ftp://relay:SECRET@proxy:1", "http://relay:SECRET@", `http://relay:SECRET@a"b:1`} {
		text := with("certificate-authority-data", "proxy-url: '"+proxy+"', certificate-authority-data")
		if err := CheckKubeconfig([]byte(text), Trust{AllowServers: []string{"*"}}); err == nil || !strings.Contains(err.Error(), "proxy-url") || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("the error quotes a password: %v", err)
		}
	}
}

// client-go and net/http refuse such headers, and name neither them nor the user.
func TestTextsOfAUserAddNoLineToARequest(t *testing.T) {
	var asked atomic.Bool
	server := fakekube.New().Start(t, func(h *httptest.Server) {
		h.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) })
	})
	for _, user := range []string{`token: "SECRET\r\nEvil: a"`, `as: "SECRET\nEvil: a"`, `as: a, as-uid: "SECRET\nEvil: a"`, `as: a, as-groups: ["SECRET\nEvil: a"]`, `as: a, as-user-extra: {a: ["SECRET\nEvil: a"]}`} {
		access := NewKubeconfig("none")
		access.Set(foundKubeconfig(server, "{"+user+"}"), Trust{AllowServers: []string{"127.0.0.1"}})
		c := NewClient(&Credentials{Found: access}, "test")
		err := c.Refresh(t.Context())
		if err == nil {
			_, err = c.Current().clusterUID(t.Context())
		}
		c.Close()
		if err == nil || strings.Contains(err.Error(), "SECRET") || asked.Load() {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func TestAKubeconfigStaysWhenAnotherIsMissed(t *testing.T) {
	k := NewKubeconfig("not found yet")
	if _, _, err := k.get(); err == nil || err.Error() != "not found yet" {
		t.Error(err)
	}
	k.Set([]byte("x"), Trust{})
	k.Miss("gone")
	if text, _, err := k.get(); err != nil || string(text) != "x" {
		t.Error(string(text), err)
	}
}
