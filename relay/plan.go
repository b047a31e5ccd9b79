package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/internal/memory"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// mergeTold is how often Merge tells how the upstreams do.
const mergeTold = 200 * time.Millisecond

// Merge connects to the upstreams of a config, waits until all have synced, and returns the
// merged resources that /debug/configz of a relay would have. While it waits it tells how the upstreams
// do, unless told is nil.
func Merge(ctx context.Context, file *config.Config, told func([]upstreams.Status)) (merged []*mirror.Resource, err error) {
	cfg, err := WithClusters(ctx, file)
	if err != nil {
		return nil, err
	}
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
	tick := time.NewTicker(mergeTold)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return nil, notSynced(manager.Status())
		case <-aggregate.Synced():
			waiting = false
		case <-tick.C:
		}
		if told != nil {
			told(manager.Status())
		}
	}
	for _, kind := range aggregate.Kinds() {
		if kind == mirror.MeshConfig {
			continue // /debug/configz of a relay leaves it out, too
		}
		merged = append(merged, aggregate.List(kind, "")...)
	}
	return merged, nil
}

// WithClusters returns a config with an upstream for each cluster that can be found now.
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

// Running is a running relay, as a plan reads it.
type Running interface {
	// ConfigVersions returns the versions of all that it serves, Config the object of a key, and
	// Resources all objects.
	ConfigVersions(ctx context.Context) ([]admin.ConfigVersion, error)
	Config(ctx context.Context, key mirror.Key) ([]kube.Object, error)
	Resources(ctx context.Context) ([]kube.Object, error)
}

// maxSingle is how many objects are asked for one by one. All of them at once cost as much as some
// thousands do.
const maxSingle = 200

// Differing returns the objects that are not the same in a running relay, now, and in a plan, next:
// what both have costs no more than its version. It asks versions for those of the running relay, so
// that these may be read before the plan is made.
func Differing(ctx context.Context, running Running, versions []admin.ConfigVersion, planned []*mirror.Resource) (now, next []kube.Object, err error) {
	served := make(map[mirror.Key]string, len(versions))
	for _, v := range versions {
		served[v.Key] = v.Version
	}
	var differ []mirror.Key // of what the running relay has
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

// objectsOf returns the objects of keys, as far as the running relay still has them.
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
