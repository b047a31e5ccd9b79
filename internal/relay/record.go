package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/internal/recording"
	"meshrelay/upstreams"
	"meshrelay/upstreams/xds"
)

// Record connects to an upstream as a relay with that config does, and gives add what goes over its
// streams, until ctx ends or add fails. It touches no relay that runs.
func Record(ctx context.Context, cfg *config.Config, upstream string, add func(recording.Record) error) error {
	i := slices.IndexFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == upstream })
	if i < 0 {
		return errNoUpstream(cfg, upstream)
	}
	env := upstreams.Env{Node: cfg.Node, Relay: cfg.Provenance.Relay, Log: slog.New(slog.DiscardHandler)}
	return xds.Record(ctx, cfg.Upstreams[i], env, add)
}

// RecordingHeader describes a recording of an upstream. It returns an error for an upstream that has
// no streams of xDS.
func RecordingHeader(cfg *config.Config, upstream string) (recording.Header, error) {
	for _, u := range cfg.Upstreams {
		if u.Name != upstream {
			continue
		}
		section, ok := u.Source.(*xds.Config)
		if !ok {
			return recording.Header{}, fmt.Errorf("upstream %s is of the kind %s: streams of the kind xds can be recorded", u.Name, u.Source.Kind())
		}
		return recording.Header{Upstream: u.Name, Protocol: section.Protocol}, nil
	}
	return recording.Header{}, errNoUpstream(cfg, upstream)
}

func errNoUpstream(cfg *config.Config, name string) error {
	var names []string
	for _, u := range cfg.Upstreams {
		names = append(names, u.Name)
	}
	const shown = 20
	if len(names) > shown {
		names = append(names[:shown], "…")
	}
	return fmt.Errorf("the config has no upstream %q: want one of %s", name, strings.Join(names, ", "))
}
