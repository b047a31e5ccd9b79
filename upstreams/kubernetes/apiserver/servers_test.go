package apiserver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
)

// counted returns an API server on loopback, and how many connections it has had.
func counted(t *testing.T) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	dialled := new(atomic.Int64)
	server := fakekube.New().Start(t, func(h *httptest.Server) {
		h.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				dialled.Add(1)
			}
		}
	})
	return server, dialled
}

// as returns the kubeconfig of a server under another name, which its certificate does not have.
func as(server *httptest.Server, host, user string) string {
	text := strings.Replace(string(foundKubeconfig(server, user)), "127.0.0.1", host, 1)
	return strings.Replace(text, "certificate-authority-data", "tls-server-name: example.com, certificate-authority-data", 1)
}

func TestAddressesAreJudgedAfterTheirNamesAreResolved(t *testing.T) {
	server, dialled := counted(t)
	for _, tc := range []struct {
		host    string
		servers []string
		want    string // in the error of the kubeconfig or of the request; empty: the request succeeds
	}{
		{"127.0.0.1", nil, "127.0.0.1 is a loopback, link-local or unspecified address"},
		{"127.0.0.1", []string{"*", "0.0.0.0/0"}, "127.0.0.1 is a loopback, link-local or unspecified address"},
		{"[::ffff:127.0.0.1]", nil, "127.0.0.1 is a loopback, link-local or unspecified address"},
		{"0.0.0.0", nil, "0.0.0.0 is a loopback, link-local or unspecified address"},
		{"[::]", nil, ":: is a loopback, link-local or unspecified address"},
		{"169.254.169.254", nil, "169.254.169.254 is a loopback, link-local or unspecified address"},
		{"[fe80::1%25lo]", nil, "fe80::1 is a loopback, link-local or unspecified address"},
		{"localhost", nil, "is a loopback, link-local or unspecified address"},
		{"localhost", []string{"localhost"}, "is a loopback, link-local or unspecified address"},
		{"localhost", []string{"10.0.0.0/8"}, "is a loopback, link-local or unspecified address"},
		{"localhost", []string{"*.example"}, `no pattern in clusters[].allowServers matches the server "localhost"`},
		{"127.0.0.1", []string{"127.0.0.0/8"}, ""},
		{"[::ffff:127.0.0.1]", []string{"127.0.0.1"}, ""},
		{"localhost", []string{"127.0.0.1", "::1"}, ""},
	} {
		access := NewKubeconfig("none")
		access.Set([]byte(as(server, tc.host, "{token: t}")), Trust{AllowServers: tc.servers})
		c := NewClient(&Credentials{Found: access}, "test")
		before := dialled.Load()
		err := c.Refresh(t.Context())
		if err == nil {
			_, err = c.Current().clusterUID(t.Context())
		}
		c.Close()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || dialled.Load() != before) {
			t.Errorf("%s with %q: %v, want %q", tc.host, tc.servers, err, tc.want)
		}
	}
}

// A kubeconfig that the operator names connects to any address.
func TestTheServersOfAnOperatorsKubeconfigAreNotJudged(t *testing.T) {
	server, _ := counted(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, path, server, "t")
	c := NewClient(&Credentials{Cluster: config.Cluster{Kubeconfig: path}}, "test")
	defer c.Close()
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Current().clusterUID(t.Context()); err != nil {
		t.Error(err)
	}
}

// tunnels is a proxy on loopback that connects each request to one address.
func tunnels(t *testing.T, to string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		there, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer there.Close()
		here, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer here.Close()
		fmt.Fprint(here, "HTTP/1.1 200 OK\r\n\r\n")
		go copyAll(there, here)
		copyAll(here, there)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, asked
}

// copyAll copies until one side ends, and ends the other one.
func copyAll(to, from net.Conn) {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			to.Close()
			return
		}
	}
}

