package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/cliview"
	"meshrelay/internal/relay"
)

// errDiffers ends a plan with changes, if the user asked for that exit code.
var errDiffers = errors.New("the plan changes what is served")

func newPlan() *cobra.Command {
	var file, address string
	var timeout time.Duration
	var diffs, exitCode bool
	var out output
	cmd := &cobra.Command{
		Use:   "plan -c NEW.yaml",
		Short: "Show what another config file would change in a running relay",
		Long: `Connect to the upstreams of a config file, merge their resources as a relay with that file
would, and list what it would add, change and remove against the running relay. The command
serves nothing and changes nothing. It plans the whole merge, without views.

It fails when an upstream does not sync in time: its resources would look removed.`,
		Example: `  relay plan -c new.yaml
  relay plan -c new.yaml --diff
  relay plan -c new.yaml --exit-code   # 2 when there are changes, for scripts`,
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
			now, err := admin.Client{Address: cmp.Or(address, cfg.Admin.Address)}.Configs(ctx)
			if err != nil {
				return fmt.Errorf("read the running relay: %w", hinted(err))
			}
			next, err := relay.Merge(ctx, cfg)
			if err != nil {
				return fmt.Errorf("no plan: %w", err)
			}
			changes := cliview.Compare(now, next)
			err = out.print(cmd, nil, changes, cliview.Plan(changes, diffs))
			if err == nil && exitCode && len(changes.Changes) > 0 {
				return errDiffers
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "config `file` (required)")
	cmd.Flags().StringVar(&address, "admin", "", "admin `address` of the running relay (default: the one in the config file)")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the upstreams, and for the running relay")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show the difference of each change")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 when there are changes")
	out.flag(cmd, "table", "json")
	return cmd
}
