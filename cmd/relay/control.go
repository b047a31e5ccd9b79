package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/printer"
	"meshrelay/internal/statusview"
	"meshrelay/upstreams"
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
			c.Socket = v.AdminSocket
		}
		err := f(c)
		var refused *admin.StatusError
		if !errors.As(err, &refused) {
			return err
		}
		var lines []error // of a config, a mistake each
		for line := range strings.Lines(refused.Text) {
			lines = append(lines, errors.New(strings.TrimSpace(line)))
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

// control is a command that does something to one upstream.
func control(cmd *cobra.Command, do func(ctx context.Context, c admin.Client, upstream string) (string, error)) *cobra.Command {
	access := &socketAccess{}
	cmd.Args = wanted("upstream")
	cmd.ValidArgsFunction = access.completeUpstreams
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return access.with(cmd, func(c admin.Client) error {
			text, err := do(cmd.Context(), c, args[0])
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), text)
			}
			return err
		})
	}
	access.flags(cmd)
	return cmd
}

func newFreeze() *cobra.Command {
	return control(&cobra.Command{
		Use:   "freeze UPSTREAM",
		Short: "Serve an upstream as it is now, whatever it says from now on",
		Long: `Hold an upstream of a running relay as it is now: what it says from now on is taken in,
and waits. This outlasts a restart where the relay keeps state. It ends with "relay
unfreeze". The relay is asked over its Unix socket.`,
		Example: `  relay freeze east
  relay freeze east --socket /var/lib/relay/admin.sock
  kubectl exec meshrelay-0 -- relay freeze east   # and each other replica`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Freeze(ctx, upstream)
		return describeFrozen(s), err
	})
}

func describeFrozen(s admin.Controlled) string {
	if s.Frozen == nil {
		return fmt.Sprintf("upstream %s is not frozen any more", s.Name)
	}
	as := "as it was"
	if s.Frozen.Revision != 0 {
		as = fmt.Sprintf("at revision %d", s.Frozen.Revision)
	}
	what := "nothing of it is served"
	if n := served(s.Status); n > 0 {
		what = fmt.Sprintf("its %s %s as %s", printer.Count(n, "resource"), printer.Agree(n, "stays", "stay"), printer.Agree(n, "it is", "they are"))
	}
	text := fmt.Sprintf("upstream %s is frozen %s: %s until \"relay unfreeze %s\"", s.Name, as, what, s.Name)
	if !s.KeepsState {
		text += ", or until the relay ends: it keeps no state (state.dir)"
	}
	return text
}

// served returns how many resources of an upstream are served.
func served(s upstreams.Status) (n int) {
	for _, kind := range s.Resources {
		n += kind
	}
	return n
}

func newUnfreeze() *cobra.Command {
	return control(&cobra.Command{
		Use:   "unfreeze UPSTREAM",
		Short: "Follow a frozen upstream again",
		Long: `Follow an upstream of a running relay again that was frozen, or rolled back: what it says
now is served. Deletions that the guard would hold are held all the same.`,
		Example: `  relay unfreeze east`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Unfreeze(ctx, upstream)
		text := fmt.Sprintf("upstream %s is followed again", s.Name)
		if s.Frozen != nil {
			text = fmt.Sprintf("upstream %s has been frozen by somebody else meanwhile", s.Name)
		}
		return text + describeHeld(s.Status), err
	})
}

// describeHeld says what the guard holds back, where it does.
func describeHeld(s upstreams.Status) string {
	if s.Held == nil {
		return ""
	}
	n := s.Held.Removals
	return fmt.Sprintf("; %s of %s %s held: let %s through with \"relay release %s\"", printer.Count(n, "deletion"), printer.Count(s.Held.Of, "resource"),
		printer.Agree(n, "is", "are"), printer.Agree(n, "it", "them"), s.Name)
}

func newRelease() *cobra.Command {
	return control(&cobra.Command{
		Use:   "release UPSTREAM",
		Short: "Let the deletions of an upstream through that the guard holds back",
		Long: `Let the deletions of an upstream of a running relay through that its guard holds back,
because they are more than looks normal. "relay status" says how many they are.`,
		Example: `  relay release east`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Release(ctx, upstream)
		return fmt.Sprintf("upstream %s has been released: it has %s now", s.Name, printer.Count(served(s.Status), "resource")) + describeHeld(s.Status), err
	})
}

func newRollback() *cobra.Command {
	var flag string
	var to uint64
	cmd := control(&cobra.Command{
		Use:   "rollback UPSTREAM --to REVISION",
		Short: "Serve an upstream as it was, until it is unfrozen",
		Long: `Serve an upstream of a running relay as it was at a revision, whatever it says, until
"relay unfreeze". "relay history" lists the revisions. The relay must keep state
(state.dir in its config file).`,
		Example: `  relay history east
  relay rollback east --to 17`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Rollback(ctx, upstream, to)
		return describeFrozen(s), err
	})
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if flag == "" {
			return fmt.Errorf("say to which revision, with --to: \"relay history %s\" lists them", args[0])
		}
		if to, err = strconv.ParseUint(flag, 10, 64); err != nil || to == 0 {
			return fmt.Errorf("--to: %q is no revision: \"relay history %s\" lists them", flag, args[0])
		}
		return nil
	}
	cmd.Flags().StringVar(&flag, "to", "", "`revision` to go back to (required)")
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
