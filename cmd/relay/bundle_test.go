package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/internal/bundle"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams"
)

// archived returns the files of a support bundle, by name without the directory. It unzips gzipped files.
func archived(t *testing.T, path string) map[string]string {
	t.Helper()
	packed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if inner, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			if b, err = io.ReadAll(inner); err != nil {
				t.Fatal(err)
			}
		}
		all[filepath.Base(h.Name)] = string(b)
	}
}

// TestNoSecretIsInASupportBundle runs a relay whose every file and error has a secret that is called
// canary.
func TestNoSecretIsInASupportBundle(t *testing.T) {
	root := newCA(t, "root")
	s := tlsServer(t, root.good())
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "no entry for Bearer canary-of-the-proxy; see https://root:canary@login.example/canary?password=canary")
	}))
	t.Cleanup(api.Close)
	kubeconfig := file("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: canary-token, username: canary, password: canary}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, api.URL))
	file("broken.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: canary}\n")
	t.Setenv("RELAY_TEST_PASSWORD", "canary-of-the-environment")
	pair := root.issue("relay", time.Now().Add(-time.Hour), 24*time.Hour)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certFile := file("tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	keyFile := file("tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	ports := freePorts(t, 2)
	config := file("relay.yaml", fmt.Sprintf(`node: {id: hub}
admin: {address: "127.0.0.1:%d"}
state: {dir: %s}
downstream: {listeners: [{address: "127.0.0.1:%d", plaintext: true}]}
upstreams:
- {name: east, xds: {addresses: [%q], tls: {caFile: %s, serverName: %s, certFile: %s, keyFile: %s}, tokenFile: %s}}
- {name: cluster, kubernetes: {cluster: {kubeconfig: %s}}}
- {name: files, file: {path: %s}}
`, ports[0], filepath.Join(dir, "state"), ports[1], s.Addr, root.file, istiodName, certFile, keyFile, jwt(t, map[string]any{"aud": "canary"}), kubeconfig, filepath.Join(dir, "broken.yaml")))
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	serveConfig(t, string(text))
	s.Await("the relay asks", func(fakexds.Request) bool { return true })
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	await.Until(t, "each upstream but the first has failed", func() bool {
		all, err := admin.Client{Address: address}.Upstreams(t.Context())
		return err == nil && !slices.ContainsFunc(all[1:], func(u upstreams.Status) bool { return u.LastError == "" && len(u.Refused) == 0 })
	})
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := execute(append(args, "--admin", address), &out, &out)
		return code, out.String()
	}
	if code, text := run("freeze", "east", "--reason", "see https://hooks.slack.com/services/T0/B0/canary and password=canary"); code != 0 {
		t.Fatal(text)
	}
	path := filepath.Join(dir, "bundle.tar.gz")
	if code, text := run("support-bundle", "-o", path, "--seconds", "0", "--with-resources"); code != 0 || !strings.Contains(text, "Read it before") {
		t.Fatalf("%d %s", code, text)
	}
	all := archived(t, path)
	for name, content := range all {
		if i := strings.Index(content, "canary"); i >= 0 {
			t.Errorf("%s has a secret: …%s…", name, content[max(0, i-80):min(len(content), i+40)])
		}
		if strings.Contains(content, base64.StdEncoding.EncodeToString(key)[64:120]) {
			t.Errorf("%s has the private key", name)
		}
	}
	want := []string{
		"MANIFEST.txt", "version.json", "ready.json", "upstreams.json", "connections.json", "conflicts.json", "leftout.json", "config.yaml",
		"log.txt", "state.json", "held.json", "history.json", "goroutines.txt", "heap.pprof", "mutex.pprof", "metrics-start.txt", "metrics-end.txt",
		"configz.json", "proc-limits.txt", "events.json",
	}
	for _, name := range want {
		if all[name] == "" {
			t.Errorf("there is no %s", name)
		}
		if !strings.Contains(all["MANIFEST.txt"], name) && name != "MANIFEST.txt" {
			t.Errorf("MANIFEST.txt has no %s", name)
		}
	}
	if !strings.Contains(all["ready.json"], "[hidden]") || !strings.Contains(all["log.txt"], "level=DEBUG") {
		t.Errorf("the test shows nothing: %s\n%s", all["ready.json"], all["log.txt"])
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() > bundle.MaxAll {
		t.Errorf("%v %v", info, err)
	}
	if code, text := run("support-bundle", "-o", path, "--seconds", "0"); code != 1 || !strings.Contains(text, "exists") {
		t.Errorf("it replaces a file: %d %s", code, text)
	}
	if code, text := run("support-bundle", "-o", path+"2", "--seconds", "1"); code != 0 {
		t.Errorf("%d %s", code, text)
	}
	if second := archived(t, path+"2"); second["configz.json"] != "" || second["cpu.pprof"] == "" {
		t.Errorf("without --with-resources: %q", slices.Collect(maps.Keys(second)))
	}
	if resp, err := http.Get("http://" + address + "/support-bundle"); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("over TCP: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
}
