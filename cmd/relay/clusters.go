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
)

func newClusters(access *access) *cobra.Command {
	var out output
	cmd := access.overAdmin(&cobra.Command{
		Use:     "clusters",
		Aliases: []string{"cluster"},
		Short:   "List the found clusters of a running relay",
		Long: `List the clusters that a running relay has found by "clusters" in its config, with their
upstreams and problems.

A cluster whose kubeconfig is gone is orphaned: its resources are served until removeAfter has passed,
or until "relay release cluster/PLACE/CLUSTER". When many clusters are gone together, the guard holds
them until "relay release cluster/PLACE".`,
		Example: `  relay clusters
  relay clusters -o yaml`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		parts, err := c.Clusters(cmd.Context())
		if err != nil {
			return err
		}
		ups, err := c.Upstreams(cmd.Context())
		return out.print(cmd, err, parts, cliview.Clusters(parts, ups, time.Now()))
	})
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}

// releaseClusters lets the held clusters of a place become orphaned, or removes one cluster: PLACE or PLACE/CLUSTER.
func releaseClusters(ctx context.Context, c admin.Client, name string) (string, error) {
	if place, cluster, one := strings.Cut(name, "/"); one {
		return fmt.Sprintf("cluster %s of %s is removed", cluster, place), c.RemoveCluster(ctx, place, cluster)
	}
	done, err := c.ReleaseClusters(ctx, name)
	return fmt.Sprintf("%s of %s %s now orphaned", view.Count(done.Clusters, "cluster"), name, view.Agree(done.Clusters, "is", "are")), err
}
