package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/admin"
)

func newLogLevel() *cobra.Command {
	var access socketAccess
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or set the log level of a running relay",
		Long: `Show the log level of a running relay, or set it until the relay ends or reloads a config
file in which it has changed. It is shown at the admin address, and set over the relay's
Unix socket.`,
		Example: `  relay log-level
  relay log-level debug
  relay log-level info --admin 127.0.0.1:15014`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return access.admin.with(cmd, func(c admin.Client) error {
					c.Socket = access.socket
					return printLogLevel(cmd, c)
				})
			}
			return access.with(cmd, func(c admin.Client) error {
				if err := c.SetLogLevel(cmd.Context(), args[0]); err != nil {
					return err
				}
				return printLogLevel(cmd, c)
			})
		},
	}
	access.flags(cmd)
	return cmd
}

func printLogLevel(cmd *cobra.Command, c admin.Client) error {
	level, err := c.LogLevel(cmd.Context())
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), level)
	}
	return err
}
