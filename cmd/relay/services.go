package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/downstream"
	"meshrelay/services"
)

// serviceFlags are the flags of a command about services.
type serviceFlags struct {
	access             access
	out                output
	rows               rowLimit
	as, client, subset string
	search             string
	findings           bool
}

// command completes a command. print prints an answer about the host that args names, or about all without args.
func (f *serviceFlags) command(cmd *cobra.Command, print func(cmd *cobra.Command, a services.Answer) error) *cobra.Command {
	f.access.overAdmin(cmd, func(cmd *cobra.Command, c admin.Client, args []string) error {
		query := url.Values{"as": {f.as}, "subset": {f.subset}, "limit": {strconv.Itoa(services.MaxLimit)}}
		host, port, _ := strings.Cut(strings.Join(args, ""), ":")
		query.Set("host", host)
		query.Set("port", port)
		query.Set("search", f.search)
		query.Set("findings", strconv.FormatBool(f.findings))
		if f.client != "" {
			connection, err := connectionOf(cmd, c, f.client)
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
			return errors.New(cliview.Clean(view.NoService(host, a)))
		case a.Partial:
			cmd.PrintErrln("warning: " + view.PartialServices)
		}
		f.rows.left += a.More
		return print(cmd, a)
	})
	cmd.Flags().StringVar(&f.as, "as", "", "show what exportTo lets clients in this `namespace` see")
	cmd.Flags().StringVar(&f.client, "client", "", "show what this connected client gets; `NAME` is as in \"relay clients\"")
	f.rows.flag(cmd)
	f.out.flag(cmd, "table", "yaml", "json")
	return cmd
}

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
		return o.View != first.View || o.Rule != first.Rule || o.ClusterID != first.ClusterID || o.Revision != first.Revision
	}) {
		return "", fmt.Errorf("the connections of client %q differ in what they get: name a connection of \"relay clients %s\"", name, name)
	}
	return first.Connection, nil
}

func newServices() *cobra.Command {
	var f serviceFlags
	cmd := f.command(&cobra.Command{
		Use:   "services [HOST]",
		Short: "List the services of all clusters",
		Long: `List the services of all clusters: ports, clusters, endpoints ready of all, subsets with their
endpoints, and findings (ports: two clusters have other ports; subset: it selects nothing; endpoints:
none is ready; selector: it selects a whole namespace). It is what an istiod makes of the
ServiceEntries, WorkloadEntries and DestinationRules. Pods that a workloadSelector selects in the
clusters of the clients are not known to the relay.`,
		Example: `  relay services
  relay services db.shop.svc.cluster.local
  relay services --search shop --findings
  relay services --as shop
  relay services --client istiod-7d9.istio-system -o json`,
		Args: wanted(1, "HOST"),
	}, func(cmd *cobra.Command, a services.Answer) error {
		return f.out.rows(cmd, &f.rows, nil, a, cliview.Services(cut(&f.rows, a.Services)))
	})
	cmd.Flags().StringVar(&f.search, "search", "", "list only hosts that contain this `text`")
	cmd.Flags().BoolVar(&f.findings, "findings", false, "list only services with findings")
	return cmd
}

func newEndpoints() *cobra.Command {
	var f serviceFlags
	cmd := f.command(&cobra.Command{
		Use:   "endpoints HOST[:PORT]",
		Short: "List the endpoints of a service",
		Long: `List the endpoints of a service, of all clusters: address, ports (of the service, and of the
endpoint), cluster, network, locality, weight, health, account, TLS mode, and the resource and upstream
that they come from. PORT is a number or a name.`,
		Example: `  relay endpoints db.shop.svc.cluster.local
  relay endpoints db.shop.svc.cluster.local:80 --subset v1
  relay endpoints db.shop.svc.cluster.local --as web -o yaml`,
		Args: wanted(0, "HOST"),
	}, func(cmd *cobra.Command, a services.Answer) error {
		s := a.Services[0]
		all := s.Endpoints
		s.Endpoints = cut(&f.rows, all)
		return f.out.rows(cmd, &f.rows, nil, all, cliview.Endpoints(s))
	})
	cmd.Flags().StringVar(&f.subset, "subset", "", "list the endpoints of this `subset` only")
	return cmd
}

func newExplainService() *cobra.Command {
	var f serviceFlags
	return f.command(&cobra.Command{
		Use:   "service HOST",
		Short: "Explain which resources make a service",
		Long: `Show which ServiceEntry of which upstream applies to a host, and why, which others are united with it
or not used, which DestinationRules and VirtualServices apply, and which endpoints are left out. Without
--as, it is what clients in the namespace of the service get.`,
		Example: `  relay explain service db.shop.svc.cluster.local
  relay explain service db.shop.svc.cluster.local --as web`,
		Args: wanted(0, "HOST"),
	}, func(cmd *cobra.Command, a services.Answer) error {
		shown := a.Services[0]
		shown.Entries, shown.Rules, shown.Routes = cut(&f.rows, shown.Entries), cut(&f.rows, shown.Rules), cut(&f.rows, shown.Routes)
		shown.LeftOut = cut(&f.rows, shown.LeftOut)
		return f.out.rows(cmd, &f.rows, nil, a.Services[0], cliview.Service(shown))
	})
}
