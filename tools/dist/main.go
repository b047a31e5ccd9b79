// Command dist builds what is published of the relay: archives, packages, an image, the chart, SBOMs and
// checksums. The same sources, version, time and Go toolchain give the same bytes, in any directory and on
// any machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// repository is the root of the repository, from the directory of this module.
const repository = "../.."

func main() {
	var d dist
	flag.StringVar(&d.out, "out", filepath.Join(repository, "dist"), "`directory` for the artefacts; it must be empty or missing")
	flag.StringVar(&d.version, "version", "", "`version`, such as v0.2.0 (default: git describe --tags --always --dirty)")
	flag.StringVar(&d.maintainer, "maintainer", "unpublished build <root@localhost>", "`name and address` of who publishes the packages")
	flag.Parse()
	d.root = repository
	err := d.fromVCS(context.Background())
	if err == nil {
		err = d.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// dist is one run: where it reads and writes, and what it stamps.
type dist struct {
	root, out  string
	version    string    // semantic, with a v
	revision   string    // the commit, with -dirty if files are not committed; or empty
	date       time.Time // of the commit: that of all files
	maintainer string

	work     string            // a temporary directory, for run
	licences map[string][]byte // texts of licences, by module and version, and of packages of npm by name
}

// run writes all artefacts, and SHA256SUMS of them.
func (d *dist) run(ctx context.Context) (err error) {
	if found, err := os.ReadDir(d.out); err == nil && len(found) > 0 {
		return fmt.Errorf("%s has files of another build: remove it", d.out)
	}
	if err := os.MkdirAll(d.out, 0o755); err != nil {
		return err
	}
	if d.work, err = os.MkdirTemp("", "relay-dist-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.work)) }()
	for _, step := range []func(context.Context) error{
		d.build, d.pages, d.notices, d.archives, d.sboms, d.image, d.packages, d.chart, d.sums,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// artefact creates a file of d.out, has write fill it, and prints its path.
func (d *dist) artefact(name string, write func(io.Writer) error) error {
	path := filepath.Join(d.out, name)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Println(path)
	return nil
}
