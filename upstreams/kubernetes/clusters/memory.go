package clusters

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"meshrelay/internal/owner"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

const (
	memoryName = "clusters.json"
	// maxMemory bounds the file, in bytes.
	maxMemory = 8 << 20
)

// kept is one part in the file.
type kept struct {
	Name     string             `json:"name"`
	Source   string             `json:"source"`
	Clusters []registry.Cluster `json:"clusters"`
}

// memory is the list of clusters on disk.
type memory struct {
	dir  string // empty: it keeps nothing
	last []byte // the content last written or read
	// unread is set if the file exists and could not be read. It stays on disk until all parts were read,
	// because the next start would forget clusters that a shorter list lacks.
	unread atomic.Bool
}

// load reads the file. After an error it returns no clusters.
func (m *memory) load() (all []kept, err error) {
	if m.dir == "" {
		return nil, nil
	}
	if err := owner.ReadJSON(filepath.Join(m.dir, memoryName), maxMemory, &all); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m.last, err = textOf(all)
	for i := range all {
		all[i].Clusters = slices.DeleteFunc(all[i].Clusters, func(c registry.Cluster) bool { return !c.Valid() })
	}
	return all, err
}

// textOf returns the content of the file.
func textOf(all []kept) ([]byte, error) { return json.MarshalIndent(all, "", "  ") }

// save writes the file if its content has changed.
func (m *memory) save(all []kept) error {
	if m.dir == "" {
		return nil
	}
	text, err := textOf(all)
	if err != nil || bytes.Equal(text, m.last) || m.last == nil && len(all) == 0 {
		return err
	}
	err = owner.Replace(filepath.Join(m.dir, memoryName), func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	m.last = text
	m.unread.Store(false)
	return nil
}

// unknown is the content of the file in a backup when the real content is unknown. It does not decode, so a
// relay that is restored with it keeps the state of all upstreams.
const unknown = "it is not known which clusters there were"

// present returns the list to write, and whether all parts were read since the start. The caller holds mu.
func (f *Finder) present() (all []kept, known bool) {
	known = true
	for _, p := range f.parts {
		all = append(all, kept{p.cfg.Name, sourceOf(p.cfg), p.registry.Clusters()})
		known = known && !p.readAt.IsZero()
	}
	return all, known
}

// Backup returns the name and the present content of the file, for a copy of the state. It returns nil if
// there are no clusters.
func (f *Finder) Backup() (name string, text []byte) {
	f.mu.Lock()
	all, known := f.present()
	f.mu.Unlock()
	text, err := textOf(all)
	switch unread := f.memory.unread.Load() && !known; {
	case err != nil || unread:
		text = []byte(unknown)
	case len(all) == 0:
		return memoryName, nil
	}
	return memoryName, text
}

// Answered reports whether all parts were read since the start: then a cluster that is not found is gone.
func (f *Finder) Answered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.present()
	return known
}
