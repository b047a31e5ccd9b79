package sink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"meshrelay/internal/owner"
)

const (
	stateName = "sinks.json"
	maxState  = 64 << 20 // bytes: three million released deletions
)

// kept is what a sink keeps over a restart.
type kept struct {
	Frozen *Frozen `json:"frozen,omitempty"`
	// Holding is set while the guard holds deletions. Released are hashes of those that may go.
	Holding  bool     `json:"holding,omitempty"`
	Released []uint64 `json:"released,omitempty"`
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

	mu   sync.Mutex      // guards all below
	all  map[string]kept // by sink
	lost *Frozen         // of sinks that all does not have, if the file was not read
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
	if err == nil {
		err = json.Unmarshal(text, &m.all)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: look at each sink, then run relay sink unfreeze NAME", f.Name(), err)
	}
	return nil
}

func (m *memory) get(name string) kept {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.all[name]
	if !ok {
		k.Frozen = m.lost
	}
	return k
}

// set keeps what a sink has changed.
func (m *memory) set(name string, k kept) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[name] = k; m.dir == "" {
		return nil
	}
	text, err := json.Marshal(m.all)
	if err == nil {
		err = owner.Replace(filepath.Join(m.dir, stateName), func(f *os.File) error {
			_, err := f.Write(text)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("%s is not written: %w", stateName, err)
	}
	return nil
}

// save has the state of the engine outlive a restart, if it has changed.
func (e *engine) save() error {
	e.saving.Lock()
	defer e.saving.Unlock()
	e.mu.Lock()
	k := kept{Frozen: e.frozen}
	k.Holding, k.Released = e.core.Kept()
	e.mu.Unlock()
	if e.saved != nil && reflect.DeepEqual(*e.saved, k) {
		return nil
	}
	err := e.deps.memory.set(e.spec.Name, k)
	if err == nil {
		e.saved = &k
	}
	e.trouble(troubleState, err)
	return err
}
