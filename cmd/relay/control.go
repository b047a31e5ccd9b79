package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/cliview"
)

func newHeld() *cobra.Command {
	var access access
	var out output
	cmd := &cobra.Command{
		Use:   "held [UPSTREAM]",
		Short: "List deletions that guards hold",
		Long: `List the deletions that the guards of a running relay hold, of one upstream or of all: the ID
and reason of each hold, when it ends, and every resource with its age and the time since its
upstream deleted it. All listed resources are still served.`,
		Example: `  relay held
  relay held east
  relay held east -o yaml`,
		Args:              wanted(1, "UPSTREAM"),
		ValidArgsFunction: access.completeUpstreams,
		RunE: access.overSocket(func(cmd *cobra.Command, c admin.Client, args []string) error {
			held, err := c.Held(cmd.Context(), strings.Join(args, ""))
			return out.print(cmd, err, held, cliview.Held(held, time.Now()))
		}),
	}
	access.flags(cmd)
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}

func newHistory() *cobra.Command {
	var access access
	var out output
	cmd := &cobra.Command{
		Use:   "history UPSTREAM",
		Short: "List the revisions of an upstream, newest first",
		Long: `List the revisions of an upstream of a running relay: when it changed, and what. state.history
in the config file limits their number and age.`,
		Example: `  relay history east
  relay history east -o json`,
		Args:              wanted(0, "UPSTREAM"),
		ValidArgsFunction: access.completeUpstreams,
		RunE: access.overSocket(func(cmd *cobra.Command, c admin.Client, args []string) error {
			revisions, err := c.History(cmd.Context(), args[0])
			return out.print(cmd, err, revisions, cliview.History(revisions, time.Now()))
		}),
	}
	access.flags(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

func newReload() *cobra.Command {
	var access access
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Load the config file of a running relay again",
		Long: `Have a running relay load its config file again, as SIGHUP does, and print the result. A
relay does so by itself when the file changes. The command prints the mistakes in the file and
exits with 1 if there are any; then the relay keeps its previous config.`,
		Example: `  relay reload`,
		RunE: access.overSocket(func(cmd *cobra.Command, c admin.Client, _ []string) error {
			s, err := c.Reload(cmd.Context())
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), cliview.Reloaded(s))
			}
			return err
		}),
	}
	access.flags(cmd)
	return cmd
}

func newLogLevel() *cobra.Command {
	var access access
	levels := []string{"debug", "info", "warn", "error"}
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or set the log level of a running relay",
		Long: `Show the log level of a running relay, or set it until the relay ends or loads a config file
with another level. The admin address shows it; the relay's Unix socket sets it.`,
		Example: `  relay log-level
  relay log-level debug
  relay log-level info --admin 127.0.0.1:15014`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !slices.Contains(levels, strings.ToLower(args[0])) {
				return fmt.Errorf("log level %q: want debug, info, warn or error", args[0])
			}
			return wanted(1, "LEVEL")(cmd, args)
		},
		ValidArgs: levels,
		RunE: func(cmd *cobra.Command, args []string) error {
			over := access.overAdmin
			if len(args) > 0 {
				over = access.overSocket
			}
			return over(func(cmd *cobra.Command, c admin.Client, args []string) error {
				if len(args) > 0 {
					if err := c.SetLogLevel(cmd.Context(), args[0]); err != nil {
						return err
					}
				}
				level, err := c.LogLevel(cmd.Context())
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), level)
				}
				return err
			})(cmd, args)
		},
	}
	access.flags(cmd)
	return cmd
}
