package sink

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"time"

	"meshrelay/internal/owner"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
)

const maxState = 64 << 20 // bytes: three million released deletions

// kept is what a sink keeps over a restart.
type kept struct {
	Lease   lease.Terms `json:"lease,omitzero"`    // as last seen
	Pending lease.Note  `json:"pending,omitzero"`  // freeze that the Lease does not have yet
	Cluster string      `json:"cluster,omitempty"` // UID of the cluster that it has written into
	plan.Kept
}

// fileOf returns the path of the state of a sink.
func fileOf(dir, sink string) string { return filepath.Join(dir, "sink-"+sink+".json") }

// load reads what a sink has kept, nothing without a directory. After an error the sink is frozen: an operator may have
// frozen it.
func load(dir, sink string) (k kept, err error) {
	if dir == "" {
		return k, nil
	}
	err = owner.ReadJSON(fileOf(dir, sink), maxState, &k)
	if errors.Is(err, fs.ErrNotExist) {
		return kept{}, nil
	}
	if err != nil {
		k = kept{Pending: lease.Note{By: "the relay", Reason: "the state of the sink was not read", Since: time.Now().UTC().Truncate(time.Second)}}
		return k, fmt.Errorf("%s: %w: look at the sink, then run relay unfreeze sink/%s", fileOf(dir, sink), err, sink)
	}
	return k, nil
}

// save has the state of the engine outlive a restart, if it has changed.
func (e *engine) save() error {
	e.saving.Lock()
	defer e.saving.Unlock()
	e.mu.Lock()
	k := e.kept()
	e.mu.Unlock()
	var err error
	if e.deps.Dir != "" && (e.saved == nil || !reflect.DeepEqual(*e.saved, k)) {
		err = owner.ReplaceJSON(fileOf(e.deps.Dir, e.spec.Name), k)
		if err == nil {
			e.saved = &k
		} else {
			err = fmt.Errorf("the state of the sink is not written, and nothing is deleted: %w", err)
		}
	}
	e.trouble("state", err)
	return err
}

// kept returns what outlives a restart. The caller holds mu.
func (e *engine) kept() kept { return kept{e.terms, e.pending, e.bound, e.core.Kept()} }
