package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/sink"
	"meshrelay/upstreams/intake"
)

// task does the work of a command about an upstream, or what else name names, and returns the text to print. After
// an error, the command prints the text only with errNothingDone.
type task func(ctx context.Context, c admin.Client, name string) (string, error)

// control makes a command about one upstream.
func control(access *access, cmd *cobra.Command, do task) *cobra.Command {
	cmd.Args = wanted(0, "UPSTREAM")
	cmd.ValidArgsFunction = access.completeUpstreams
	return access.overSocket(cmd, func(cmd *cobra.Command, c admin.Client, args []string) error {
		text, err := do(cmd.Context(), c, args[0])
		if err == nil || errors.Is(err, errNothingDone) {
			fmt.Fprintln(cmd.OutOrStdout(), cliview.CleanLines(text))
		}
		return err
	})
}

// not are the flags that orders about what is no upstream have not, by kind.
var not = map[string][]string{"sink": {"dry-run", "force", "only", "all"}, "cluster": {"reason", "dry-run", "hold", "only", "all"}}

// order makes a command that gives an order about an upstream, or about KIND/NAME, with a task for each kind. It adds
// the flags --reason and --dry-run.
func order(access *access, cmd *cobra.Command, o *intake.Order, kinds map[string]task) *cobra.Command {
	cmd = control(access, cmd, func(ctx context.Context, c admin.Client, what string) (string, error) {
		if err := intake.CheckReason(o.Reason); err != nil {
			return "", fmt.Errorf("--reason: %w", err)
		}
		kind, name, ok := strings.Cut(what, "/")
		if !ok {
			kind, name = "upstream", what
		}
		do := kinds[kind]
		if do == nil {
			return "", fmt.Errorf("%s: kind %q: want %s", what, kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		}
		for _, flag := range not[kind] {
			if cmd.Flags().Changed(flag) {
				return "", fmt.Errorf("--%s is not for a %s", flag, kind)
			}
		}
		return do(ctx, c, name)
	})
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "show the changes, but do not make them")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "`text` for the log, the journal and the history")
	return cmd
}

// ordered returns a task that gives an order about an upstream, and describes its effect.
func ordered(verb string, o *intake.Order) task {
	return func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Order(ctx, upstream, verb, *o)
		return view.Ordered(s, verb, *o) + view.Reached(s.Effect.Replicas), err
	}
}

// sinkOrdered returns a task that gives an order about a sink.
func sinkOrdered(verb string, o *intake.Order) task {
	return func(ctx context.Context, c admin.Client, name string) (string, error) {
		if verb == "release" && o.Hold == "" {
			return "", fmt.Errorf("--hold is missing: \"relay sink %s\" lists what is held, with the ID of the hold", name)
		}
		return orderSink(ctx, c, name, sink.Order{Verb: verb, Hold: o.Hold, Reason: o.Reason})
	}
}

func newFreeze(access *access) *cobra.Command {
	var o intake.Order
	return order(access, &cobra.Command{
		Use:   "freeze UPSTREAM|sink/NAME",
		Short: "Serve an upstream as it is now, despite later changes",
		Long: `Keep the resources of an upstream of a running relay as they are. Changes of the upstream
wait, and so do deletions that its guard holds. "relay unfreeze" ends the freeze. In a relay that
keeps state (state.dir) the upstream stays frozen over a restart. Of several replicas, all freeze
it, each with what it serves. The command needs the relay's Unix socket.

With sink/NAME, the sink writes and deletes nothing. It is written into the Lease of the sink in its
cluster, and so holds for all relays with that sink, also after a restart. While the cluster can not
be reached, it holds for this relay alone, and is written later.`,
		Example: `  relay freeze east --reason "upgrade of the control plane"
  relay freeze sink/dr --reason "migration of the site"
  relay freeze east --socket /var/lib/relay/admin.sock
  kubectl exec meshrelay-0 -- relay freeze east`,
	}, &o, map[string]task{"upstream": ordered("freeze", &o), "sink": sinkOrdered("freeze", &o)})
}

