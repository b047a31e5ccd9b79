package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "-" + p.arch }

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// linux returns the platforms of packages and of the image.
func linux() []platform {
	return slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool { return p.os != "linux" })
}

func (d *dist) binary(p platform) string { return filepath.Join(d.work, p.String(), "relay") }

// command runs a program in a directory, with more variables of the environment, and returns its output without
// space around it.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(bytes.TrimSpace(out)), nil
}

// goEnv are the variables on which the result of a build depends.
func goEnv(p platform) []string {
	return []string{
		"GOOS=" + p.os, "GOARCH=" + p.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
		"GOFLAGS=-mod=readonly", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off", "GOTOOLCHAIN=local",
	}
}

// build builds the relay for each platform. VCS information comes by the version alone, so that a source
// archive gives the same bytes as a clone.
func (d *dist) build(ctx context.Context) error {
	for _, p := range platforms {
		path, err := filepath.Abs(d.binary(p))
		if err != nil {
			return err
		}
		if _, err := command(ctx, d.root, goEnv(p), "go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+d.version, "-o", path, "./cmd/relay"); err != nil {
			return fmt.Errorf("build for %s: %w", p, err)
		}
	}
	return nil
}

// pages has the relay of this machine write its manual pages, completions and schema. Packages have the pages
// compressed.
func (d *dist) pages(ctx context.Context) error {
	relay := d.binary(platform{runtime.GOOS, runtime.GOARCH})
	if _, err := os.Stat(relay); err != nil {
		return fmt.Errorf("this machine runs none of the relays (%v): use one of these platforms", platforms)
	}
	if _, err := command(ctx, "", []string{"TZ=UTC", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", d.date.Unix())}, relay, "help", "man", filepath.Join(d.work, "man")); err != nil {
		return err
	}
	pages, err := tree(filepath.Join(d.work, "man"), "")
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page.source)
		if err != nil {
			return err
		}
		var compressed bytes.Buffer
		if err := zip(&compressed, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
		if err := d.stage("man.gz/"+page.path+".gz", compressed.Bytes()); err != nil {
			return err
		}
	}
	for name, args := range map[string][]string{
		"completions/relay.bash": {"completion", "bash"}, "completions/_relay": {"completion", "zsh"}, "completions/relay.fish": {"completion", "fish"},
		"relay.schema.json": {"schema"},
	} {
		text, err := command(ctx, "", nil, relay, args...)
		if err != nil {
			return err
		}
		if err := d.stage(name, []byte(text+"\n")); err != nil {
			return err
		}
	}
	return nil
}

// stage writes a file of d.work.
func (d *dist) stage(name string, content []byte) error {
	path := filepath.Join(d.work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// zip writes what write gives it through gzip, without a name or a time.
func zip(w io.Writer, write func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close())
}

// notices writes the licences of all that is in the binaries, of any platform.
func (d *dist) notices(ctx context.Context) error {
	linked := map[string]bool{}
	for _, p := range platforms {
		info, err := buildinfo.ReadFile(d.binary(p))
		if err != nil {
			return err
		}
		for _, m := range info.Deps {
			linked[m.Path] = true
		}
	}
	d.licences = map[string][]byte{}
	var text bytes.Buffer
	fmt.Fprintf(&text, "The relay has code of others. These are their licences and notices.\n")
	goroot, err := command(ctx, d.root, []string{"GOWORK=off"}, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	args := append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, slices.Sorted(maps.Keys(linked))...)
	modules, err := command(ctx, d.root, []string{"GOWORK=off"}, "go", args...)
	if err != nil {
		return err
	}
	for line := range strings.Lines("Go " + runtime.Version() + "\t" + goroot + "\nThe web page\t" + filepath.Join(d.root, "admin", "ui", "vendor") + "\n" + modules + "\n") {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		found := 0
		for _, pattern := range []string{"LICEN[SC]E*", "COPYING*", "NOTICE*", "*.LICENSE"} {
			paths, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return err
			}
			for _, path := range paths {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				found++
				of := name
				if npm, is := strings.CutSuffix(filepath.Base(path), ".LICENSE"); is {
					of = npm
				}
				if !strings.HasPrefix(pattern, "NOTICE") {
					d.licences[of] = append(append(d.licences[of], content...), '\n')
				}
				fmt.Fprintf(&text, "\n==== %s: %s\n\n%s\n", name, filepath.Base(path), bytes.TrimSpace(content))
			}
		}
		if found == 0 {
			return fmt.Errorf("%s has no licence in %s: look for it, and do not publish what has none", name, dir)
		}
	}
	return d.stage("NOTICES", text.Bytes())
}
