package fakekube

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// Start serves a server over HTTPS until the end of a test. prepare is called before.
func (s *Server) Start(t testing.TB, prepare ...func(*httptest.Server)) *httptest.Server {
	return start(t, httptest.NewUnstartedServer(s), prepare...)
}

// StartInMemory is Start without sockets, so that it works in a bubble of testing/synctest. Dial connects to it.
func (s *Server) StartInMemory(t testing.TB, prepare ...func(*httptest.Server)) *httptest.Server {
	return start(t, &httptest.Server{Listener: listen(t), Config: &http.Server{Handler: s}}, prepare...) //nolint:gosec // its clients are tests
}

func start(t testing.TB, h *httptest.Server, prepare ...func(*httptest.Server)) *httptest.Server {
	h.EnableHTTP2 = true
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	for _, f := range prepare {
		f(h)
	}
	h.StartTLS()
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}

// WriteKubeconfig writes a kubeconfig for a server, and a file ca.crt beside it.
func WriteKubeconfig(t testing.TB, path string, server *httptest.Server, token string) {
	t.Helper()
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: east, cluster: {server: %q, certificate-authority: ca.crt}}]
users: [{name: relay, user: {token: %q}}]
contexts: [{name: east, context: {cluster: east, user: relay}}]
current-context: east
`, server.URL, token)
	ReplaceFile(t, filepath.Join(filepath.Dir(path), "ca.crt"), block)
	ReplaceFile(t, path, []byte(text))
}

// ReplaceFile replaces a file as a whole: a relay reads at any time, and half a certificate is another one.
func ReplaceFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