func newUnfreeze(access *access) *cobra.Command {
	var o intake.Order
	cmd := order(access, &cobra.Command{
		Use:   "unfreeze UPSTREAM|sink/NAME",
		Short: "End the freeze or rollback of an upstream, or freeze of a sink",
		Long: `Serve the current resources of an upstream of a running relay again, after a freeze or
rollback. Its guard checks the deletions as usual, and may hold them. The relay refuses while
the upstream is out of contact, unless --force is given.

With sink/NAME, the sink writes again what has changed in the meantime, and its guard judges what is
to be deleted.`,
		Example: `  relay unfreeze east --dry-run
  relay unfreeze east
  relay unfreeze sink/dr`,
	}, &o, map[string]task{"upstream": func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		s, err := c.Order(ctx, upstream, "unfreeze", o)
		text := view.Ordered(s, "unfreeze", o) + view.Reached(s.Effect.Replicas)
		if err != nil || s.DryRun || s.Held == nil {
			return text, err
		}
		held, err := heldText(ctx, c, upstream)
		if err != nil {
			return "", fmt.Errorf("%s, but its held deletions are unknown: %w", text, err)
		}
		return text + "\n" + held, nil
	}, "sink": sinkOrdered("unfreeze", &o)})
	cmd.Flags().BoolVar(&o.Force, "force", false, "unfreeze it even while it is out of contact, with its last known resources")
	return cmd
}

func newRollback(access *access) *cobra.Command {
	var flag string
	var o intake.Order
	cmd := order(access, &cobra.Command{
		Use:   "rollback UPSTREAM --to REVISION",
		Short: "Serve an upstream as it was at a revision",
		Long: `Serve an upstream of a running relay as it was at a revision, despite later changes, until
"relay unfreeze". "relay history" lists the revisions. The relay must keep state (state.dir in
its config file).`,
		Example: `  relay history east
  relay rollback east --to 17 --dry-run
  relay rollback east --to 17 --reason "routes of the new release are wrong"`,
	}, &o, map[string]task{"upstream": ordered("rollback", &o)})
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if o.To, err = strconv.ParseUint(flag, 10, 64); err != nil || o.To == 0 {
			return fmt.Errorf("--to: want a revision, not %q: \"relay history %s\" lists them", flag, args[0])
		}
		return nil
	}
	cmd.Flags().StringVar(&flag, "to", "", "`revision` to go back to (required)")
	return cmd
}

// errNothingDone is the error of a release without --hold, --only and --all.
var errNothingDone = &exitError{code: 2}

func newRelease(access *access) *cobra.Command {
	var o intake.Order
	var only []string
	cmd := order(access, &cobra.Command{
		Use:   "release UPSTREAM|sink/NAME|cluster/PLACE[/CLUSTER] [--hold ID | --only KIND/NAMESPACE | --all]",
		Short: "Carry out deletions that the guard of an upstream holds",
		Long: `Carry out the deletions of an upstream that its guard holds because they look like an accident.
"relay upstreams --held" lists them, with the ID of the hold.

--hold deletes exactly that list: if the hold has grown since, the command fails and shows what
was added. --only selects a part of that list, or of all held deletions; the rest stays held. Without
one of the three flags the command lists the held deletions, changes nothing, and exits with 2.
While nothing is held, --all ends that root namespaces count which no MeshConfig names any longer.

With sink/NAME, carry out the deletions that the guard of a sink holds: "relay sink NAME" lists them.
If the hold has changed since, nothing is released.

With cluster/PLACE, confirm that the clusters which are held are gone on purpose: they are orphaned at
once, and removed after removeAfter. PLACE is an element of "clusters" in the config. With
cluster/PLACE/CLUSTER, remove that orphaned or held cluster now: the relay stops serving its resources
and deletes its history.`,
		Example: `  relay upstreams --held east
  relay release east --hold 4kq3vx2a
  relay release east --only virtualservice/shop --dry-run
  relay release east --only vs/shop --only '*/team-a'
  relay release east --all --reason "the cluster is gone"
  relay release sink/dr --hold 4kq3vx2a
  relay release cluster/fleet
  relay release cluster/fleet/west`,
	}, &o, map[string]task{"upstream": func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		if o.Hold == "" && len(o.Only) == 0 && !o.All {
			text, err := heldText(ctx, c, upstream)
			switch {
			case err != nil:
				return "", err
			case text == "":
				return "", fmt.Errorf("upstream %s: nothing is held", upstream)
			}
			return text, errNothingDone
		}
		return ordered("release", &o)(ctx, c, upstream)
	}, "sink": sinkOrdered("release", &o), "cluster": releaseClusters})
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if o.All && (o.Hold != "" || len(only) > 0) {
			return errors.New("--all can not be combined with --hold or --only")
		}
		if o.Only, err = intake.ParseParts(only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		return nil
	}
	cmd.Flags().StringVar(&o.Hold, "hold", "", "carry out this hold, by its `ID`, unless it has grown")
	cmd.Flags().StringArrayVar(&only, "only", nil, "carry out only deletions of `KIND/NAMESPACE`; * is any (may be repeated)")
	cmd.Flags().BoolVar(&o.All, "all", false, "carry out all held deletions")
	return cmd
}

