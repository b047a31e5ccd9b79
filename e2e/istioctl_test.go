package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// istioctl runs the real one and returns what it prints.
func istioctl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary(t, "ISTIOCTL_BIN", "bin/istioctl"), args...)
	cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("istioctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// wantIstioctlAnswered checks that istioctl can read what a relay at an xDS address serves,
// in which a text is.
func wantIstioctlAnswered(t *testing.T, xds, text string) {
	t.Helper()
	if status := istioctl(t, "proxy-status", "--xds-address", xds, "--plaintext"); !strings.Contains(status, "istio-system") {
		t.Errorf("proxy-status at %s prints\n%s", xds, status)
	}
	if out := istioctl(t, "x", "internal-debug", "configz", "--xds-address", xds, "--plaintext"); !strings.Contains(out, text) {
		t.Errorf("internal-debug configz at %s does not tell of %s:\n%s", xds, text, out)
	}
}

// wantIstioctlRefused checks that istioctl is told at an xDS address why it is not answered.
func wantIstioctlRefused(t *testing.T, xds string) {
	t.Helper()
	if out := istioctl(t, "x", "internal-debug", "configz", "--xds-address", xds, "--plaintext"); !strings.Contains(out, "downstream.listeners[].debug") {
		t.Errorf("internal-debug configz at %s prints\n%s", xds, out)
	}
}

func TestIstioctlReadsTheRelay_D1_D2(t *testing.T) {
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
	var doc any
	if out := istioctl(t, "x", "internal-debug", "syncz", "--xds-address", r.xds, "--plaintext"); json.Unmarshal([]byte(out), &doc) != nil || !strings.Contains(out, seV1alpha3) {
		t.Errorf("internal-debug syncz prints\n%s", out)
	}
	if out := istioctl(t, "x", "internal-debug", "configz", "--xds-address", r.xds, "--plaintext"); !strings.Contains(out, "a.example") {
		t.Errorf("internal-debug configz prints\n%s", out)
	}
}
