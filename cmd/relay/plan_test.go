package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/admin"
)

// TestPlanReadsARelayWithoutVersions: one of an earlier release has only all of its objects.
func TestPlanReadsARelayWithoutVersions(t *testing.T) {
	const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: db, namespace: shop}\nspec: {hosts: [db.example]}\n"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"relay.yaml":     "node: {id: planner}\nupstreams: [{name: east, file: {path: resources.yaml}}]\ndownstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\n",
		"resources.yaml": entry,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	cfg, err := loadConfig("relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/configz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`[{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": "gone", "namespace": "shop", "resourceVersion": "1"}, "spec": {}}]`)) //nolint:errcheck // the test fails then
	})
	earlier := httptest.NewServer(mux)
	defer earlier.Close()
	changes, err := plan(t.Context(), admin.Client{Address: strings.TrimPrefix(earlier.URL, "http://"), HTTP: earlier.Client()}, cfg, nil)
	if err != nil || changes.Added != 1 || changes.Removed != 1 || changes.Changed != 0 {
		t.Errorf("%+v %v", changes, err)
	}
}
