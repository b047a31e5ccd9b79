package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sassoftware/go-rpmutils"
)

// installed are the files of deb and rpm, without manual pages, and with those of the kind alone.
func installed(kind string) []string {
	out := []string{
		"/etc/relay/relay.yaml", "/usr/bin/relay", "/usr/lib/systemd/system/relay.service", "/usr/lib/sysusers.d/relay.conf",
		"/usr/share/bash-completion/completions/relay", "/usr/share/fish/vendor_completions.d/relay.fish", "/usr/share/relay/relay.schema.json",
		"/usr/share/doc/relay/NOTICES", "/usr/share/doc/relay/README.md", "/usr/share/doc/relay/CHANGELOG.md",
	}
	if kind == "rpm" {
		out = append(out, "/usr/share/zsh/site-functions/_relay", "/usr/share/licenses/relay/LICENSE")
	} else {
		out = append(out, "/usr/share/zsh/vendor-completions/_relay", "/usr/share/doc/relay/copyright")
	}
	slices.Sort(out)
	return out
}

// checkFiles compares the files of a package, by mode, with what it is to have.
func checkFiles(t *testing.T, kind string, got map[string]fs.FileMode) {
	t.Helper()
	pages := 0
	want := installed(kind)
	for path, mode := range got {
		wantMode := fs.FileMode(0o644)
		if path == "/usr/bin/relay" {
			wantMode = 0o755
		}
		if mode != wantMode {
			t.Errorf("%s: %s has the mode %v", kind, path, mode)
		}
		if strings.HasPrefix(path, "/usr/share/man/man1/relay") && strings.HasSuffix(path, ".1.gz") {
			pages++
			delete(got, path)
		}
	}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(got))); d != "" || pages < 30 {
		t.Errorf("%s: %d manual pages, files: -want +got:\n%s", kind, pages, d)
	}
}

// debRoot is a root directory for dpkg, with a shell for the scripts of packages, and stand-ins of
// systemctl and systemd-sysusers that note how they are called.
type debRoot string

