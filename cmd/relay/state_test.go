package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/visible"
	"meshrelay/state/local"
)

// TestWhoWaitsForTheStateOfARunningRelayIsToldSo while the relay copies it.
func TestWhoWaitsForTheStateOfARunningRelayIsToldSo(t *testing.T) {
	t.Parallel() // it waits
	dir, yaml := t.TempDir(), filepath.Join(t.TempDir(), "east.yaml")
	const entry = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: db, namespace: shop}, spec: {hosts: [db.example.com]}}\n"
	if err := os.WriteFile(yaml, []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := execute([]string{"state", "import", "--dir", dir, "--upstream", "east", "-f", yaml}, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	store := local.New(dir, nil)
	if _, err := store.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	lis, err := net.Listen("unix", filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	copied := make(chan struct{})
	relay := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-copied
		if err := store.Backup(w); err != nil {
			t.Error(err)
		}
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = relay.Serve(lis) }()
	t.Cleanup(func() { relay.Close(); <-ended })

	type command struct{ out, errs lockedBuffer }
	commands := map[string]*command{"inspect": {}, "export": {}}
	for name, c := range commands {
		backgroundInto(t, screen{Writer: visible.NewWriter(&c.out)}, screen{Writer: visible.NewWriter(&c.errs), terminal: true},
			"state", name, "--dir", dir, "--upstream", "east")
	}
	for name, c := range commands {
		await.Until(t, name+" tells what it waits for", func() bool {
			return strings.Contains(c.errs.String(), "reading a copy of "+local.Path(dir)+" from the relay that uses it (")
		})
	}
	close(copied)
	for name, c := range commands {
		await.Until(t, name+" prints the state", func() bool { return strings.Contains(c.out.String(), "ServiceEntry") })
	}
}
