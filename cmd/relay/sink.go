package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

func newSink() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "sink",
		Aliases: []string{"sinks"},
		Short:   "Show sinks, or decide what they write into their clusters",
		Long: `Show the sinks of a running relay, or decide about them. A sink writes the resources of a view into a
cluster: "sinks" in the config lists them.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSinkStatus(), newSinkDiff(),
		sinkOrder("freeze", "Write and delete nothing until unfreeze", `Have a sink of a running relay write and delete nothing. In a relay that keeps state (state.dir) the sink
stays frozen over a restart. The command needs the relay's Unix socket.`, `  relay sink freeze dr --reason "migration of the site"`),
		sinkOrder("unfreeze", "Write again after a freeze", `End the freeze of a sink: it writes what has changed in the meantime, and its guard judges what is to be
deleted. The command needs the relay's Unix socket.`, `  relay sink unfreeze dr`),
		newSinkRelease(), newSinkPrune(), newSinkPromote(), newSinkAdopt())
	return cmd
}

func newSinkStatus() *cobra.Command {
	var access access
	var out output
	cmd := access.overAdmin(&cobra.Command{
		Use:   "status [NAME]",
		Short: "Show what sinks have written, and what they can not write",
		Long: `Show the sinks of a running relay: how many objects they have in their clusters, what is to be done,
which objects the cluster refuses and why, what others have changed, and the deletions that the guard
holds. Resources that no sink writes are counted by reason: MeshConfigs, ServiceEntries that were made of
Kubernetes services, and what was generated. The site needs Services of its own.`,
		Example: `  relay sink status
  relay sink status dr -o yaml`,
		Args: wanted(1, "NAME"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		name := cmp.Or(append(args, "")...)
		all, err := c.Sinks(cmd.Context(), name)
		if err == nil && name != "" && len(all) == 0 {
			err = fmt.Errorf("there is no sink %q: \"relay sink status\" lists them", name)
		}
		return out.print(cmd, err, all, cliview.Sinks(all, name != "", time.Now()))
	})
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}

func newSinkDiff() *cobra.Command {
	var access access
	var namespace string
	var most int
	cmd := access.overSocket(&cobra.Command{
		Use:   "diff NAME [KIND NAME]",
		Short: "Show what a sink would change in its cluster",
		Long: `Show what a sink of a running relay would change in its cluster, as the API server itself answers to a
dry run: of one object, or of the first objects that are not as desired. It changes nothing. The command
needs the relay's Unix socket, and the sink the right to patch.`,
		Example: `  relay sink diff dr
  relay sink diff dr virtualservice reviews -n shop`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return errors.New("want the name of a sink, and none or one object as KIND NAME")
			}
			return nil
		},
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		var key *mirror.Key
		if len(args) == 3 {
			kinds, err := mirror.ParseKinds(args[1])
			if err != nil || len(kinds) != 1 {
				return fmt.Errorf("%q is not one kind: write it as in virtualservice or networking.istio.io/VirtualService", args[1])
			}
			key = &mirror.Key{Kind: kinds[0], Namespace: namespace, Name: args[2]}
		}
		d, err := c.SinkDiff(cmd.Context(), args[0], key, most)
		if err == nil {
			fmt.Fprint(cmd.OutOrStdout(), cliview.SinkDiff(args[0], d))
		}
		return err
	})
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the object")
	cmd.Flags().IntVar(&most, "limit", 10, "how many objects to show, 1 to 100")
	return cmd
}

// sinkCommand makes a command that gives an order about one sink. It adds the flag --reason.
func sinkCommand(cmd *cobra.Command, do func(ctx context.Context, c admin.Client, name, reason string) (string, error)) *cobra.Command {
	var access access
	var reason string
	cmd.Args = wanted(0, "NAME")
	cmd = access.overSocket(cmd, func(cmd *cobra.Command, c admin.Client, args []string) error {
		if err := intake.CheckReason(reason); err != nil {
			return fmt.Errorf("--reason: %w", err)
		}
		text, err := do(cmd.Context(), c, args[0], reason)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), cliview.CleanLines(text))
		}
		return err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`text` for the log and the journal")
	return cmd
}

func sinkOrder(verb, short, long, example string) *cobra.Command {
	return sinkCommand(&cobra.Command{Use: verb + " NAME", Short: short, Long: long, Example: example}, func(ctx context.Context, c admin.Client, name, reason string) (string, error) {
		done, err := c.OrderSink(ctx, name, verb, "", reason)
		return cliview.SinkOrdered(name, verb, done), err
	})
}

func newSinkRelease() *cobra.Command {
	var hold string
	cmd := sinkCommand(&cobra.Command{
		Use:   "release NAME --hold ID",
		Short: "Carry out deletions that the guard of a sink holds",
		Long: `Carry out the deletions of a sink that its guard holds because they look like an accident. "relay sink
status NAME" lists them with the ID of the hold. If the hold has changed since, nothing is released. The
command needs the relay's Unix socket.`,
		Example: `  relay sink status dr
  relay sink release dr --hold 4kq3vx2a`,
	}, func(ctx context.Context, c admin.Client, name, reason string) (string, error) {
		done, err := c.OrderSink(ctx, name, "release", hold, reason)
		return cliview.SinkOrdered(name, "release", done), err
	})
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if hold == "" {
			return fmt.Errorf("--hold is missing: \"relay sink status %s\" shows the ID", args[0])
		}
		return nil
	}
	cmd.Flags().StringVar(&hold, "hold", "", "`ID` of the hold (required)")
	return cmd
}

func newSinkPrune() *cobra.Command {
	var yes bool
	cmd := sinkCommand(&cobra.Command{
		Use:   "prune NAME --yes",
		Short: "Delete the objects of a sink that are not desired",
		Long: `Delete the objects of a sink that its view does not show any more, whatever its guard and prune are. Objects
of upstreams that have not told everything since the start of the relay stay until they have. Of a sink
that has left the config, delete all objects: "relay sink status" shows the progress. Only objects with the
label of the sink are deleted, and none of a promoted sink. The command needs the relay's Unix socket.`,
		Example: `  relay sink diff dr
  relay sink prune dr --yes --reason "the site moves"`,
	}, func(ctx context.Context, c admin.Client, name, reason string) (string, error) {
		done, err := c.OrderSink(ctx, name, "prune", "", reason)
		return cliview.SinkOrdered(name, "prune", done), err
	})
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if !yes {
			return fmt.Errorf("this deletes objects of the cluster: look at \"relay sink diff %s\", and repeat the command with --yes", args[0])
		}
		return nil
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "delete the objects")
	return cmd
}