func TestBehindAProxyTheNameOfTheServerAndTheAddressOfTheProxyAreJudged(t *testing.T) {
	server, _ := counted(t)
	proxy, asked := tunnels(t, server.Listener.Addr().String())
	text := strings.Replace(as(server, "api.example", "{token: t}"), "tls-server-name", fmt.Sprintf("proxy-url: %q, tls-server-name", proxy), 1)
	for _, tc := range []struct {
		servers []string
		want    string
	}{
		{nil, "it has a proxy-url: name the proxy in allowServers"},
		{[]string{"api.example"}, "127.0.0.1 is a loopback, link-local or unspecified address"},
		{[]string{"127.0.0.0/8"}, `no pattern in clusters[].allowServers matches the server "api.example"`},
		{[]string{"127.0.0.0/8", "*.example"}, ""},
	} {
		access := NewKubeconfig("none")
		access.Set([]byte(text), Trust{AllowServers: tc.servers})
		c := NewClient(&Credentials{Found: access}, "test")
		before := asked.Load()
		err := c.Refresh(t.Context())
		if err == nil {
			_, err = c.Current().clusterUID(t.Context())
		}
		c.Close()
		if tc.want == "" && (err != nil || asked.Load() == before) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || asked.Load() != before) {
			t.Errorf("%q: %v, want %q", tc.servers, err, tc.want)
		}
	}
}

