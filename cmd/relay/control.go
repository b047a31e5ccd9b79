package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/printer"
	"meshrelay/internal/statusview"
)

// completionTimeout bounds how long a shell waits for the names of upstreams.
const completionTimeout = 2 * time.Second

// socketAccess is how to reach the Unix socket of a running relay.
type socketAccess struct {
	admin  adminAccess
	socket string
}

func (a *socketAccess) flags(cmd *cobra.Command) {
	a.admin.flags(cmd)
	cmd.Flags().StringVar(&a.socket, "socket", "", "`path` of the relay's Unix socket (default: what the relay says at its admin address)")
}

// with calls f with a client of the socket, under the timeout, which cmd.Context then carries.
// A refusal of the relay is returned in its own words.
func (a *socketAccess) with(cmd *cobra.Command, f func(admin.Client) error) error {
	return a.admin.with(cmd, func(c admin.Client) error {
		c.Socket = a.socket
		if c.Socket == "" {
			v, err := c.Version(cmd.Context())
			switch {
			case err != nil:
				return err
			case v.AdminSocket == "":
				return fmt.Errorf("the relay at %s has no Unix socket open: \"relay status\" says why", c.Address)
			}
			c.Socket, c.Named = v.AdminSocket, true
		}
		err := f(c)
		var refused *admin.StatusError
		if !errors.As(err, &refused) {
			return err
		}
		var lines []error // of a config, a mistake each; what is indented belongs to the line before
		for line := range strings.Lines(refused.Text) {
			text := printer.Clean(strings.TrimRight(line, " \n"))
			if n := len(lines); n > 0 && strings.HasPrefix(text, " ") {
				lines[n-1] = fmt.Errorf("%w\n%s", lines[n-1], text)
				continue
			}
			lines = append(lines, errors.New(strings.TrimSpace(text)))
		}
		if len(lines) == 0 {
			return err
		}
		return errors.Join(lines...)
	})
}

// completeUpstreams completes the name of an upstream of the relay at the admin address.
func (a *socketAccess) completeUpstreams(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completionTimeout)
	defer cancel()
	all, err := admin.Client{Address: a.admin.address, Socket: a.socket}.Upstreams(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, u := range all {
		names = append(names, u.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// wanted returns a check of the arguments: that there are as many as the names of what is
// wanted. The mistake is said with how the command is used.
func wanted(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		usage := cmd.Parent().CommandPath() + " " + cmd.Use
		if len(args) < len(names) {
			return fmt.Errorf("say which %s: %s", strings.Join(names[len(args):], " and which "), usage)
		}
		if len(args) > len(names) {
			return fmt.Errorf("%q is too much: %s", args[len(names)], usage)
		}
		return nil
	}
}

// control is a command about one upstream that prints a text.
func control(cmd *cobra.Command, do func(ctx context.Context, c admin.Client, upstream string) (string, error)) *cobra.Command {
	access := &socketAccess{}
	cmd.Args = wanted("upstream")
	cmd.ValidArgsFunction = access.completeUpstreams
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return access.with(cmd, func(c admin.Client) error {
			text, err := do(cmd.Context(), c, args[0])
			if text != "" {
				fmt.Fprintln(cmd.OutOrStdout(), text)
			}
			return err
		})
	}
	access.flags(cmd)
	return cmd
}

func newHistory() *cobra.Command {
	var access socketAccess
	var output string
	cmd := &cobra.Command{
		Use:   "history UPSTREAM",
		Short: "Show the states that an upstream was in, newest first",
		Long: `Show the revisions of an upstream of a running relay: when it changed, and what. How many
are kept, and for how long, is state.history in the config file.`,
		Example: `  relay history east
  relay history east -o json`,
		Args:              wanted("upstream"),
		ValidArgsFunction: access.completeUpstreams,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tableOrJSON(output); err != nil {
				return err
			}
			return access.with(cmd, func(c admin.Client) error {
				revisions, err := c.History(cmd.Context(), args[0])
				switch {
				case err != nil:
					return err
				case output == "json":
					return writeJSON(cmd.OutOrStdout(), revisions)
				}
				return statusview.History(cmd.OutOrStdout(), revisions, time.Now())
			})
		},
	}
	access.flags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

func newReload() *cobra.Command {
	var access socketAccess
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have a running relay read its config file again",
		Long: `Have a running relay read its config file again and take it over, as SIGHUP does, and
say what came of it. A relay does so by itself when the file changes. What is wrong with
the file is printed, and the exit code is 1; then the relay goes on with what it had.`,
		Example: `  relay reload`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return access.with(cmd, func(c admin.Client) error {
				s, err := c.Reload(cmd.Context())
				if err != nil {
					return err
				}
				text := "the config file is in force"
				if len(s.NeedsRestart) > 0 {
					text += ", but for what needs a restart: " + strings.Join(s.NeedsRestart, ", ")
				}
				fmt.Fprintln(cmd.OutOrStdout(), text)
				return nil
			})
		},
	}
	access.flags(cmd)
	return cmd
}
