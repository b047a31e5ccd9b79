package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	ociv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// write writes the files of an archive.
func write(t *testing.T, dir string, files map[string]packed) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f, to := files[path], filepath.Join(dir, path)
		var err error
		if f.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
			err = os.WriteFile(to, f.content, 0o600)
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(to, f.Uid, f.Gid)
		}
		if err == nil {
			err = os.Chmod(to, f.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// images returns the index in the archive of the image, and its images by architecture.
func images(t *testing.T) (ociv1.ImageIndex, map[string]ociv1.Image) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, untar(t, bytes.NewReader(read(t, filepath.Join(built, "relay-"+testVersion+"-image.tar")))))
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if m := manifest.Manifests; len(m) != 1 || m[0].Annotations["org.opencontainers.image.ref.name"] != testVersion || m[0].Annotations["io.containerd.image.name"] != "docker.io/library/relay:"+testVersion {
		t.Fatalf("index.json: %+v", m)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	out := map[string]ociv1.Image{}
	for _, m := range manifest.Manifests {
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if m.Platform == nil || m.Platform.OS != "linux" {
			t.Errorf("platform %v", m.Platform)
			continue
		}
		out[m.Platform.Architecture] = image
	}
	return index, out
}

// contents returns the files of an image.
func contents(t *testing.T, image ociv1.Image) map[string]packed {
	t.Helper()
	r := mutate.Extract(image)
	defer r.Close()
	return untar(t, r)
}

func TestTheImageIsValidForBothArchitectures(t *testing.T) {
	index, all := images(t)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"amd64", "arm64"}) {
		t.Errorf("architectures %q", got)
	}
}

func TestTheImageIsTakenByARegistry(t *testing.T) {
	index, _ := images(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/relay:" + testVersion)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := index.Digest()
	if got, err := pulled.Digest(); err != nil || got != want {
		t.Errorf("digest %v, %v; want %v", got, err, want)
	}
}

func TestTheImageIsNotRunAsRoot(t *testing.T) {
	_, all := images(t)
	for arch, image := range all {
		file, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		revision := file.Config.Labels["org.opencontainers.image.revision"]
		if !regexp.MustCompile(`^[0-9a-f]{40}(-dirty)?$`).MatchString(revision) {
			t.Errorf("%s: revision %q", arch, revision)
		}
		// PATH is how "kubectl exec POD -- relay status" finds the relay.
		want := ociv1.Config{
			User: "65532:65532", Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"relay"}, Cmd: []string{"serve", "-c", "/etc/relay/relay.yaml"},
			Labels: map[string]string{
				"org.opencontainers.image.title": "relay", "org.opencontainers.image.description": "Relay and federation proxy for Istio configuration",
				"org.opencontainers.image.version": testVersion, "org.opencontainers.image.revision": revision,
				"org.opencontainers.image.created": "2023-11-14T22:13:20Z", "org.opencontainers.image.licenses": "Apache-2.0",
			},
		}
		if d := cmp.Diff(want, file.Config); d != "" {
			t.Errorf("%s: config: -want +got:\n%s", arch, d)
		}
		if file.OS != "linux" || file.Architecture != arch || fmt.Sprint(file.Created.Unix()) != epoch {
			t.Errorf("%s: %s/%s of %v", arch, file.OS, file.Architecture, file.Created)
		}
	}
}

func TestTheUserOfTheImageIsThatOfTheManifests(t *testing.T) {
	manifest := string(read(t, filepath.Join(repository, "deploy", "kubernetes", "relay.yaml")))
	for _, field := range []string{"runAsUser", "runAsGroup", "fsGroup"} {
		m := regexp.MustCompile(`(?m)^ *` + field + `: (\d+)$`).FindStringSubmatch(manifest)
		if m == nil || m[1] != fmt.Sprint(user) {
			t.Errorf("%s: %q, the image has %d", field, m, user)
		}
	}
}

func TestTheImageHasTheRelayAndLittleElse(t *testing.T) {
	_, all := images(t)
	for arch, image := range all {
		files := contents(t, image)
		got := map[string]string{}
		for path, f := range files {
			got[strings.Trim(path, "/")] = fmt.Sprintf("%o %d:%d", f.Mode, f.Uid, f.Gid)
		}
		want := map[string]string{}
		for _, dir := range []string{"etc", "etc/relay", "etc/ssl", "etc/ssl/certs", "usr", "usr/bin", "usr/share", "usr/share/doc", "usr/share/doc/relay", "var", "var/lib"} {
			want[dir] = "755 0:0"
		}
		for _, file := range []string{"etc/passwd", "etc/group", "etc/ssl/certs/ca-certificates.crt", "usr/share/doc/relay/LICENSE", "usr/share/doc/relay/NOTICES"} {
			want[file] = "644 0:0"
		}
		want["tmp"], want["usr/bin/relay"], want["var/lib/relay"] = "1777 0:0", "755 0:0", "700 65532:65532"
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: -want +got:\n%s", arch, d)
		}
		if !strings.Contains(string(files["etc/passwd"].content), "\nrelay:x:65532:65532:") || !strings.Contains(string(files["etc/group"].content), "\nrelay:x:65532:") {
			t.Errorf("%s: no user relay: %s%s", arch, files["etc/passwd"].content, files["etc/group"].content)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"].content) || bytes.Count(files["etc/ssl/certs/ca-certificates.crt"].content, []byte("BEGIN")) < 50 {
			t.Errorf("%s: no roots of public certificates", arch)
		}
		if !bytes.Equal(files["usr/bin/relay"].content, archive(t, platform{"linux", arch})["relay"].content) {
			t.Errorf("%s: the relay is not that of the archive", arch)
		}
	}
}

// TestTheImageServes runs the image as a container engine does, as far as a test can: its files are the root,
// its user, environment, entrypoint and command are those of the process. The config is mounted.
func TestTheImageServes(t *testing.T) {
	_, all := images(t)
	image, exists := all[runtime.GOARCH]
	if runtime.GOOS != "linux" || !exists || os.Geteuid() != 0 {
		t.Skip("needs root on Linux, on amd64 or arm64")
	}
	root := t.TempDir()
	write(t, root, contents(t, image))
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket) // it keeps the port, without listening: SO_REUSEADDR lets the relay listen on it
	if err = syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	config := `
upstreams: [{name: files, file: {path: /etc/relay/resources}}]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
state: {dir: /var/lib/relay/state}
admin: {address: "` + address + `"}
`
	if err := os.MkdirAll(filepath.Join(root, "etc", "relay", "resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "relay", "relay.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	container := func(args ...string) *exec.Cmd {
		// The engine looks the entrypoint up in PATH, within the root.
		args = append(slices.Clone(file.Config.Entrypoint), args...)
		path := filepath.Join(strings.TrimPrefix(file.Config.Env[0], "PATH="), args[0])
		return &exec.Cmd{
			Path: path, Args: args, Env: file.Config.Env, Dir: "/",
			SysProcAttr: &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}},
		}
	}
	if got := output(t, container("version")); !strings.HasPrefix(got, "relay "+testVersion+" ") {
		t.Errorf("version: %s", got)
	}
	serve := container(file.Config.Cmd...)
	var logged bytes.Buffer
	serve.Stdout, serve.Stderr = &logged, &logged
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := container("wait", "--for", "ready", "--admin", address, "--timeout", "3m").CombinedOutput(); err != nil {
		_ = serve.Process.Kill()
		_ = serve.Wait()
		t.Fatalf("the relay does not get ready: %s\n%s", out, logged.String())
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("the relay ended with %v\n%s", err, logged.String())
	}
}
