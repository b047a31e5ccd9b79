package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// directory is a source that is a directory of files, one for each config.
type directory struct {
	source *source
	path   string
	// spool is where files are written before they are moved into place.
	spool string
	// broken is the key whose file is spoilt, and -1 when none is.
	broken int
}

func newDirectory(s *source, dir string) (*directory, error) {
	d := &directory{source: s, path: filepath.Join(dir, s.name), spool: filepath.Join(dir, s.name+".spool"), broken: -1}
	for _, path := range []string{d.path, d.spool} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *directory) file(key int) string {
	return filepath.Join(d.path, fmt.Sprintf("config-%06d.yaml", key))
}

// follow brings the file of a key to what the source has, unless that is spoilt.
func (d *directory) follow(key int) error {
	if key == d.broken {
		return nil
	}
	w := d.source.world
	w.mu.Lock()
	it := d.source.items[key]
	seq, present := it.seq, it.present
	d.source.record(key, seq, present)
	w.mu.Unlock()
	if !present {
		if err := os.Remove(d.file(key)); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	text, err := d.yaml(key, seq)
	if err != nil {
		return err
	}
	return d.replace(key, text)
}

// replace moves a file into place, so that nobody reads half of it.
func (d *directory) replace(key int, text []byte) error {
	spooled := filepath.Join(d.spool, filepath.Base(d.file(key)))
	if err := os.WriteFile(spooled, text, 0o600); err != nil {
		return err
	}
	return os.Rename(spooled, d.file(key))
}

// breakOne spoils the file of a key until mend.
func (d *directory) breakOne(key int) error {
	d.broken = key
	return d.replace(key, []byte("apiVersion: networking.istio.io/v1\nkind: [ServiceEntry\n"))
}

func (d *directory) mend() error {
	key := d.broken
	if d.broken = -1; key < 0 {
		return nil
	}
	return d.follow(key)
}

// yaml returns a content as people write it. JSON is YAML.
func (d *directory) yaml(key, seq int) ([]byte, error) {
	o, err := manifest(d.source.name, key, seq)
	if err != nil {
		return nil, err
	}
	return json.Marshal(o)
}
