package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/downstream"
	"meshrelay/services"
)

// connectionOf returns the connection of a client. Several connections must have the same view.
func connectionOf(cmd *cobra.Command, c admin.Client, name string) (string, error) {
	all, err := c.Clients(cmd.Context())
	if err != nil {
		return "", err
	}
	found := cliview.MatchClients(all, name)
	if len(found) == 0 {
		return "", fmt.Errorf("no client %q is connected: see \"relay clients\"", name)
	}
	first := found[0]
	if slices.ContainsFunc(found, func(o downstream.ClientStatus) bool {
		return o.View != first.View || o.ClusterID != first.ClusterID || o.Revision != first.Revision
	}) {
		return "", fmt.Errorf("the connections of client %q differ in what they get: name a connection of \"relay clients %s\"", name, name)
	}
	return first.Connection, nil
}

func newServices(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	var client, search string
	cmd := access.overAdmin(&cobra.Command{
		Use:   "services [HOST[:PORT]]",
		Short: "List the services of all clusters, or the endpoints of one",
		Long: `List the hosts of all ServiceEntries: ports, clusters and the number of endpoints. With HOST, list its
ServiceEntries and its endpoints: address, ports (of the service, and of the endpoint), cluster, network,
locality, weight, account, and the resource and upstream that each comes from. PORT is a number or a
name. Endpoints are those that a ServiceEntry lists, and the WorkloadEntries that it selects. Pods that
it selects in the clusters of the clients are not known to the relay.`,
		Example: `  relay services
  relay services db.shop.svc.cluster.local
  relay services db.shop.svc.cluster.local:80 -o yaml
  relay services --search shop
  relay services --client istiod-7d9.istio-system -o json`,
		Args: wanted(1, "HOST"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		host, port, _ := strings.Cut(strings.Join(args, ""), ":")
		query := url.Values{"host": {host}, "port": {port}, "search": {search}, "limit": {strconv.Itoa(services.MaxLimit)}}
		if client != "" {
			connection, err := connectionOf(cmd, c, client)
			if err != nil {
				return err
			}
			query.Set("client", connection)
		}
		a, err := c.Services(cmd.Context(), query)
		switch {
		case err != nil:
			return err
		case host != "" && len(a.Services) == 0:
			return errors.New(cliview.Clean(view.NoService(host)))
		case a.Partial:
			cmd.PrintErrln("warning: " + view.PartialServices)
		}
		rows.left += a.More
		if host == "" {
			return out.rows(cmd, &rows, nil, a, cliview.Services(cut(&rows, a.Services), time.Now()))
		}
		shown := a.Services[0]
		shown.Entries, shown.Endpoints = cut(&rows, shown.Entries), cut(&rows, shown.Endpoints)
		return out.rows(cmd, &rows, nil, a.Services[0], cliview.Service(shown, time.Now()))
	})
	cmd.Flags().StringVar(&client, "client", "", "show what this connected client gets; `NAME` is as in \"relay clients\"")
	cmd.Flags().StringVar(&search, "search", "", "list only hosts that contain this `text`")
	rows.flag(cmd)
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}
