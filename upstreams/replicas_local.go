package upstreams

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/internal/owner"
)

// local is a decision of this replica on which the others have not agreed. It was made at a sequence number, or before
// the log was read.
type local struct {
	decisions.Record
	At    uint64 `json:"at"`
	Blind bool   `json:"blind,omitempty"`
}

const (
	localsName = "decisions-local.json"
	maxLocals  = 1 << 20 // bytes of the file
)

// keepLocals has the local decisions outlive a restart.
func (r *replicas) keepLocals() error {
	if r.Dir == "" {
		return nil
	}
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.mu.Lock()
	locals := slices.Clone(r.locals)
	r.mu.Unlock()
	err := owner.Replace(filepath.Join(r.Dir, localsName), func(f *os.File) error { return json.NewEncoder(f).Encode(locals) })
	if r.unkept = err != nil; r.unkept {
		return fmt.Errorf("the decisions of this replica alone are in effect, but a restart forgets them: %w", err)
	}
	return nil
}

// keepAgain writes the local decisions if that has failed before.
func (r *replicas) keepAgain() {
	r.keeping.Lock()
	unkept := r.unkept
	r.keeping.Unlock()
	if unkept && r.keepLocals() == nil {
		r.log.Info("local decisions written")
	}
}

// readLocals reads the local decisions from before a restart. Releases are dropped: what is held since may be another
// accident.
func (m *Manager) readLocals() {
	r := m.replicas
	if r.Dir == "" {
		return
	}
	var locals []local
	f, _, err := owner.Open(filepath.Join(r.Dir, localsName), os.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		err = json.NewDecoder(io.LimitReader(f, maxLocals)).Decode(&locals)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("decisions of this replica alone not read", "err", err, "effect", "those from before the start are forgotten: see relay held, and give the orders again")
		return
	}
	for _, l := range locals[:min(len(locals), maxUnagreed)] {
		if l.Kind == decisions.Release {
			m.localDropped(l, errors.New("the relay has restarted before the replicas agreed: look at what is held, and release it again"))
			continue
		}
		r.locals, r.stale = append(r.locals, l), true
	}
	if len(r.locals) < len(locals) {
		if err := r.keepLocals(); err != nil {
			m.log.Warn("local decisions not written", "err", err)
		}
	}
}

// localDropped tells that a local decision has ended without an agreement.
func (m *Manager) localDropped(l local, why error) {
	m.log.Warn("local decision dropped", "upstream", l.Upstream, "decision", l.Kind, "reason", why)
	m.events.Record(events.Event{
		Type: events.Ordered, Upstream: l.Upstream, By: events.ByRelay, Text: "the local decision " + string(l.Kind) + " is dropped", Reason: why.Error(),
	})
}
