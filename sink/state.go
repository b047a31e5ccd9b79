package sink

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"meshrelay/config"
	"meshrelay/internal/owner"
)

const (
	stateName = "sinks.json"
	maxState  = 64 << 20 // bytes: three million released deletions
)

// kept is what a sink keeps over a restart.
type kept struct {
	Name   string  `json:"name"`
	Frozen *Frozen `json:"frozen,omitempty"`
	// Holding is set while the guard holds deletions. Released are hashes of those that may go.
	Holding  bool     `json:"holding,omitempty"`
	Released []uint64 `json:"released,omitempty"`
	// Cluster and Namespace are those of the config, for a sink that has left it.
	Cluster   config.Cluster `json:"cluster"`
	Namespace string         `json:"namespace"`
}

// Frozen is the freeze of a sink.
type Frozen struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// memory has what all sinks keep, on disk if there is a directory. Any goroutine may call its methods.
type memory struct {
	dir string

	mu   sync.Mutex // guards all below
	all  map[string]kept
	lost *Frozen // of sinks that all does not have, if the file was not read
}

// load reads the file. After an error all sinks are frozen: an operator may have frozen any.
func (m *memory) load() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = map[string]kept{}
	if m.dir == "" {
		return nil
	}
	f, info, err := owner.Open(filepath.Join(m.dir, stateName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: %w", f.Name(), owner.ErrOthers)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err == nil && len(text) > maxState {
		err = errors.New("it is too large")
	}
	var list []kept
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: look at each sink, then run relay sink unfreeze NAME", f.Name(), err)
	}
	for _, k := range list {
		m.all[k.Name] = k
	}
	return nil
}

func (m *memory) get(name string) (kept, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.all[name]
	if !ok {
		k.Frozen = m.lost
	}
	return k, ok
}

// set keeps what a sink has changed.
func (m *memory) set(k kept) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[k.Name] = k
	return m.save()
}

// forget drops a sink.
func (m *memory) forget(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
	return m.save()
}

// save writes the file. The caller holds mu.
func (m *memory) save() error {
	if m.dir == "" {
		return nil
	}
	list := make([]kept, 0, len(m.all))
	for _, k := range m.all {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b kept) int { return cmp.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	err = owner.Replace(filepath.Join(m.dir, stateName), func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s is not written: %w", stateName, err)
	}
	return nil
}

// save has the state of the engine outlive a restart, if it has changed.
func (e *engine) save() error {
	e.saving.Lock()
	defer e.saving.Unlock()
	if e.spec.emptied {
		return nil // if the config has the sink again, it goes on with what it had
	}
	e.mu.Lock()
	k := kept{Name: e.spec.Name, Cluster: e.spec.Kubernetes, Namespace: e.spec.Namespace, Frozen: e.frozen}
	k.Holding, k.Released = e.core.Kept()
	e.mu.Unlock()
	if was := e.saved; was.Name == k.Name && was.Frozen == k.Frozen && was.Holding == k.Holding && slices.Equal(was.Released, k.Released) {
		return nil
	}
	err := e.deps.memory.set(k)
	if err == nil {
		e.saved = k
	}
	e.trouble(troubleState, err)
	return err
}
