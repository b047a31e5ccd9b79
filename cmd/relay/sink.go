package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/sink"
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
	freeze, _ := sinkOrder("freeze", `Have a sink write and delete nothing. It is written into the Lease of the sink in its cluster, and so holds for
all relays with that sink, also after a restart. While the cluster can not be reached, it holds for this relay
alone, and is written later.`, "Write and delete nothing until unfreeze", `  relay sink freeze dr --reason "migration of the site"`)
	unfreeze, _ := sinkOrder("unfreeze", `End the freeze of a sink: it writes what has changed in the meantime, and its guard judges what is to be
deleted.`, "Write again after a freeze", `  relay sink unfreeze dr`)
	release, o := sinkOrder("release", `Carry out the deletions of a sink that its guard holds because they look like an accident. "relay sink
status NAME" lists them with the ID of the hold. If the hold has changed since, nothing is released.`,
		"Carry out deletions that the guard of a sink holds", `  relay sink status dr
  relay sink release dr --hold 4kq3vx2a`)
	release.Flags().StringVar(&o.Hold, "hold", "", "`ID` of the hold (required)")
	prune, _ := sinkOrder("prune", `Delete the objects of a sink that its view does not show any more, whatever its guard and prune are. Objects
that an upstream may still have stay, and those that have just left the view: "relay sink status NAME" tells
which. Give the order again when they are to be deleted. Only objects with the label of the sink are
deleted, and none of a promoted sink.`,
		"Delete the objects of a sink that are not desired", `  relay sink diff dr
  relay sink prune dr --yes --reason "the site moves"`)
	prune.Flags().Bool("yes", false, "delete the objects")
	cmd.AddCommand(newSinkStatus(), newSinkDiff(), freeze, unfreeze, required(release, "hold", " ID"), required(prune, "yes", ""), newSinkPromote(), newSinkAdopt(), newSinkDisown())
	return cmd
}

// required marks a flag that a command must have.
func required(cmd *cobra.Command, flag, value string) *cobra.Command {
	cmd.Use += " --" + flag + value
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if f := cmd.Flags().Lookup(flag); f.Value.String() == f.DefValue {
			return fmt.Errorf("--%s is missing: look at \"relay sink status %s\" and \"relay sink diff %[2]s\", and repeat the command with it", flag, args[0])
		}
		return nil
	}
	return cmd
}

// sinkOrder makes a command that gives an order about one sink.
func sinkOrder(verb, long, short, example string) (*cobra.Command, *sink.Order) {
	var access access
	o := &sink.Order{Verb: verb}
	cmd := access.overSocket(&cobra.Command{
		Use: verb + " NAME", Short: short, Long: long + " The command needs the relay's Unix socket.", Example: example, Args: wanted(0, "NAME"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		if err := intake.CheckReason(o.Reason); err != nil {
			return fmt.Errorf("--reason: %w", err)
		}
		done, err := c.OrderSink(cmd.Context(), args[0], *o)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), cliview.CleanLines(cliview.SinkOrdered(args[0], verb, done)))
		}
		return err
	})
	cmd.Flags().StringVar(&o.Reason, "reason", "", "`text` for the log and the journal")
	return cmd, o
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
