package e2e

import (
	"os/exec"
	"strings"
	"testing"
)

// istioctl runs the real one and returns what it prints.
func istioctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := istioctlCommand(t, args...).Output()
	if err != nil {
		t.Fatalf("istioctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func istioctlCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary(t, "ISTIOCTL_BIN", "bin/istioctl"), args...)
	cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir())
	return cmd
}

// wantIstioctlAnswered checks that istioctl sees the istiods that are clients of a relay at an xDS address.
func wantIstioctlAnswered(t *testing.T, xds string) {
	t.Helper()
	if status := istioctl(t, "proxy-status", "--xds-address", xds, "--plaintext"); !strings.Contains(status, "istio-system") {
		t.Errorf("proxy-status at %s prints\n%s", xds, status)
	}
}

// wantIstioctlRefused checks that istioctl is not answered at an xDS address. It is told why, and prints that or "closed":
// its client notes the end of the stream and the error at the same time, and takes either.
func wantIstioctlRefused(t *testing.T, xds string) {
	t.Helper()
	cmd := istioctlCommand(t, "proxy-status", "--xds-address", xds, "--plaintext")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "downstream.listeners[].debug") && !strings.Contains(string(out), "Error: closed") {
		t.Errorf("proxy-status at %s: %v\n%s", xds, err, out)
	}
}

func TestIstioctlReadsTheRelay_D1(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir+"/a.yaml", serviceEntry("a", "a.example"))
	r := newRelay(t, "hub", []string{"files=" + dir}).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	eventually(t, "the istiod has it", func() error { return differs(third.configs(), r.configs()) })

	r.showsSynced(t)

	status := istioctl(t, "proxy-status", "--xds-address", r.xds, "--plaintext")
	if !strings.Contains(status, "hub") || strings.Count(status, "\n") < 2 {
		t.Errorf("proxy-status prints\n%s", status)
	}
}
