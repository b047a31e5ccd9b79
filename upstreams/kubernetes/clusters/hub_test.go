package clusters

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/kubernetes"
)

// hub is an API server with objects of one collection, as far as a Finder asks it.
type hubServer struct {
	t    *testing.T
	http *httptest.Server

	mu      sync.Mutex
	objects map[string]map[string]any
	version int
	changed chan struct{} // closed at each change
	down    bool
	// forbidden are requests that are not allowed, nil for none.
	forbidden func(*http.Request) bool
}

func newHub(t *testing.T) *hubServer {
	h := &hubServer{t: t, objects: map[string]map[string]any{}, changed: make(chan struct{})}
	h.http = httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	h.http.EnableHTTP2 = true
	h.http.StartTLS()
	t.Cleanup(func() {
		h.http.CloseClientConnections()
		h.http.Close()
	})
	return h
}

func (h *hubServer) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	changed, down, version := h.changed, h.down, strconv.Itoa(h.version)
	forbidden := h.forbidden != nil && h.forbidden(r)
	var items []any
	for _, o := range h.objects {
		if strings.Contains(r.URL.Path, "/namespaces/"+o["metadata"].(map[string]any)["namespace"].(string)+"/") {
			items = append(items, o)
		}
	}
	h.mu.Unlock()
	if forbidden {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"scripted"}`)
		return
	}
	if down {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","code":404,"reason":"NotFound","message":"scripted"}`)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		if items == nil {
			items = []any{}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": version}, "items": items})
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	if r.URL.Query().Get("resourceVersion") == version {
		select {
		case <-r.Context().Done():
		case <-changed:
		}
	}
	fmt.Fprint(w, `{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}`)
}

// set changes the hub.
func (h *hubServer) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.version++
	close(h.changed)
	h.changed = make(chan struct{})
}

// secret has a Secret with kubeconfigs, none to delete it.
func (h *hubServer) secret(name string, data map[string][]byte, annotations ...string) {
	h.secretIn("istio-system", name, data, annotations...)
}

func (h *hubServer) secretIn(namespace, name string, data map[string][]byte, annotations ...string) {
	h.set(func() {
		if delete(h.objects, name); data == nil {
			return
		}
		meta := map[string]any{"namespace": namespace, "name": name}
		if len(annotations) > 0 {
			meta["annotations"] = map[string]string{annotations[0]: annotations[1]}
		}
		h.objects[name] = map[string]any{"metadata": meta, "data": data}
	})
}

// kubeconfig returns a kubeconfig of the hub with a token.
func (h *hubServer) kubeconfig(token string) []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.http.Certificate().Raw})
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, h.http.URL, base64.StdEncoding.EncodeToString(ca), token)
}

var quick = Pace{Poll: time.Millisecond, Retry: time.Millisecond, RetryMost: 5 * time.Millisecond}

// found is a Finder that runs.
type found struct {
	*Finder
	t   *testing.T
	cfg *config.Config
	// parse parses clusters of a config, whose paths are in a directory.
	parse func(dir, parts string) *config.Config
	log   *bytes.Buffer
	// stop ends it.
	stop func()
}

// parse returns a config whose clusters have these fields. The hub's kubeconfig is "hub".
func (h *hubServer) parse(dir, clusters string) *config.Config {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "hub"), h.kubeconfig("hub"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	text := "clusters:\n" + clusters + "\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\nnode: {id: a}\n"
	cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(text), &kubernetes.Config{})
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range cfg.Clusters { // the kubeconfigs name servers at loopback
		if c := &cfg.Clusters[i]; c.AllowServers == nil {
			c.AllowServers = []string{"127.0.0.0/8"}
		}
	}
	return cfg
}

// finds runs a Finder that keeps what it finds in dir.
func finds(t *testing.T, dir string, cfg *config.Config) *found {
	t.Helper()
	f := &found{t: t, cfg: cfg, log: new(bytes.Buffer)}
	f.Finder, _ = New(dir, slog.New(slog.NewTextHandler(f.log, nil)))
	f.pace = quick
	f.Adopt(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// until waits for a condition.
func (f *found) until(what string, ok func() bool) {
	f.t.Helper()
	await.Until(f.t, what, ok, func() any { return f.Status() })
}

// states returns the clusters and their states.
func (f *found) states() (all []string) {
	for _, st := range f.Status() {
		for _, c := range st.Clusters {
			all = append(all, c.ID+" "+string(c.State))
		}
	}
	return all
}

func (f *found) has(want ...string) {
	f.t.Helper()
	f.until(fmt.Sprint(want), func() bool { return slices.Equal(f.states(), want) })
}

// upstreams returns those of the present clusters, by name.
func (f *found) upstreams() map[string]config.Upstream {
	f.t.Helper()
	all, err := f.Upstreams(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]config.Upstream{}
	for _, u := range all {
		out[u.Name] = u
	}
	return out
}

const fleet = "- {name: fleet, secrets: {cluster: {kubeconfig: hub}}, upstream: {rewrite: {namespacePrefix: \"{cluster}-\"}}}"
