package relay

import (
	"context"
	"io"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// applyRetry is the pause after the clusters that were found could not be applied.
const applyRetry = 5 * time.Second

// effective returns the config of a file with the upstreams that were found, and all limits. Of what
// needs a restart it has what the relay runs with.
func (r *Relay) effective(file *config.Config) (*config.Config, error) {
	found, err := r.finder.Upstreams(file)
	if err != nil {
		return nil, err
	}
	next := *file
	next.Upstreams = append(slices.Clone(file.Upstreams), found...)
	r.options.Complete(&next)
	if now := r.config.Load(); now != nil {
		next.Node, next.Provenance = now.Node, now.Provenance
	}
	return &next, nil
}

// followClusters starts and ends upstreams as clusters are found and gone, until ctx ends.
func (r *Relay) followClusters(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.manager.Restored():
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.finder.Changed():
		}
		for ctx.Err() == nil {
			err := r.applyClusters()
			if err == nil {
				break
			}
			r.log.Error("clusters not taken over", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(applyRetry):
			}
		}
	}
}

func (r *Relay) applyClusters() error {
	r.applying.Lock()
	defer r.applying.Unlock()
	next, err := r.effective(r.file)
	if err != nil {
		return err
	}
	if err := r.manager.Apply(next); err != nil {
		return err
	}
	r.config.Store(next)
	return nil
}

// upstreams returns the status of each upstream, and how it was found.
func (r *Relay) upstreams() []upstreams.Status { return r.finder.Mark(r.manager.Status()) }

// backup writes a copy of the state, and of which clusters were found.
func (r *Relay) backup(w io.Writer) error {
	var others []state.Extra
	if name, text := r.finder.Backup(); text != nil {
		others = append(others, state.Extra{Name: name, Text: text})
	}
	return r.keeper.Backup(w, others...)
}
