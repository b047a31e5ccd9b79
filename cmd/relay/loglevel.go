package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/admin"
)

func newLogLevel() *cobra.Command {
	var access adminAccess
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or set the log level of a running relay",
		Long: `Show the log level of a running relay, or set it until the relay ends. The relay is
asked at its admin address; the level can be set over loopback only.`,
		Example: `  relay log-level
  relay log-level debug
  relay log-level info --admin 127.0.0.1:15014`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return access.with(cmd, func(c admin.Client) error {
				ctx := cmd.Context()
				if len(args) == 1 {
					if err := c.SetLogLevel(ctx, args[0]); err != nil {
						return err
					}
				}
				level, err := c.LogLevel(ctx)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), level)
				}
				return err
			})
		},
	}
	access.flags(cmd)
	return cmd
}