func newDebRoot(t *testing.T) debRoot {
	t.Helper()
	if _, err := exec.LookPath("dpkg"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs dpkg, and root: dpkg changes its root directory")
	}
	root := debRoot(t.TempDir())
	for path, content := range map[string]string{
		"/var/lib/dpkg/status": "", "/var/lib/dpkg/updates/": "", "/var/lib/dpkg/info/": "", "/tmp/": "", "/dev/null": "",
		"/bin/systemctl": "#!/bin/sh\necho systemctl \"$@\" >>/calls\n", "/bin/systemd-sysusers": "#!/bin/sh\necho systemd-sysusers \"$@\" >>/calls\n",
	} {
		root.write(t, path, content)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	root.write(t, "/bin/sh", string(read(t, shell)))
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(output(t, exec.Command("ldd", shell)), -1) {
		root.write(t, library, string(read(t, library)))
	}
	return root
}

// write writes a program of the root, or a directory, whose path ends with a slash.
func (root debRoot) write(t *testing.T, path, content string) {
	t.Helper()
	full := filepath.Join(string(root), path)
	dir := filepath.Dir(full)
	if strings.HasSuffix(path, "/") {
		dir = full
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir == full {
		return
	}
	if err := os.WriteFile(full, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (root debRoot) dpkg(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("dpkg", append([]string{"--root=" + string(root), "--log=/dev/null", "--force-not-root"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive")
	return output(t, cmd)
}

// calls returns how the scripts have called systemd since the last time.
func (root debRoot) calls(t *testing.T) string {
	t.Helper()
	path := filepath.Join(string(root), "calls")
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(content)
}

func debOf(arch string) string { return filepath.Join(built, "relay_1.2.3~rc.1-1_"+arch+".deb") }

func TestTheDebIsInstalledIntoARoot(t *testing.T) {
	root := newDebRoot(t)
	root.dpkg(t, "-i", debOf(runtime.GOARCH))
	if got := root.dpkg(t, "--verify", "relay"); got != "" {
		t.Errorf("dpkg --verify: %s", got)
	}
	if got := root.dpkg(t, "-s", "relay"); !strings.Contains(got, "\nStatus: install ok installed\n") || !strings.Contains(got, "\nVersion: 1.2.3~rc.1-1\n") ||
		!strings.Contains(got, "\nMaintainer: "+testMaintainer+"\n") || !strings.Contains(got, "\nConffiles:\n /etc/relay/relay.yaml ") {
		t.Errorf("dpkg -s: %s", got)
	}
	found := map[string]fs.FileMode{}
	for path := range strings.Lines(root.dpkg(t, "-L", "relay")) {
		path = strings.TrimSpace(path)
		if info, err := os.Lstat(filepath.Join(string(root), path)); err != nil {
			t.Error(err)
		} else if !info.IsDir() {
			found[path] = info.Mode()
		}
	}
	checkFiles(t, "deb", found)
	if got := output(t, exec.Command(filepath.Join(string(root), "usr", "bin", "relay"), "version")); !strings.HasPrefix(got, "relay "+testVersion+" ") {
		t.Errorf("relay version: %s", got)
	}
	if sysusers, err := exec.LookPath("systemd-sysusers"); err != nil {
		t.Log("no systemd-sysusers here: the user is not tried")
	} else {
		output(t, exec.Command(sysusers, "--root="+string(root), "relay.conf"))
		if passwd := string(read(t, filepath.Join(string(root), "etc", "passwd"))); !strings.Contains(passwd, "relay:x:") {
			t.Errorf("no user relay: %s", passwd)
		}
	}
}

// TestThePackagesConfigIsValid has the relay of the package validate the config of the package.
func TestThePackagesConfigIsValid(t *testing.T) {
	root := newDebRoot(t)
	root.dpkg(t, "-i", debOf(runtime.GOARCH))
	cmd := exec.Command("chroot", string(root), "/usr/bin/relay", "validate")
	if got := output(t, cmd); !strings.Contains(got, "/etc/relay/relay.yaml") {
		t.Errorf("relay validate: %s", got)
	}
	unit := string(read(t, filepath.Join(string(root), "usr", "lib", "systemd", "system", "relay.service")))
	if !strings.Contains(unit, "\nExecStart=/usr/bin/relay serve -c /etc/relay/relay.yaml\n") || !strings.Contains(unit, "\nStateDirectory=relay\n") {
		t.Errorf("the unit does not start the relay of the package:\n%s", unit)
	}
}

func TestScriptsTellSystemdOnlyWhereItRuns(t *testing.T) {
	for _, runs := range []bool{false, true} {
		root := newDebRoot(t)
		want := func(when string, calls ...string) {
			t.Helper()
			all := ""
			for _, call := range calls {
				if runs || !strings.HasPrefix(call, "systemctl ") {
					all += call + "\n"
				}
			}
			if got := root.calls(t); got != all {
				t.Errorf("systemd runs %v: %s calls %q, want %q", runs, when, got, all)
			}
		}
		if runs {
			root.write(t, "/run/systemd/system/", "")
		}
		root.dpkg(t, "-i", debOf(runtime.GOARCH))
		want("an installation", "systemd-sysusers relay.conf", "systemctl daemon-reload")
		// The package is its own upgrade here.
		config := filepath.Join(string(root), "etc", "relay", "relay.yaml")
		if err := os.WriteFile(config, []byte("# mine\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		root.dpkg(t, "-i", debOf(runtime.GOARCH))
		want("an upgrade", "systemctl daemon-reload", "systemd-sysusers relay.conf", "systemctl daemon-reload")
		if got := string(read(t, config)); got != "# mine\n" {
			t.Errorf("an upgrade has changed the config: %s", got)
		}
		root.dpkg(t, "-r", "relay")
		want("a removal", "systemctl disable --now relay.service", "systemctl daemon-reload")
		if _, err := os.Stat(config); err != nil {
			t.Errorf("a removal has taken the config: %v", err)
		}
		root.dpkg(t, "-P", "relay")
		want("a purge", "systemctl daemon-reload")
		if _, err := os.Stat(config); !os.IsNotExist(err) {
			t.Errorf("a purge has left the config: %v", err)
		}
	}
}

func TestTheDebNamesItsArchitecture(t *testing.T) {
	for _, p := range linux() {
		if got := output(t, exec.Command("dpkg-deb", "-f", debOf(p.arch), "Architecture")); strings.TrimSpace(got) != p.arch {
			t.Errorf("architecture %s, want %s", got, p.arch)
		}
	}
}

func TestTheRPMHasTheFilesOfTheDeb(t *testing.T) {
	for arch, of := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		f, err := os.Open(filepath.Join(built, "relay-1.2.3~rc.1-1."+of+".rpm"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		rpm, err := rpmutils.ReadRpm(f)
		if err != nil {
			t.Fatal(err)
		}
		nevra, err := rpm.Header.GetNEVRA()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprintf("%s-%s-%s.%s", nevra.Name, nevra.Version, nevra.Release, nevra.Arch), "relay-1.2.3~rc.1-1."+of; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		files, err := rpm.Header.GetFiles()
		if err != nil {
			t.Fatal(err)
		}
		found, dirs := map[string]fs.FileMode{}, []string{}
		const directory, config, noReplace = 0o040000, 1, 16
		for _, f := range files {
			if f.Mode()&0o170000 == directory {
				dirs = append(dirs, f.Name())
				continue
			}
			found[f.Name()] = fs.FileMode(f.Mode() & 0o7777)
			if isConfig := f.Flags()&(config|noReplace) == config|noReplace; isConfig != (f.Name() == "/etc/relay/relay.yaml") {
				t.Errorf("%s: flags %b", f.Name(), f.Flags())
			}
			if f.UserName() != "root" || f.GroupName() != "root" || fmt.Sprint(f.Mtime()) != epoch {
				t.Errorf("%s: owner %s:%s, time %d", f.Name(), f.UserName(), f.GroupName(), f.Mtime())
			}
		}
		checkFiles(t, "rpm", found)
		// rpm removes the directories that a package lists, and leaves others behind.
		if want := []string{"/etc/relay", "/etc/relay/resources", "/usr/share/doc/relay", "/usr/share/licenses/relay", "/usr/share/relay"}; !slices.Equal(dirs, want) {
			t.Errorf("directories %q, want %q", dirs, want)
		}
		for tag, script := range map[int]string{rpmutils.POSTIN: "postinstall.sh", rpmutils.PREUN: "preremove.sh", rpmutils.POSTUN: "postremove.sh"} {
			want := string(read(t, filepath.Join(repository, "deploy", "packages", script)))
			if got, err := rpm.Header.GetString(tag); err != nil || got != want {
				t.Errorf("%s: %q, %v", script, got, err)
			}
		}
		dir := t.TempDir()
		if err := rpm.ExpandPayload(dir); err != nil {
			t.Fatal(err)
		}
		if string(read(t, filepath.Join(dir, "usr", "bin", "relay"))) != string(archive(t, platform{"linux", arch})["relay"].content) {
			t.Errorf("%s: the relay is not that of the archive", of)
		}
	}
}

// TestAnRPMsUpgradeLeavesTheRelayRunning: rpm gives scripts the number of versions that are left.
func TestAnRPMsUpgradeLeavesTheRelayRunning(t *testing.T) {
	root := newDebRoot(t)
	root.write(t, "/run/systemd/system/", "")
	root.write(t, "/preremove.sh", string(read(t, filepath.Join(repository, "deploy", "packages", "preremove.sh"))))
	for argument, want := range map[string]string{"1": "", "upgrade": "", "0": "systemctl disable --now relay.service\n", "remove": "systemctl disable --now relay.service\n"} {
		output(t, exec.Command("chroot", string(root), "/preremove.sh", argument))
		if got := root.calls(t); got != want {
			t.Errorf("preremove.sh %s calls %q, want %q", argument, got, want)
		}
	}
}
