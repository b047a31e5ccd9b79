package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"debug/macho"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	testVersion    = "v1.2.3-rc.1"
	testMaintainer = "Tests <root@localhost>"
	epoch          = "1700000000"
)

// built is the directory of the artefacts that all tests look at.
var built string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "relay-dist-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = filepath.Join(dir, "dist")
	os.Setenv("SOURCE_DATE_EPOCH", epoch)
	d := dist{root: repository, out: built, version: testVersion, maintainer: testMaintainer}
	if err := d.fromVCS(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := d.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// output runs a program and returns what it prints on both.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// digests returns the SHA-256 of each file of a directory.
func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		out[entry.Name()] = fmt.Sprintf("%x", sha256.Sum256(read(t, filepath.Join(dir, entry.Name()))))
	}
	return out
}

// TestASecondBuildHasTheSameDigests: another copy of the sources, in another directory, with other rights of its
// files, another time zone and fewer processors.
func TestASecondBuildHasTheSameDigests(t *testing.T) {
	sources := filepath.Join(t.TempDir(), "sources")
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = repository
	for name := range strings.SplitSeq(strings.TrimSuffix(output(t, list), "\x00"), "\x00") {
		from, to := filepath.Join(repository, name), filepath.Join(sources, name)
		info, err := os.Lstat(from)
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(to, read(t, from), 0o600|info.Mode()&0o100); err != nil {
			t.Fatal(err)
		}
	}
	git := exec.Command("git", "rev-parse", "--absolute-git-dir")
	git.Dir = repository
	gitDir := strings.TrimSpace(output(t, git))
	out := filepath.Join(t.TempDir(), "dist")
	again := exec.Command("sh", "-c", `umask 077 && exec go run . "$@"`, "sh", "-out", out, "-version", testVersion, "-maintainer", testMaintainer)
	again.Dir = filepath.Join(sources, "tools", "dist")
	again.Env = append(os.Environ(), "GOWORK=off", "GIT_DIR="+gitDir, "TZ=Asia/Kathmandu", "LC_ALL=C", "GOMAXPROCS=1")
	output(t, again)
	if d := cmp.Diff(digests(t, built), digests(t, out)); d != "" {
		t.Errorf("digests: -first +second:\n%s", d)
	}
}

func TestABuildDoesNotMixWithAnother(t *testing.T) {
	d := dist{root: repository, out: built, version: testVersion}
	if err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("error %v", err)
	}
}

// TestEveryArtefactHasAChecksum lists all artefacts.
func TestEveryArtefactHasAChecksum(t *testing.T) {
	want := []string{
		"meshrelay-1.2.3-rc.1.tgz",
		"relay-1.2.3~rc.1-1.aarch64.rpm", "relay-1.2.3~rc.1-1.x86_64.rpm", "relay_1.2.3~rc.1-1_amd64.deb", "relay_1.2.3~rc.1-1_arm64.deb",
		"relay-v1.2.3-rc.1-image.tar",
	}
	for _, p := range platforms {
		want = append(want, fmt.Sprintf("relay-v1.2.3-rc.1-%s.tar.gz", p), fmt.Sprintf("relay-v1.2.3-rc.1-%s.spdx.json", p))
	}
	slices.Sort(want)
	found := digests(t, built)
	delete(found, "SHA256SUMS")
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("artefacts: -want +got:\n%s", cmp.Diff(want, got))
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(read(t, filepath.Join(built, "SHA256SUMS")))) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = digest
	}
	if d := cmp.Diff(found, listed); d != "" {
		t.Errorf("SHA256SUMS: -files +listed:\n%s", d)
	}
	check := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	check.Dir = built
	output(t, check)
}

// packed is a file in an archive.
type packed struct {
	tar.Header
	content []byte
}

func untar(t *testing.T, r io.Reader) map[string]packed {
	t.Helper()
	out := map[string]packed{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		out[header.Name] = packed{*header, content}
	}
}

