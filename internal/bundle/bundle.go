// Package bundle writes a support bundle: an archive of bounded files without secrets, and a manifest that
// describes each file.
//
// The package must not know the content of the files.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Bounds of a bundle, in bytes.
const (
	maxFile = 8 << 20  // each file
	MaxAll  = 64 << 20 // all of them together
)

// Writer writes an archive, tar.gz. Its methods are for one goroutine.
type Writer struct {
	zip  *gzip.Writer
	tar  *tar.Writer
	dir  string
	now  time.Time
	left int
	list strings.Builder
	err  error // of the archive: nothing more is written
}

// New returns a Writer to w. Its files are in directory dir and have the modification time now.
func New(w io.Writer, dir string, now time.Time) *Writer {
	zip := gzip.NewWriter(w)
	return &Writer{zip: zip, tar: tar.NewWriter(zip), dir: dir, now: now, left: MaxAll}
}

// Text adds a text file with the output of write. It replaces secrets and cuts the file at the bounds.
// The manifest notes an error of write.
func (b *Writer) Text(name, why string, write func(io.Writer) error) { b.add(name, why, write, Redact) }

// Binary adds a file that is not text. Its secrets, if any, are not replaced.
func (b *Writer) Binary(name, why string, write func(io.Writer) error) {
	b.add(name, why, write, func(content []byte) []byte { return content })
}

func (b *Writer) add(name, why string, write func(io.Writer) error, redact func([]byte) []byte) {
	if b.err != nil {
		return
	}
	most := min(maxFile, b.left)
	room := buffer{left: most}
	problem := write(&room)
	content := redact(room.kept.Bytes())
	if all := len(content) + room.over; all > most { // the replacement of a secret may be longer
		content = content[:min(len(content), most)]
		content = content[:cmp.Or(bytes.LastIndexByte(content, '\n')+1, len(content))] // whole lines only
		problem = fmt.Errorf("cut at the size limit, %d of its %d bytes are left out", all-len(content), all)
	}
	note := ""
	if problem != nil {
		note = "  (" + string(Redact([]byte(problem.Error()))) + ")"
	}
	fmt.Fprintf(&b.list, "%-28s %9d  %s%s\n", name, len(content), why, note)
	if len(content) == 0 && problem != nil {
		return
	}
	b.left -= len(content)
	b.file(name, content)
}

func (b *Writer) file(name string, content []byte) {
	if b.err != nil {
		return
	}
	header := &tar.Header{Name: b.dir + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: b.now, Format: tar.FormatPAX}
	if b.err = b.tar.WriteHeader(header); b.err == nil {
		_, b.err = b.tar.Write(content)
	}
}

// Close writes MANIFEST.txt, which describes each file, and ends the archive.
func (b *Writer) Close() error {
	b.file("MANIFEST.txt", []byte("Support bundle "+b.dir+`

Read the files before you send them: all but the profiles are plain text. Tokens, keys, passwords and
the paths of URLs are replaced. The names of upstreams, clients and resources are not.

`+fmt.Sprintf("%-28s %9s  %s\n", "FILE", "BYTES", "WHAT IT IS FOR")+b.list.String()))
	return errors.Join(b.err, b.tar.Close(), b.zip.Close())
}

// buffer keeps up to left bytes, and counts those after them.
type buffer struct {
	kept       bytes.Buffer // not embedded: its WriteString and ReadFrom ignore the bound
	left, over int
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	fits := min(len(p), b.left)
	b.left, b.over = b.left-fits, b.over+len(p)-fits
	b.kept.Write(p[:fits]) // it never fails
	return len(p), nil
}
