package main

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is a file or directory of an archive or of a layer of the image.
type file struct {
	path   string // with slashes, without a leading one; that of a directory ends with one
	source string // the file with its content
	mode   int64  // 0: 0644, or 0755 for a directory
	owner  int    // user and group
}

// writeTar writes files as a tar archive, sorted, with all their directories and with one time.
func writeTar(w io.Writer, date time.Time, files []file) error {
	all := map[string]file{}
	for _, f := range files {
		all[f.path] = f
		for dir := path.Dir(strings.TrimSuffix(f.path, "/")); dir != "."; dir = path.Dir(dir) {
			if _, exists := all[dir+"/"]; !exists {
				all[dir+"/"] = file{path: dir + "/"}
			}
		}
	}
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		header := tar.Header{Typeflag: tar.TypeDir, Name: f.path, Mode: cmp.Or(f.mode, 0o755), Uid: f.owner, Gid: f.owner, ModTime: date}
		var content []byte
		if !strings.HasSuffix(f.path, "/") {
			var err error
			if content, err = os.ReadFile(f.source); err != nil {
				return err
			}
			header.Typeflag, header.Mode, header.Size = tar.TypeReg, cmp.Or(f.mode, 0o644), int64(len(content))
		}
		if err := out.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := out.Write(content); err != nil {
			return err
		}
	}
	return out.Close()
}

// tree lists the files of a directory for people who do not build, without tests. Links become what they lead
// to. Modes do not depend on those of the disk, which follow the umask of a checkout.
func tree(dir, prefix string) ([]file, error) {
	var out []file
	err := filepath.WalkDir(dir, func(source string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(source, "_test.go") {
			return err
		}
		if entry.IsDir() {
			return nil
		}
		relative, err := filepath.Rel(dir, source)
		f := file{path: path.Join(prefix, filepath.ToSlash(relative)), source: source}
		if strings.HasSuffix(source, ".sh") {
			f.mode = 0o755
		}
		out = append(out, f)
		return err
	})
	return out, err
}

// archives writes an archive for each platform.
func (d *dist) archives(context.Context) error {
	for _, p := range platforms {
		name := fmt.Sprintf("relay-%s-%s", d.version, p)
		files := []file{
			{path: name + "/relay", source: d.binary(p), mode: 0o755},
			{path: name + "/NOTICES", source: filepath.Join(d.work, "NOTICES")},
			{path: name + "/relay.schema.json", source: filepath.Join(d.work, "relay.schema.json")},
		}
		for _, doc := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
			files = append(files, file{path: name + "/" + doc, source: filepath.Join(d.root, doc)})
		}
		for dir, source := range map[string]string{
			"man/man1": filepath.Join(d.work, "man"), "completions": filepath.Join(d.work, "completions"),
			"samples": filepath.Join(d.root, "samples"), "deploy": filepath.Join(d.root, "deploy"),
		} {
			more, err := tree(source, name+"/"+dir)
			if err != nil {
				return err
			}
			files = append(files, more...)
		}
		if err := d.artefact(name+".tar.gz", func(w io.Writer) error {
			return zip(w, func(w io.Writer) error { return writeTar(w, d.date, files) })
		}); err != nil {
			return err
		}
	}
	return nil
}

// chart has tools/chart package the chart. Its image is that of the same version.
func (d *dist) chart(ctx context.Context) error {
	out, err := filepath.Abs(d.out)
	if err != nil {
		return err
	}
	env := []string{"GOWORK=off", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", d.date.Unix())}
	_, err = command(ctx, filepath.Join(d.root, "tools", "chart"), env, "go", "run", ".", "package", "-version", d.version, "-out", out)
	return err
}

// sums writes SHA256SUMS of all artefacts: sha256sum -c SHA256SUMS.
func (d *dist) sums(context.Context) error {
	entries, err := os.ReadDir(d.out)
	if err != nil {
		return err
	}
	return d.artefact("SHA256SUMS", func(w io.Writer) error {
		for _, entry := range entries {
			content, err := os.ReadFile(filepath.Join(d.out, entry.Name()))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(content), entry.Name()); err != nil {
				return err
			}
		}
		return nil
	})
}
