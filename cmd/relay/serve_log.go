package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"meshrelay/config"
	"meshrelay/upstreams"
)

// sayServing says with what clients begin to be served, when that is so. It returns when ctx
// ends.
func sayServing(ctx context.Context, released <-chan struct{}, sources func() []upstreams.Status, log *slog.Logger) error {
	began := time.Now()
	select {
	case <-ctx.Done():
		return nil
	case <-released:
	}
	log.Info("serving clients", append(servedFrom(sources()), "after", time.Since(began).Round(time.Millisecond))...)
	<-ctx.Done()
	return nil
}

// servedFrom says where what is served comes from: how many upstreams have said all that they
// have, of how many others there is what was on disk, and of how many neither.
func servedFrom(sources []upstreams.Status) []any {
	synced, fromDisk := 0, 0
	for _, s := range sources {
		switch {
		case s.Synced:
			synced++
		case s.Stale && len(s.Resources) > 0:
			fromDisk++
		}
	}
	return []any{"upstreams", len(sources), "synced", synced, "fromDisk", fromDisk, "notSynced", len(sources) - synced - fromDisk}
}

// ownSocketDir reports whether the admin socket is in a directory that is the relay's alone:
// that of the state, or one by default.
func ownSocketDir(cfg *config.Config) bool {
	if cfg.Admin.Socket == "" {
		return true
	}
	dir, err := filepath.Abs(cfg.State.Dir)
	return err == nil && cfg.State.Dir != "" && filepath.Dir(cfg.AdminSocket()) == dir
}
