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
)

// Record connects to an upstream as a relay with that config does, and gives add what goes over its
// streams, until ctx ends or add fails. It touches no relay that runs.
func Record(ctx context.Context, cfg *config.Config, upstream string, add func(recording.Record) error) error {
	u, how, err := recordable(cfg, upstream)
	if err != nil {
		return err
	}
	env := upstreams.Env{Node: cfg.Node, Relay: cfg.Provenance.Relay, Log: slog.New(slog.DiscardHandler)}
	return how.Run(ctx, u, env, add)
}

// RecordingHeader describes a recording of an upstream. It returns an error for an upstream that has
// no streams to record.
func RecordingHeader(cfg *config.Config, upstream string) (recording.Header, error) {
	u, how, err := recordable(cfg, upstream)
	if err != nil {
		return recording.Header{}, err
	}
	return recording.Header{Upstream: u.Name, Protocol: how.Protocol(u)}, nil
}

// recordable returns an upstream, and how its kind records streams.
func recordable(cfg *config.Config, name string) (config.Upstream, *upstreams.Record, error) {
	i := slices.IndexFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == name })
	if i < 0 {
		return config.Upstream{}, nil, errNoUpstream(cfg, name)
	}
	u := cfg.Upstreams[i]
	kind, err := upstreams.KindOf(Kinds(), u)
	if err == nil && kind.Record == nil {
		err = fmt.Errorf("upstream %s is of the kind %s, which has no streams to record", u.Name, u.Source.Kind())
	}
	return u, kind.Record, err
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