// heldText lists the held deletions of an upstream, or returns "".
func heldText(ctx context.Context, c admin.Client, upstream string) (string, error) {
	held, err := c.Held(ctx, upstream)
	if err != nil || len(held) == 0 {
		return "", err
	}
	return strings.TrimRight(cliview.Held(held, time.Now()), "\n"), nil
}

func newServeWithout(access *access) *cobra.Command {
	return control(access, &cobra.Command{
		Use:   "serve-without UPSTREAM",
		Short: "Serve clients without waiting for an upstream",
		Long: `Serve the clients of a starting relay without waiting for an upstream. A relay that starts
without the resources of an upstream lets its clients wait; otherwise they would delete what they
have from it. "relay status" names those upstreams. After this command, clients do delete that.

A relay that keeps state (state.dir) remembers this until the upstream has synced: a restart does
not wait either. Of several replicas, only the one that is asked serves without it.
upstreams[].firstSync in the config file decides whether clients wait for an
upstream at all.`,
		Example: `  relay serve-without west
  relay serve-without west --socket /var/lib/relay/admin.sock`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		w, err := c.ServeWithout(ctx, upstream)
		return cliview.Without(upstream, w), err
	})
}

func newReload(access *access) *cobra.Command {
	return access.overSocket(&cobra.Command{
		Use:   "reload",
		Short: "Load the config file of a running relay again",
		Long: `Make a running relay load its config file again, as SIGHUP does, and print the result. A relay
also does so when the file changes. If the file has mistakes, the command prints them and exits with
1, and the relay keeps its previous config.`,
		Example: `  relay reload`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		s, err := c.Reload(cmd.Context())
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), cliview.Reloaded(s))
		}
		return err
	})
}

func newLogLevel(access *access) *cobra.Command {
	var lasts time.Duration
	levels := []string{"debug", "info", "warn", "error"}
	cmd := access.overAdmin(&cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or set the log level of a running relay",
		Long: `Show the log level of a running relay, or set it until the relay ends or loads a config file with
another level. With --for, the relay returns to the previous level after that time, unless a config
file has set another one. The admin address shows the level; setting it needs the relay's Unix socket.

The level is that of the whole relay. Lines about an upstream have the key upstream, to filter by.`,
		Example: `  relay log-level
  relay log-level debug --for 10m
  relay log-level info --admin 127.0.0.1:15014`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !slices.Contains(levels, strings.ToLower(args[0])) {
				return fmt.Errorf("log level %q: want debug, info, warn or error", args[0])
			}
			if len(args) == 0 && lasts != 0 {
				return errors.New("--for needs a level: relay log-level debug --for 10m")
			}
			return wanted(1, "LEVEL")(cmd, args)
		},
		ValidArgs: levels,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		level, err := "", error(nil)
		if len(args) == 0 {
			level, err = c.LogLevel(cmd.Context())
		} else {
			err = throughSocket(cmd, c, args, func(cmd *cobra.Command, c admin.Client, args []string) (err error) {
				level, err = c.SetLogLevel(cmd.Context(), args[0], lasts)
				return err
			})
		}
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), level)
		}
		return err
	})
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long the level lasts, up to 24h (default: until the relay ends)")
	return cmd
}
