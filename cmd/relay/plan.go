package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/relay"
)

func newPlan(access *access) *cobra.Command {
	var file string
	var timeout time.Duration
	var diffs, exitCode bool
	var out output
	var rows rowLimit
	cmd := asks(&cobra.Command{
		Use:   "plan -c NEW.yaml",
		Short: "Show what another config file would change in a running relay",
		Long: `Connect to the upstreams of a config file, merge their resources as a relay with that file would,
and list the resources that it would add, change and remove in the running relay. The command serves
nothing and changes nothing. The running relay is that of --admin, by default of admin.address in the
file. The list of resources ignores views: it is that of a client without a view. Policies that would
go come first.

If the running relay can be reached over its Unix socket, the plan also has each view that would show
something else of its present resources, whether or not a client is connected, with the policies that its
clients would lose, and the sinks that come, leave or change, with how many of its present resources
they write now, as planned, anew, and no longer, and what becomes of their objects.

It fails when an upstream does not sync in time: its resources would look removed.`,
		Example: `  relay plan -c new.yaml
  relay plan -c new.yaml --diff
  relay plan -c new.yaml --exit-code   # 2 when anything would change, for scripts`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("missing the planned config file: use -c NEW.yaml")
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			running := admin.Client{Address: cfg.Admin.Address}
			if cmd.Flags().Changed("admin") {
				running.Address = access.address
			}
			changes, err := plan(ctx, running, cfg)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			running.Socket = access.socket
			cmd.SetContext(ctx)
			err = throughSocket(cmd, running, nil, func(cmd *cobra.Command, c admin.Client, _ []string) (err error) {
				changes.Preview, err = c.Preview(cmd.Context(), text)
				return err
			})
			if err != nil {
				cmd.PrintErrf("warning: the plan is without views and sinks: %v\n", err)
			}
			err = out.rows(cmd, &rows, nil, changes, cliview.Plan(changes, rows.diffs(diffs), cut(&rows, changes.Changes)))
			if err == nil && exitCode && len(changes.Changes)+len(changes.Sinks)+len(changes.Views) > 0 {
				return &exitError{code: 2}
			}
			return err
		},
	})
	cmd.Flags().StringVarP(&file, "config", "c", "", "config `file` (required)")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the upstreams, and for the running relay")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show the difference of each change")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 when there are changes")
	rows.flag(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

// plan returns what a config would change in a running relay.
func plan(ctx context.Context, running admin.Client, cfg *config.Config) (view.Changes, error) {
	unread := func(err error) (view.Changes, error) {
		return view.Changes{}, fmt.Errorf("read the running relay: %w", hinted(err))
	}
	versions, err := running.ConfigVersions(ctx)
	if err != nil {
		return unread(err)
	}
	merged, err := relay.Merge(ctx, cfg)
	if err != nil {
		// Otherwise the plan would show all resources of such an upstream as removed.
		return view.Changes{}, fmt.Errorf("no plan: %w; find the cause with relay doctor, or wait longer with --timeout", err)
	}
	now, next, err := relay.Differing(ctx, running, versions, merged)
	if err != nil {
		return unread(err)
	}
	changes := view.Compare(now, next)
	slices.SortStableFunc(changes.Changes, func(a, b view.Change) int { return cmp.Compare(opens(a), opens(b)) })
	return changes, nil
}

// opens returns 0 for a change that removes a policy, so that it comes first, else 1.
func opens(c view.Change) int {
	var kind mirror.Kind
	if kind.UnmarshalText([]byte(c.Kind)) == nil && c.Action == "remove" && kind.Protects() {
		return 0
	}
	return 1
}
