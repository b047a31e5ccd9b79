package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// Merge connects to the upstreams of a config, waits until all have synced, and returns the
// merged resources as objects.
func Merge(ctx context.Context, cfg *config.Config) (objects []kube.Object, err error) {
	aggregate := mirror.NewAggregate()
	policies, others, err := MergePolicies(cfg.Merge)
	if err != nil {
		return nil, err
	}
	aggregate.SetPolicies(policies, others)
	manager, err := upstreams.NewManager(cfg, Kinds(), aggregate, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return aggregate.Run(running) })
	group.Go(func() error { return manager.Run(running) })
	defer func() {
		stop()
		err = errors.Join(err, group.Wait())
	}()
	select {
	case <-ctx.Done():
		return nil, notSynced(manager.Status())
	case <-aggregate.Synced():
	}
	for _, kind := range aggregate.Kinds() {
		if kind == mirror.MeshConfig {
			continue // /debug/configz of a relay leaves it out, too
		}
		for _, r := range aggregate.List(kind, "") {
			o, err := kube.New(r, "", r.Version())
			if err != nil {
				return nil, err
			}
			objects = append(objects, *o)
		}
	}
	return objects, nil
}

// notSynced names the upstreams that have not synced, and why.
func notSynced(sources []upstreams.Status) error {
	var late []string
	for _, s := range sources {
		if s.Synced {
			continue
		}
		text := string(s.State)
		if s.LastError != "" {
			text += ": " + s.LastError
		}
		late = append(late, fmt.Sprintf("%s (%s)", s.Name, text))
	}
	slices.Sort(late)
	return fmt.Errorf("upstreams have not synced in time: %s", strings.Join(late, ", "))
}
