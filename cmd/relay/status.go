package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/internal/statusview"
	"meshrelay/upstreams"
)

// adminAccess is how to reach the admin address of a running relay.
type adminAccess struct {
	address string
	timeout time.Duration
}

func (a *adminAccess) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.address, "admin", "127.0.0.1:15014", "admin `address` of the relay, host:port")
	cmd.Flags().DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for answers")
}

// with calls f with a client, under the timeout, which cmd.Context then carries.
func (a *adminAccess) with(cmd *cobra.Command, f func(admin.Client) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	cmd.SetContext(ctx)
	return hinted(f(admin.Client{Address: a.address}))
}

// hinted adds to the error of a relay that does not answer what to do about it.
func hinted(err error) error {
	var unreachable *admin.UnreachableError
	if errors.As(err, &unreachable) {
		return fmt.Errorf("%w: is a relay running, and is that its admin.address? Name another with --admin", err)
	}
	return err
}

func newStatus() *cobra.Command {
	var access adminAccess
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the upstreams and clients of a running relay",
		Long: `Show whether a running relay is ready, and if not why, the state of its upstreams and
its clients. The relay is asked at its admin address, which by default it opens on
loopback only. The exit code is 0 whenever the relay answers.`,
		Example: `  relay status
  relay status --admin 127.0.0.1:15014 -o json
  kubectl exec meshrelay-0 -- relay status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("output format %q: want table or json", output)
			}
			return access.with(cmd, func(c admin.Client) error { return printStatus(cmd, c, output) })
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "output `format`: table or json")
	fixedCompletions(cmd, "output", "table", "json")
	return cmd
}

func printStatus(cmd *cobra.Command, c admin.Client, output string) error {
	var all struct {
		Readiness admin.Readiness           `json:"readiness"`
		Upstreams []upstreams.Status        `json:"upstreams"`
		Clients   []downstream.ClientStatus `json:"clients"`
		Conflicts struct {
			Keys  int `json:"keys"`
			Hosts int `json:"hosts"`
		} `json:"conflicts"`
	}
	var err error
	if all.Readiness, err = c.Ready(cmd.Context()); err != nil {
		return err
	}
	if all.Upstreams, err = c.Upstreams(cmd.Context()); err != nil {
		return err
	}
	if all.Clients, err = c.Clients(cmd.Context()); err != nil {
		return err
	}
	conflicts, err := c.Conflicts(cmd.Context(), "")
	if err != nil {
		return err
	}
	all.Conflicts.Keys, all.Conflicts.Hosts = len(conflicts.Keys), len(conflicts.Hosts)
	if output == "json" {
		return writeJSON(cmd.OutOrStdout(), all)
	}
	if err := statusview.Print(cmd.OutOrStdout(), all.Readiness, all.Upstreams, all.Clients, time.Now()); err != nil {
		return err
	}
	if all.Conflicts.Keys+all.Conflicts.Hosts == 0 {
		return nil
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nKeys that several upstreams have: %d. Hosts that several configs claim: %d. See \"relay conflicts\".\n",
		all.Conflicts.Keys, all.Conflicts.Hosts)
	return err
}
