package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// part is one log as it was found: in a file of its own, or in a backup behind others.
type part struct {
	*content
	from io.ReaderAt
	info os.FileInfo // of the file; nil of a backup
}

// directory is what is found in a directory of state, or in a backup.
type directory struct {
	// index is what relay.state tells; nil when it is missing or can not be used, which indexErr
	// explains.
	index    *statepb.Index
	indexErr error
	// parts are the logs by upstream, also those that are damaged. restored tells that they are
	// of a backup that stands in the place of relay.state.
	parts    map[string]*part
	restored bool
	// missing are upstreams that the index names and of which there is no log.
	missing []string
	// old is relay.db, when it is to be read; nil when not.
	old *oldFile
	// imported is what the index is to tell of relay.db.
	imported *statepb.Imported
	files    []*os.File
	size     int64
	// damage is the first thing that is wrong.
	damage error
}

func (d *directory) note(err error) {
	if d.damage == nil {
		d.damage = err
	}
}

func (d *directory) close() {
	for _, f := range d.files {
		f.Close()
	}
}

// open opens a file.
func (d *directory) open(path string) (*os.File, os.FileInfo, error) {
	f, err := openOwn(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	d.files = append(d.files, f)
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	d.size += info.Size()
	return f, info, nil
}

// readDirectory reads all that is in a directory, and changes nothing. It fails when a file
// can not be opened.
func readDirectory(dir string) (*directory, error) {
	d := newDirectory()
	if err := d.read(dir); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func newDirectory() *directory {
	return &directory{parts: map[string]*part{}}
}

func (d *directory) read(dir string) error {
	if err := d.readBackup(filepath.Join(dir, indexName)); errors.Is(err, fs.ErrNotExist) {
		d.indexErr = err
	} else if err != nil {
		return err
	}
	d.restored = len(d.parts) > 0
	if !d.restored {
		if err := d.readLogs(dir); err != nil {
			return err
		}
	}
	for _, name := range d.index.GetUpstreams() {
		if d.parts[name] == nil {
			d.missing = append(d.missing, name)
			d.note(corruptf("upstream %.100q is missing", name))
		}
	}
	if err := d.readOld(filepath.Join(dir, oldName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readLogs reads the logs of a directory: those that the index names, and others.
func (d *directory) readLogs(dir string) error {
	names := slices.DeleteFunc(slices.Clone(d.index.GetUpstreams()), func(name string) bool { return !state.IsName(name) })
	for _, path := range list(dir, logName("*")) {
		if name := upstreamOf(path); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		f, info, err := d.open(filepath.Join(dir, logName(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is missing
		}
		if err != nil {
			return err
		}
		d.readPart(f, info.Size(), name, info)
	}
	return nil
}

// readPart reads one log. name is empty, and info nil, for a part of a backup.
func (d *directory) readPart(from io.ReaderAt, size int64, name string, info os.FileInfo) {
	c := replay(from, size)
	if name == "" {
		name = c.name
	}
	switch {
	case c.index != nil && c.damage == nil:
		d.index = c.index
		return
	case !state.IsName(name):
		d.note(corruptf("%.100q is no name of an upstream", name))
		return
	case c.name != name && !c.lost:
		c.damage, c.lost = corruptf("it is of upstream %.100q", c.name), true
	}
	if c.damage != nil {
		d.note(fmt.Errorf("upstream %s: %w", name, c.damage))
	}
	d.parts[name] = &part{c, from, info}
}

// readBackup reads a file that holds an index, and, when it is a backup, the logs behind it.
func (d *directory) readBackup(path string) error {
	f, info, err := d.open(path)
	if err != nil {
		return err
	}
	size := info.Size()
	for at := int64(0); at < size || at == 0; {
		rest := io.NewSectionReader(f, at, size-at)
		h, err := readHead(rest)
		if err != nil {
			d.note(err)
			if d.index == nil {
				d.indexErr = err
			}
			break
		}
		d.readPart(rest, min(max(h.durable, 0), rest.Size()), "", nil)
		at += max(h.durable, headLen)
	}
	if d.index == nil && d.indexErr == nil {
		d.indexErr = corruptf("%s does not tell which upstreams there are", path)
		d.note(d.indexErr)
	}
	return nil
}

// readOld reads relay.db when it is not the one that was read before.
func (d *directory) readOld(path string) error {
	o, bolt, err := openOld(path)
	if err != nil {
		return err
	}
	d.files = append(d.files, o.file)
	d.imported = o.from
	was := d.index.GetImported()
	switch {
	case was != nil && was.Size == o.from.Size && (was.Mtime == o.from.Mtime || was.Transaction == o.from.Transaction):
		return nil
	case d.restored:
		return nil // somebody wants the backup
	case d.index == nil && len(d.parts) > 0:
		// The index is lost that would tell. Logs are made after an index is, so that these are
		// not left of a first start that was cut short: they are newer.
		return nil
	}
	if bolt != nil {
		o.read(bolt)
	}
	if o.damage != nil && len(d.parts) > 0 {
		// What is here is whole, and what is there is not.
		d.note(fmt.Errorf("%s: %w", oldName, o.damage))
		d.old = &oldFile{damage: o.damage}
		return nil
	}
	if o.damage != nil {
		d.note(fmt.Errorf("%s: %w", oldName, o.damage))
	}
	d.old = o
	return nil
}

// convertOld makes parts of what relay.db holds, in memory.
func (d *directory) convertOld() error {
	if d.old == nil || len(d.old.sources) == 0 {
		return nil
	}
	d.parts = map[string]*part{}
	for name := range d.old.sources {
		var m memory
		if err := d.old.writeLog(name, newLog(&m)); err != nil {
			return fmt.Errorf("%s: upstream %s: %w", oldName, name, err)
		}
		d.readPart(bytes.NewReader(m), int64(len(m)), name, nil)
	}
	return nil
}

// lost reports whether part of what was kept is not there any more.
func (d *directory) lost() bool {
	for _, p := range d.parts {
		if p.lost {
			return true
		}
	}
	return d.indexErr != nil || len(d.missing) > 0
}

// served reports whether clients were served with this state, and nothing of it is lost.
func (d *directory) served() bool {
	if d.old != nil && d.old.sources != nil {
		return d.old.hasServed()
	}
	return d.index.GetServed() && !d.lost()
}
