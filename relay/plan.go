package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/internal/memory"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Merge connects to the upstreams of a config, waits until all have synced, and returns the merged
// resources as /debug/configz lists them.
func Merge(ctx context.Context, file *config.Config) (merged []*mirror.Resource, err error) {
	cfg, err := WithClusters(ctx, file)
	if err != nil {
		return nil, err
	}
	aggregate := mirror.NewAggregate()
	merge, err := merging(cfg)
	if err != nil {
		return nil, err
	}
	merge(aggregate)
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
			continue // /debug/configz does not list it
		}
		merged = append(merged, aggregate.List(kind, "")...)
	}
	return merged, nil
}

// WithClusters returns the config with an upstream for each cluster that it finds now.
func WithClusters(ctx context.Context, file *config.Config) (*config.Config, error) {
	if len(file.Clusters) == 0 {
		return file, nil
	}
	found, err := clusters.Once(ctx, file)
	if err != nil {
		return nil, err
	}
	cfg := *file
	cfg.Upstreams = append(slices.Clone(file.Upstreams), found...)
	cfg.FitMemory(memory.SetLimit())
	return &cfg, nil
}

// Running reads a running relay for a plan.
type Running interface {
	// ConfigVersions returns the versions of all served resources, Config the object of a key, and
	// Resources all objects.
	ConfigVersions(ctx context.Context) ([]admin.ConfigVersion, error)
	Config(ctx context.Context, key mirror.Key) ([]kube.Object, error)
	Resources(ctx context.Context) ([]kube.Object, error)
}

// maxSingle is the most objects that are fetched one by one. Fetching all at once costs as much as some
// thousand single ones.
const maxSingle = 200

// Differing compares a running relay with a plan. It returns the objects that differ: now has them as the
// running relay serves them, next as planned. versions are those of the running relay; the caller may read
// them before it makes the plan. Differing fetches only objects whose versions differ.
func Differing(ctx context.Context, running Running, versions []admin.ConfigVersion, planned []*mirror.Resource) (now, next []kube.Object, err error) {
	served := make(map[mirror.Key]string, len(versions))
	for _, v := range versions {
		served[v.Key] = v.Version
	}
	var differ []mirror.Key // keys of objects of the running relay
	for _, r := range planned {
		key := r.Key()
		version, has := served[key]
		delete(served, key)
		if has && version == r.Version() {
			continue
		}
		if has {
			differ = append(differ, key)
		}
		o, err := kube.New(r, "", r.Version())
		if err != nil {
			return nil, nil, err
		}
		next = append(next, *o)
	}
	differ = append(differ, slices.Collect(maps.Keys(served))...)
	now, err = objectsOf(ctx, running, differ)
	return now, next, err
}

// objectsOf returns the objects of keys that the running relay still has.
func objectsOf(ctx context.Context, running Running, keys []mirror.Key) (out []kube.Object, err error) {
	if len(keys) > maxSingle {
		all, err := running.Resources(ctx)
		wanted := make(map[string]bool, len(keys))
		for _, key := range keys {
			wanted[key.String()] = true
		}
		return slices.DeleteFunc(all, func(o kube.Object) bool {
			return !wanted[kube.KindOf(&o)+" "+o.Metadata.Namespace+"/"+o.Metadata.Name]
		}), err
	}
	for _, key := range keys {
		one, err := running.Config(ctx, key)
		if err != nil {
			return nil, err
		}
		out = append(out, one...)
	}
	return out, nil
}

// notSynced returns an error that names each upstream that has not synced, and why.
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
