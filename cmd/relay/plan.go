package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/internal/explainview"
	"meshrelay/internal/object"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

func newPlan() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan -c NEW.yaml",
		Short: "Show what another config file would change in what a running relay serves",
		Long: `Connect to the upstreams of a config file, work out what a relay with that file would
serve, and show what would be added, changed and removed against what the running relay
serves. Nothing is served, and the running relay is asked only what it has. Views are not
looked at: the plan is of the whole merge.

Upstreams that do not answer in time make the plan fail: what they have would look
removed.`,
		Example: `  relay plan -c new.yaml
  relay plan -c new.yaml --diff
  relay plan -c new.yaml --exit-code   # 2 when there are changes, for scripts`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return plan(cmd, o) },
	}
	cmd.Flags().StringVarP(&o.file, "config", "c", "", "config `file` (required)")
	cmd.Flags().StringVar(&o.admin, "admin", "", "admin `address` of the running relay (default: the one in the config file)")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for the upstreams, and for the running relay")
	cmd.Flags().BoolVar(&o.diffs, "diff", false, "show the differences of what changes")
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit with 2 when there are changes")
	outputFlag(cmd, &o.output)
	return cmd
}

type planOptions struct {
	file, admin, output string
	timeout             time.Duration
	diffs, exitCode     bool
}

func plan(cmd *cobra.Command, o planOptions) error {
	if err := tableOrJSON(o.output); err != nil {
		return err
	}
	cfg, err := loadConfig(o.file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	now, err := admin.Client{Address: cmp.Or(o.admin, cfg.Admin.Address)}.Configs(ctx)
	if err != nil {
		return fmt.Errorf("what the running relay serves: %w", hinted(err))
	}
	next, err := mergeOnce(ctx, cfg)
	if err != nil {
		return err
	}
	changes := explainview.Compare(now, next)
	if o.output == "json" {
		err = writeJSON(cmd.OutOrStdout(), changes)
	} else {
		err = explainview.Plan(cmd.OutOrStdout(), changes, o.diffs)
	}
	if err == nil && o.exitCode && len(changes.Changes) > 0 {
		return errDiffers
	}
	return err
}

// mergeOnce connects to the upstreams of a config and returns what they come to, once all
// of them have synced.
func mergeOnce(ctx context.Context, cfg *config.Config) (objects []object.Object, err error) {
	aggregate := mirror.NewAggregate()
	policies, others, err := mergePolicies(cfg.Merge)
	if err != nil {
		return nil, err
	}
	aggregate.SetPolicies(policies, others)
	manager, err := upstreams.NewManager(cfg, aggregate, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(split(err)...)
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
			continue // as among the configs of the running relay
		}
		for _, r := range aggregate.List(kind, "") {
			o, err := object.New(r, "", r.Version())
			if err != nil {
				return nil, err
			}
			objects = append(objects, *o)
		}
	}
	return objects, nil
}

func notSynced(sources []upstreams.Status) error {
	var late []string
	for _, s := range sources {
		if s.Synced {
			continue
		}
		text := s.Name + " (" + string(s.State)
		if s.LastError != "" {
			text += ": " + s.LastError
		}
		late = append(late, text+")")
	}
	slices.Sort(late)
	return fmt.Errorf("no plan: upstreams that have not synced in time: %s", strings.Join(late, ", "))
}
