package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/printer"
	"meshrelay/upstreams"
)

// order is a command that does something to what is served of one upstream. It takes a
// reason, and can be tried.
func order(cmd *cobra.Command, do func(ctx context.Context, c admin.Client, upstream string, given admin.Given) (string, error)) *cobra.Command {
	given := admin.Given{}
	cmd = control(cmd, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		if err := upstreams.CheckReason(given.Reason); err != nil {
			return "", fmt.Errorf("--reason: %w", err)
		}
		return do(ctx, c, upstream, given)
	})
	cmd.Flags().BoolVar(&given.DryRun, "dry-run", false, "show what would change, and change nothing")
	cmd.Flags().StringVar(&given.Reason, "reason", "", "`text` that tells why, for the log and the history")
	return cmd
}

func newFreeze() *cobra.Command {
	var lasts time.Duration
	cmd := order(&cobra.Command{
		Use:   "freeze UPSTREAM",
		Short: "Serve an upstream as it is now, whatever it changes",
		Long: `Keep what a running relay serves of an upstream as it is. Changes of the upstream wait, and so
do deletions that its guard holds. The freeze ends with "relay unfreeze"; with --for also by
itself, when that time is over and the upstream is in contact. It outlasts a restart where the
relay keeps state (state.dir). The relay is asked over its Unix socket.`,
		Example: `  relay freeze east --reason "upgrade of the control plane"
  relay freeze east --for 2h
  relay freeze east --socket /var/lib/relay/admin.sock
  kubectl exec meshrelay-0 -- relay freeze east   # and each other replica`,
	}, func(ctx context.Context, c admin.Client, upstream string, given admin.Given) (string, error) {
		s, err := c.Freeze(ctx, upstream, lasts, given)
		if err != nil || !s.DryRun {
			return describeFrozen(s, err), err
		}
		return fmt.Sprintf("dry run: upstream %s would be frozen, with %s", upstream, printer.Count(s.Effect.Kept, "resource")), nil
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("for") && lasts <= 0 {
			return fmt.Errorf("--for: %v: want a time to come, as in 2h", lasts)
		}
		return nil
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "end the freeze after this `time`, as in 2h (default: no end)")
	return cmd
}

// describeFrozen tells how an upstream is after an order, nothing when that has failed.
func describeFrozen(s admin.Controlled, err error) string {
	switch {
	case err != nil:
		return ""
	case s.Frozen == nil:
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
	until := ""
	if !s.Frozen.Until.IsZero() {
		until = fmt.Sprintf("%s (or later, until the upstream is in contact) or ", s.Frozen.Until.UTC().Format(time.RFC3339))
	}
	text := fmt.Sprintf("upstream %s is frozen %s: %s until %s\"relay unfreeze %s\"", s.Name, as, what, until, s.Name)
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
	var force bool
	cmd := order(&cobra.Command{
		Use:   "unfreeze UPSTREAM",
		Short: "Follow a frozen upstream again",
		Long: `Follow an upstream of a running relay again that was frozen or rolled back: what it has now
is served. Its guard judges the deletions in that as any others, and may hold them. While
the upstream is out of contact, this is refused without --force.`,
		Example: `  relay unfreeze east --dry-run
  relay unfreeze east`,
	}, func(ctx context.Context, c admin.Client, upstream string, given admin.Given) (string, error) {
		s, err := c.Unfreeze(ctx, upstream, force, given)
		if err != nil {
			return "", err
		}
		if s.DryRun {
			return fmt.Sprintf("dry run: upstream %s would be followed again: %s", upstream, describeEffect(s.Effect)), nil
		}
		text := fmt.Sprintf("upstream %s is followed again", s.Name)
		if s.Frozen != nil {
			text = fmt.Sprintf("upstream %s has been frozen by somebody else meanwhile", s.Name)
		}
		if s.Held == nil {
			return text, nil
		}
		held, err := c.Held(ctx, upstream)
		if err != nil {
			return text, err
		}
		return text + describeHeld(held), nil
	})
	cmd.Flags().BoolVar(&force, "force", false, "do it while the upstream is out of contact, with what it had last")
	return cmd
}

// describeEffect lists what an order changes, or leaves to the guard.
func describeEffect(e upstreams.Effect) string {
	text := fmt.Sprintf("%d added, %d changed, %d removed, %d as before", e.Added, e.Changed, e.Removed-e.Held, e.Kept)
	if e.Held > 0 {
		text = fmt.Sprintf("%d added, %d changed, %d removed, %d held by its guard, %d as before", e.Added, e.Changed, e.Removed-e.Held, e.Held, e.Kept)
	}
	return text + listEffect(e)
}

// listEffect lists the resources of an effect, a line each.
func listEffect(e upstreams.Effect) (text string) {
	for _, line := range e.Resources {
		text += "\n  " + printer.Clean(line)
	}
	if more := e.Added + e.Changed + e.Removed - len(e.Resources); more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

func newRollback() *cobra.Command {
	var flag string
	var to uint64
	cmd := order(&cobra.Command{
		Use:   "rollback UPSTREAM --to REVISION",
		Short: "Serve an upstream as it was, until it is unfrozen",
		Long: `Serve an upstream of a running relay as it was at a revision, whatever it changes, until
"relay unfreeze". "relay history" lists the revisions. The relay must keep state
(state.dir in its config file).`,
		Example: `  relay history east
  relay rollback east --to 17 --dry-run
  relay rollback east --to 17 --reason "routes of the new release are wrong"`,
	}, func(ctx context.Context, c admin.Client, upstream string, given admin.Given) (string, error) {
		s, err := c.Rollback(ctx, upstream, to, given)
		if err != nil || !s.DryRun {
			return describeFrozen(s, err), err
		}
		return fmt.Sprintf("dry run: upstream %s would be frozen at revision %d: %s", upstream, to, describeEffect(s.Effect)), nil
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

func newRelease() *cobra.Command {
	var what admin.What
	cmd := order(&cobra.Command{
		Use:   "release UPSTREAM (--hold ID | --only KIND/NAMESPACE | --all)",
		Short: "Carry out deletions that the guard of an upstream holds",
		Long: `Carry out deletions of an upstream of a running relay that its guard holds, because they
look like an accident. "relay held" lists them, with the ID of the hold.

With --hold nothing goes that is not in that list: if the hold has grown since, the command
fails and shows by what. --only picks a part, of that list or of whatever is held, and the rest
stays held. Without any of the three flags the command lists what is held, changes nothing, and
exits with 2.`,
		Example: `  relay held east
  relay release east --hold 4kq3vx2a
  relay release east --only virtualservice/shop --dry-run
  relay release east --only vs/shop --only '*/team-a'
  relay release east --all --reason "the cluster is gone"`,
	}, func(ctx context.Context, c admin.Client, upstream string, given admin.Given) (string, error) {
		if what.Hold == "" && len(what.Only) == 0 && !what.All {
			held, err := c.Held(ctx, upstream)
			switch {
			case err != nil:
				return "", err
			case len(held) == 0:
				return "", fmt.Errorf("upstream %s: nothing is held", upstream)
			}
			return strings.TrimPrefix(describeHeld(held), "\n"), errNothingDone
		}
		s, err := c.Release(ctx, upstream, what, given)
		if err != nil {
			return "", err
		}
		n := s.Effect.Removed
		text := fmt.Sprintf("upstream %s: %s released", s.Name, printer.Count(n, "deletion"))
		if s.DryRun {
			text = fmt.Sprintf("dry run: upstream %s: %s would be released", s.Name, printer.Count(n, "deletion"))
		}
		text += fmt.Sprintf(", %d still held", s.Effect.Held) + listEffect(s.Effect)
		if s.Effect.Held > 0 && !s.DryRun {
			text += fmt.Sprintf("\nSee what is still held: relay held %s", s.Name)
		}
		return text, nil
	})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if what.All && (what.Hold != "" || len(what.Only) > 0) {
			return errors.New("--all releases whatever is held: use it without --hold and --only")
		}
		for _, text := range what.Only {
			if _, err := upstreams.ParseScope(text); err != nil {
				return fmt.Errorf("--only: %w", err)
			}
		}
		return nil
	}
	cmd.Flags().StringVar(&what.Hold, "hold", "", "carry out this hold, by its `ID`, unless it has grown")
	cmd.Flags().StringArrayVar(&what.Only, "only", nil, "carry out only what is of `KIND/NAMESPACE`; * is any (may be repeated)")
	cmd.Flags().BoolVar(&what.All, "all", false, "carry out whatever is held")
	return cmd
}
