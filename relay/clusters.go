package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/orders"
	"meshrelay/sink/lease"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// applyRetry is the pause before found clusters that could not be applied are tried again.
const applyRetry = 5 * time.Second

// effective returns the config of a file with the upstreams of found clusters and all limits. Node and
// Provenance, which need a restart, are those of the running config.
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

// followClusters starts and ends upstreams when clusters are found or gone, until ctx ends.
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
			r.log.Error("found clusters not applied", "err", err)
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

// upstreams returns the status of each upstream. It sets Found for found clusters.
func (r *Relay) upstreams() []upstreams.Status { return r.finder.Mark(r.manager.Status()) }

// follow makes the relay one of several replicas, if the config has a ConfigMap for what people order.
func (r *Relay) follow(cfg *config.Config) {
	shared := cfg.Replicas
	if shared == nil {
		return
	}
	agent := fmt.Sprintf("meshrelay/%s (orders)", r.options.Build.Version)
	client := apiserver.NewClient(&apiserver.Credentials{Cluster: shared.Cluster}, agent)
	r.manager.Follow(cfg.Node.ID, rand.Text(), &orders.ConfigMap{Client: client, Namespace: shared.Namespace}, cfg.State.Dir)
	r.conditions.share(lease.Options{Conn: client.Current, Namespace: shared.Namespace, Name: conditionsLease, Identity: cfg.Node.ID, Relay: cfg.Provenance.Relay})
}

// backup writes a copy of the state, of the list of found clusters, and of the orders about sinks and those of all replicas.
func (r *Relay) backup(w io.Writer) error {
	var others []state.Extra
	if name, text := r.finder.Backup(); text != nil {
		others = append(others, state.Extra{Name: name, Text: text})
	}
	dir, err := os.OpenRoot(r.config.Load().State.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	sinks, _ := fs.Glob(dir.FS(), "sink-*.json") // the pattern is good
	for _, name := range append(sinks, upstreams.OrdersFile) {
		text, err := dir.ReadFile(name)
		if err == nil {
			others = append(others, state.Extra{Name: name, Text: text})
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("state: %w", err)
		}
	}
	return r.keeper.Backup(w, others...)
}