// The proxy of the relay's own environment may be anywhere; the server behind it is judged by its name.
func TestBehindAProxyOfTheEnvironmentTheNameOfTheServerIsJudged(t *testing.T) {
	if os.Getenv("HTTPS_PROXY") == "" { // net/http reads it once in each process
		server, _ := counted(t)
		proxy, asked := tunnels(t, server.Listener.Addr().String())
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(kubeconfig, []byte(as(server, "api.example", "{token: t}")), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$") // this test
		cmd.Env = append(os.Environ(), "HTTPS_PROXY="+proxy, "TEST_KUBECONFIG="+kubeconfig)
		if out, err := cmd.CombinedOutput(); err != nil || asked.Load() == 0 {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	text, err := os.ReadFile(os.Getenv("TEST_KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		servers []string
		want    string
	}{
		{nil, ""},
		{[]string{"*.example"}, ""},
		{[]string{"0.0.0.0/0"}, `no pattern in clusters[].allowServers matches the server "api.example"`},
	} {
		access := NewKubeconfig("none")
		access.Set(text, Trust{AllowServers: tc.servers})
		c := NewClient(&Credentials{Found: access}, "test")
		err := c.Refresh(t.Context())
		if err == nil {
			_, err = c.Current().clusterUID(t.Context())
		}
		c.Close()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %v, want %q", tc.servers, err, tc.want)
		}
	}
	link := strings.Replace(string(text), "api.example", "169.254.169.254", 1)
	if err := CheckKubeconfig([]byte(link), Trust{}); err == nil || !strings.Contains(err.Error(), "is a loopback, link-local or unspecified address") {
		t.Error(err)
	}
}

func TestAConfigThatTrustsLessEndsTheUseOfAServer(t *testing.T) {
	server, _ := counted(t)
	text := foundKubeconfig(server, "{token: t}")
	access := NewKubeconfig("none")
	access.Set(text, Trust{AllowServers: []string{"127.0.0.1"}})
	c := NewClient(&Credentials{Found: access}, "test")
	defer c.Close()
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	access.Set([]byte("rotten"), Trust{AllowServers: []string{"127.0.0.1"}})
	if err := c.Refresh(t.Context()); err == nil || c.Current() == nil {
		t.Errorf("a rotten kubeconfig has ended the use of the one before: %v", err)
	}
	access.Set(text, Trust{AllowServers: []string{"10.0.0.1"}})
	if err := c.Refresh(t.Context()); err == nil || c.Current() != nil {
		t.Errorf("the server is used: %v", err)
	}
	access.Set(text, Trust{AllowServers: []string{"127.0.0.1"}})
	if err := c.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Current().clusterUID(t.Context()); err != nil {
		t.Error(err)
	}
}

// told is a program that notes its arguments and variables, and gives a credential.
func told(t *testing.T) (program, note string) {
	t.Helper()
	dir := t.TempDir()
	program, note = filepath.Join(dir, "login"), filepath.Join(dir, "told")
	script := "#!/bin/sh\necho \"args=$* who=$WHO proxy=$EVIL $KUBERNETES_EXEC_INFO\" >>" + note + "\n" + prints(`{"token":"t"}`)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program, note
}

func TestAProgramHasTheArgumentsAndVariablesOfTheConfigAlone(t *testing.T) {
	server, _ := counted(t)
	loopback := []string{"127.0.0.1"}
	program, note := told(t)
	kubeconfig := func(fields string) []byte {
		text := string(foundKubeconfig(server, fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never, provideClusterInfo: true%s}}`, program, fields)))
		return []byte(strings.Replace(text, "certificate-authority-data", "extensions: [{name: client.authentication.k8s.io/exec, extension: {evil: evil}}], certificate-authority-data", 1))
	}
	bare := config.Program{Command: program}
	full := config.Program{Command: program, Args: []string{"token", "--quiet"}, Env: map[string]string{"WHO": "relay"}}
	other := config.Program{Command: program, Args: []string{"token", "--cluster=b"}, Env: map[string]string{"WHO": "b"}}
	const evil = `, args: [evil, evil2], env: [{name: EVIL, value: evil}]`
	for _, tc := range []struct {
		fields string
		trust  Trust
		want   string // of what the program is told
		err    string
	}{
		{"", Trust{AllowExec: []config.Program{bare}, AllowServers: loopback}, "args= who= proxy= {", ""},
		{"", Trust{AllowExec: []config.Program{full}, AllowServers: loopback}, "args=token --quiet who=relay proxy= {", ""},
		{evil, Trust{AllowExec: []config.Program{full}, AllowServers: loopback}, "args=token --quiet who=relay proxy= {", ""},
		{evil, Trust{AllowExec: []config.Program{bare, full}, AllowServers: loopback}, "", "arguments or variables, and only the config does so"},
		{`, args: [token, --cluster=b]`, Trust{AllowExec: []config.Program{full, other}, AllowServers: loopback}, "args=token --cluster=b who=b proxy= {", ""},
		{evil, Trust{AllowExec: []config.Program{bare}, AllowServers: loopback}, "", "arguments or variables, and only the config does so: write {command: "},
		{`, args: [evil]`, Trust{AllowExec: []config.Program{bare}, AllowServers: loopback}, "", "arguments or variables, and only the config does so"},
		{`, env: [{name: EVIL, value: evil}]`, Trust{AllowExec: []config.Program{bare}, AllowServers: loopback}, "", "arguments or variables, and only the config does so"},
		{evil, Trust{AllowExec: []config.Program{full, other}, AllowServers: loopback}, "", "arguments or variables, and only the config does so"},
		{"", Trust{AllowServers: loopback}, "", "name it in allowExec"},
		{"", Trust{AllowExec: []config.Program{bare}}, "", "could go to any server: list the servers that may get it in clusters[].allowServers"},
		{"", Trust{AllowExec: []config.Program{bare}, AllowServers: []string{"*.example"}}, "", "127.0.0.1"},
	} {
		_ = os.Remove(note)
		access := NewKubeconfig("none")
		access.Set(kubeconfig(tc.fields), tc.trust)
		c := NewClient(&Credentials{Found: access}, "test")
		err := c.Refresh(t.Context())
		if err == nil {
			_, err = c.Current().clusterUID(t.Context())
		}
		c.Close()
		got, _ := os.ReadFile(note)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || !strings.HasPrefix(string(got), tc.want) || tc.want == "" && len(got) > 0 {
			t.Errorf("%s with %+v: it was told %s; %v", tc.fields, tc.trust, got, err)
		}
		if strings.Contains(string(got), "evil") {
			t.Errorf("%s with %+v: it was told %s", tc.fields, tc.trust, got)
		}
	}
}

func TestAProgramRunsAgainWhenTheConfigChangesItsArguments(t *testing.T) {
	server, _ := counted(t)
	program, note := told(t)
	access := NewKubeconfig("none")
	c := NewClient(&Credentials{Found: access}, "test")
	defer c.Close()
	for _, arg := range []string{"a", "a", "b"} {
		access.Set(foundKubeconfig(server, fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}`, program)),
			Trust{AllowExec: []config.Program{{Command: program, Args: []string{arg}}}, AllowServers: []string{"127.0.0.1"}})
		if err := c.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(note)
	if err != nil || strings.Count(string(got), "args=a ") != 1 || strings.Count(string(got), "args=b ") != 1 {
		t.Errorf("%s: %v", got, err)
	}
}
