package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheRevisionTellsOfWhatIsNotCommitted: also with a version that somebody has given, and of files that git does
// not know.
func TestTheRevisionTellsOfWhatIsNotCommitted(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=Tests", "-c", "user.email=root@localhost"}, args...)...)
		cmd.Dir = dir
		output(t, cmd)
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "First")
	for _, dirty := range []bool{false, true} {
		d := dist{root: dir, version: testVersion}
		if err := d.fromVCS(t.Context()); err != nil {
			t.Fatal(err)
		}
		if commit, is := strings.CutSuffix(d.revision, "-dirty"); is != dirty || len(commit) != 40 || d.version != testVersion {
			t.Errorf("dirty %v: revision %q, version %q", dirty, d.revision, d.version)
		}
		if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVersionsAreSemantic(t *testing.T) {
	for described, want := range map[string]string{
		"v0.2.0":              "v0.2.0",
		"0.2.0":               "v0.2.0",
		"v0.2.0-3-g6794d34":   "v0.2.0-3-g6794d34",
		"6794d343":            "v0.0.0-g6794d343",
		"12345678-dirty":      "v0.0.0-g12345678-dirty",
		"v0.2.0-rc.1-2-gabcd": "v0.2.0-rc.1-2-gabcd",
	} {
		if got := semantic(described); got != want {
			t.Errorf("%s: %s, want %s", described, got, want)
		}
	}
}

func TestPackageVersionsSortAsTheirCommits(t *testing.T) {
	order := []string{
		"v0.0.0-g6794d343", "v0.2.0-rc.1", "v0.2.0-rc.1-2-gfedcba9", "v0.2.0-rc.2", "v0.2.0", "v0.2.0-3-gabcdef0", "v0.2.0-12-g0123456", "v0.2.1-alpha-1", "v0.2.1",
		"v0.10.0",
	}
	for i := range order[1:] {
		older, err := packageVersion(order[i])
		if err != nil {
			t.Fatal(err)
		}
		newer, err := packageVersion(order[i+1])
		if err != nil {
			t.Fatal(err)
		}
		output(t, exec.Command("dpkg", "--compare-versions", older+"-1", "lt", newer+"-1"))
	}
	for _, bad := range []string{"vunknown", "v1.2", "v1.2.3 4", "v1.2.3-", "v1.2.3_4"} {
		if got, err := packageVersion(bad); err == nil {
			t.Errorf("%s: %s", bad, got)
		}
	}
}
