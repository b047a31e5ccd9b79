package main

import (
	"fmt"
	"slices"
	"strings"

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
		Args:      logLevel,
		ValidArgs: logLevels(),
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

func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// logLevel checks that the arguments are a log level, or nothing.
func logLevel(_ *cobra.Command, args []string) error {
	switch {
	case len(args) > 1:
		return fmt.Errorf("%q is too much: want one of debug, info, warn or error", args[1])
	case len(args) == 1 && !slices.Contains(logLevels(), strings.ToLower(args[0])):
		return fmt.Errorf("log level %q: want debug, info, warn or error", args[0])
	}
	return nil
}

func printLogLevel(cmd *cobra.Command, c admin.Client) error {
	level, err := c.LogLevel(cmd.Context())
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), level)
	}
	return err
}