// archive returns the files of the archive for a platform, without its top directory.
func archive(t *testing.T, p platform) map[string]packed {
	t.Helper()
	name := "relay-" + testVersion + "-" + p.String()
	z, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join(built, name+".tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]packed{}
	for path, f := range untar(t, z) {
		relative, inside := strings.CutPrefix(path, name+"/")
		if !inside {
			t.Errorf("%s: %s is not in the directory %s", p, path, name)
		}
		if fmt.Sprint(f.ModTime.Unix()) != epoch || f.Uid != 0 || f.Gid != 0 || f.Uname != "" {
			t.Errorf("%s: %s has the time %v and the owner %d:%d %q", p, path, f.ModTime, f.Uid, f.Gid, f.Uname)
		}
		if base := filepath.Base(path); strings.HasSuffix(base, "_test.go") || f.Typeflag != tar.TypeReg && f.Typeflag != tar.TypeDir {
			t.Errorf("%s: %s, type %q, has no place in an archive", p, path, f.Typeflag)
		}
		out[relative] = f
	}
	return out
}

func TestArchivesHaveWhatAHostNeeds(t *testing.T) {
	for _, p := range platforms {
		files := archive(t, p)
		for _, name := range []string{
			"LICENSE", "NOTICES", "README.md", "CHANGELOG.md", "relay.schema.json", "man/man1/relay.1", "man/man1/relay-get.1",
			"completions/relay.bash", "completions/_relay", "completions/relay.fish", "samples/relay.yaml",
			"deploy/systemd/relay.service", "deploy/kubernetes/relay.yaml", "deploy/prometheus/alerts.yaml",
			"deploy/chart/Chart.yaml", "deploy/chart/files/alerts.yaml", "deploy/chart/files/rules.yaml", "deploy/chart/files/dashboard.json",
		} {
			if f, exists := files[name]; !exists || len(f.content) == 0 || f.Mode != 0o644 {
				t.Errorf("%s: %s: exists %v, %d bytes, mode %o", p, name, exists, len(f.content), f.Mode)
			}
		}
		if f := files["relay"]; f.Mode != 0o755 {
			t.Errorf("%s: the mode of the relay is %o", p, f.Mode)
		}
	}
}

func TestBinariesAreForTheirPlatform(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	cpus := map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}
	for _, p := range platforms {
		content := bytes.NewReader(archive(t, p)["relay"].content)
		if p.os == "darwin" {
			if f, err := macho.NewFile(content); err != nil || f.Cpu != cpus[p.arch] {
				t.Errorf("%s: %v, %v", p, f, err)
			}
			continue
		}
		f, err := elf.NewFile(content)
		if err != nil || f.Machine != machines[p.arch] {
			t.Fatalf("%s: %v, %v", p, f, err)
		}
		// An image from nothing has no interpreter, and symbols are a third of the program.
		for _, prog := range f.Progs {
			if prog.Type == elf.PT_INTERP {
				t.Errorf("%s: the binary is not static", p)
			}
		}
		if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
			t.Errorf("%s: the binary has symbols", p)
		}
	}
}

// extract writes the relay of this machine's archive.
func extract(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay")
	if err := os.WriteFile(path, archive(t, platform{runtime.GOOS, runtime.GOARCH})["relay"].content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheVersionIsStamped(t *testing.T) {
	var got struct{ Version string }
	if err := json.Unmarshal([]byte(output(t, exec.Command(extract(t), "version", "-o", "json"))), &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != testVersion {
		t.Errorf("version %q, want %s", got.Version, testVersion)
	}
}

// TestEveryModuleHasItsNotice: whoever passes a binary on passes on the licences of what is in it.
func TestEveryModuleHasItsNotice(t *testing.T) {
	path := extract(t)
	notices := string(archive(t, platform{runtime.GOOS, runtime.GOARCH})["NOTICES"].content)
	modules := linked(t, path)
	for module, version := range modules {
		if !strings.Contains(notices, "\n==== "+module+" "+version+": ") {
			t.Errorf("NOTICES has no licence of %s %s", module, version)
		}
	}
	for _, name := range []string{"==== Go go1.", "==== The web page: idiomorph.LICENSE"} {
		if !strings.Contains(notices, "\n"+name) {
			t.Errorf("NOTICES has no %q", name)
		}
	}
	if len(modules) < 20 {
		t.Errorf("%d modules", len(modules))
	}
}

// linked returns the modules of a binary, with their versions, as the go command prints them.
func linked(t *testing.T, binary string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(output(t, exec.Command("go", "version", "-m", binary))) {
		if f := strings.Fields(line); len(f) >= 3 && (f[0] == "dep" || f[0] == "=>") {
			out[f[1]] = f[2]
		}
	}
	return out
}

// TestManualPagesHaveTheTextOfTheHelp: cobra makes them of Markdown, which the help is not.
func TestManualPagesHaveTheTextOfTheHelp(t *testing.T) {
	relay := extract(t)
	pages := 0
	for name, page := range archive(t, platform{runtime.GOOS, runtime.GOARCH}) {
		base, isPage := strings.CutSuffix(filepath.Base(name), ".1")
		if !isPage || strings.HasPrefix(base, "relay-completion") {
			continue
		}
		pages++
		help := output(t, exec.Command(relay, append(commandOf(base), "--help")...))
		long, _, _ := strings.Cut(help, "\n\nUsage:")
		text := strings.NewReplacer(`\\`, `\`, `\&`, "").Replace(string(page.content))
		if !strings.Contains(text, "\n"+long+"\n") {
			t.Errorf("%s has not the text of the help:\n%s", name, long)
		}
		if !strings.HasPrefix(text, ".nh\n.TH") || !strings.Contains(text, `"Nov 2023" "relay `+testVersion+`"`) {
			t.Errorf("%s: the title is %.200s", name, text)
		}
	}
	if pages < 30 {
		t.Errorf("%d pages", pages)
	}
}

// commandOf returns the words of a command from the name of its page: some commands have a hyphen.
func commandOf(page string) []string {
	name := strings.TrimPrefix(strings.TrimPrefix(page, "relay"), "-")
	switch {
	case name == "":
		return nil
	case strings.HasPrefix(name, "state-"), strings.HasPrefix(name, "clusters-"):
		return strings.SplitN(name, "-", 2)
	}
	return []string{name}
}

func TestManualPagesAreReadByMan(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff")
	}
	for name, page := range archive(t, platform{runtime.GOOS, runtime.GOARCH}) {
		if strings.HasSuffix(name, ".1") {
			cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
			cmd.Stdin = bytes.NewReader(page.content)
			if out := output(t, cmd); out != "" {
				t.Errorf("%s: %s", name, out)
			}
		}
	}
}
