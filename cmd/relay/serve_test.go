package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"meshrelay/internal/testing/await"
)

// TestAnAddressThatIsTakenIsAnErrorOfItsField, so that the operator finds the field.
func TestAnAddressThatIsTakenIsAnErrorOfItsField(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	taken := lis.Addr().String()
	for name, tc := range map[string]struct{ admin, listeners, want string }{
		"the admin's":       {taken, `{address: "127.0.0.1:0", plaintext: true}`, "admin.address: listen tcp " + taken},
		"a second listener": {"127.0.0.1:0", `{address: "127.0.0.1:0", plaintext: true}, {address: "` + taken + `", plaintext: true}`, "downstream.listeners[1].address: listen tcp " + taken},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "relay.yaml")
			text := fmt.Sprintf("admin: {address: %q, socket: run/admin.sock}\nupstreams: [{name: files, file: {path: %q}}]\ndownstream: {listeners: [%s]}\n", tc.admin, dir, tc.listeners)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			root := newRoot()
			root.SetArgs([]string{"serve", "-c", path})
			var log strings.Builder
			root.SetErr(&log)
			err := root.ExecuteContext(await.Context(t))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if strings.Contains(log.String(), "another signal") {
				t.Errorf("nobody has sent a signal:\n%s", log.String())
			}
		})
	}
}
