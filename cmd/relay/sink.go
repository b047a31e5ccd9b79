package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/sink"
	"meshrelay/upstreams/intake"
)

func newSink(access *access) *cobra.Command {
	var out output
	cmd := access.overAdmin(&cobra.Command{
		Use:     "sink [NAME]",
		Aliases: []string{"sinks"},
		Short:   "Show what sinks have written, and what they can not write",
		Long: `Show the sinks of a running relay: how many objects they have in their clusters, what is to be done,
which objects the cluster refuses and why, what others have changed, and the deletions that the guard
holds. A sink writes the resources of a view into a cluster: "sinks" in the config lists them.
"relay freeze", "unfreeze" and "release" take sink/NAME.

Resources that no sink writes are counted by reason: MeshConfigs, ServiceEntries that were made of
Kubernetes services, and what was generated. The site needs Services of its own.`,
		Example: `  relay sink
  relay sink dr -o yaml
  relay freeze sink/dr --reason "migration of the site"`,
		Args: wanted(1, "NAME"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		name := strings.Join(args, "")
		all, err := c.Sinks(cmd.Context(), name)
		if err == nil && name != "" && len(all) == 0 {
			err = fmt.Errorf("there is no sink %q: \"relay sink\" lists them", name)
		}
		return out.print(cmd, err, all, cliview.Sinks(all, name != "", time.Now()))
	})
	out.flag(cmd, "table", "yaml", "json")
	cmd.AddCommand(newSinkDiff(access), newSinkPrune(access), newSinkPromote(), newSinkAdopt(), newSinkDisown())
	return cmd
}

// orderSink gives an order about a sink, and describes its effect.
func orderSink(ctx context.Context, c admin.Client, name string, o sink.Order) (string, error) {
	done, err := c.OrderSink(ctx, name, o)
	return cliview.SinkOrdered(name, o.Verb, done), err
}

func newSinkPrune(access *access) *cobra.Command {
	o := sink.Order{Verb: "prune"}
	var yes bool
	cmd := control(access, &cobra.Command{
		Use:   "prune NAME --yes",
		Short: "Delete the objects of a sink that are not desired",
		Long: `Delete the objects of a sink that its view does not show any more, whatever its guard and prune are. Objects
that an upstream may still have stay, and those that have just left the view: "relay sink NAME" tells
which. Give the order again when they are to be deleted. Only objects with the label of the sink are
deleted, and none of a promoted sink. The command needs the relay's Unix socket.`,
		Example: `  relay sink diff dr
  relay sink prune dr --yes --reason "the site moves"`,
	}, func(ctx context.Context, c admin.Client, name string) (string, error) {
		if !yes {
			return "", fmt.Errorf("--yes is missing: look at \"relay sink %s\" and \"relay sink diff %[1]s\", and repeat the command with it", name)
		}
		if err := intake.CheckReason(o.Reason); err != nil {
			return "", fmt.Errorf("--reason: %w", err)
		}
		return orderSink(ctx, c, name, o)
	})
	cmd.Args, cmd.ValidArgsFunction = wanted(0, "NAME"), nil
	cmd.Flags().BoolVar(&yes, "yes", false, "delete the objects")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "`text` for the log and the journal")
	return cmd
}

func newSinkDiff(access *access) *cobra.Command {
	var q sink.Wanted
	var limit int
	cmd := access.overSocket(&cobra.Command{
		Use:   "diff NAME",
		Short: "Show what a sink would change in its cluster",
		Long: `Show what a sink of a running relay would change in its cluster, as the API server itself answers to a
dry run. It changes nothing. The annotations of the relay are no difference. The command needs the relay's
Unix socket, and the sink the right to patch.`,
		Example: `  relay sink diff dr
  relay sink diff dr --do delete
  relay sink diff dr --limit 0 > dr.diff   # all of them`,
		Args: wanted(0, "NAME"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		for shown := 0; ; {
			d, err := c.SinkDiff(cmd.Context(), args[0], q)
			if err != nil {
				return err
			}
			if most := limit - shown; limit > 0 && most < len(d.Differences) {
				d.Left += len(d.Differences) - most
				d.Differences = d.Differences[:most]
			}
			shown += len(d.Differences)
			fmt.Fprint(cmd.OutOrStdout(), cliview.SinkDiff(d))
			switch {
			case shown == 0 && d.Left == 0:
				fmt.Fprintf(cmd.OutOrStdout(), "sink %s: no differences\n", args[0])
			case shown == limit && d.Left > 0:
				fmt.Fprintf(cmd.OutOrStdout(), "and %s more: --limit 0 shows all\n", view.Count(d.Left, "object"))
			}
			if q.After = d.Next; d.Left == 0 || shown == limit {
				return nil
			}
		}
	})
	cmd.Flags().StringVar(&q.Kind, "kind", "", "show objects of this `kind` only")
	cmd.Flags().StringVarP(&q.Namespace, "namespace", "n", "", "show objects of this `namespace` only")
	cmd.Flags().StringVar(&q.Do, "do", "", "show only what is to be done so: create, apply, delete, held, left, or added")
	cmd.Flags().IntVar(&limit, "limit", 100, "show at most so many `objects`; 0: all")
	return cmd
}
