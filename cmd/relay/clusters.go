package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
)

func newClusters() *cobra.Command {
	var access access
	var out output
	cmd := access.overAdmin(&cobra.Command{
		Use:     "clusters",
		Aliases: []string{"cluster"},
		Short:   "List the found clusters of a running relay, or decide about them",
		Long: `List the clusters that a running relay has found by "clusters" in its config, with their
upstreams and problems.

A cluster whose kubeconfig is gone is orphaned: its resources are served until removeAfter has passed,
or until "relay clusters remove". When many clusters are gone together, the guard holds them until
"relay clusters release".`,
		Example: `  relay clusters
  relay clusters release fleet
  relay clusters remove fleet west`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		parts, err := c.Clusters(cmd.Context())
		if err != nil {
			return err
		}
		ups, err := c.Upstreams(cmd.Context())
		return out.print(cmd, err, parts, cliview.Clusters(parts, ups, time.Now()))
	})
	out.flag(cmd, "table", "yaml", "json")
	cmd.AddCommand(newReleaseClusters(), newRemoveCluster())
	return cmd
}

func newReleaseClusters() *cobra.Command {
	var access access
	return access.overSocket(&cobra.Command{
		Use:   "release CLUSTERS",
		Short: "Let held clusters become orphaned",
		Long: `Confirm that the clusters which the guard holds are gone on purpose. The running relay makes them
orphaned at once, and removes them after removeAfter. The command needs the relay's Unix socket.`,
		Example: `  relay clusters release fleet`,
		Args:    wanted(0, "CLUSTERS"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		done, err := c.ReleaseClusters(cmd.Context(), args[0])
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s of %s %s now orphaned\n", view.Count(done.Clusters, "cluster"), args[0], view.Agree(done.Clusters, "is", "are"))
		}
		return err
	})
}

func newRemoveCluster() *cobra.Command {
	var access access
	return access.overSocket(&cobra.Command{
		Use:   "remove CLUSTERS CLUSTER",
		Short: "Remove a cluster whose kubeconfig is gone, with its resources",
		Long: `Remove an orphaned or held cluster from a running relay. The relay stops serving its resources and
deletes its history. The command needs the relay's Unix socket.`,
		Example: `  relay clusters remove fleet west`,
		Args:    wanted(0, "CLUSTERS", "CLUSTER"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		err := c.RemoveCluster(cmd.Context(), args[0], args[1])
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "cluster %s of %s is removed\n", args[1], args[0])
		}
		return err
	})
}
