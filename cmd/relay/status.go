package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/internal/cliview"
	"meshrelay/upstreams"
)

func newStatus() *cobra.Command {
	var access access
	var out output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the upstreams and clients of a running relay",
		Long: `Show whether a running relay is ready, and if not why, the state of its upstreams, and its
clients. The command asks the admin address, which is on loopback by default. The exit code is
0 whenever the relay answers.`,
		Example: `  relay status
  relay status --admin 127.0.0.1:15014 -o json
  kubectl exec meshrelay-0 -- relay status`,
		RunE: access.overAdmin(func(cmd *cobra.Command, c admin.Client, _ []string) error { return printStatus(cmd, c, &out) }),
	}
	access.adminFlags(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

func printStatus(cmd *cobra.Command, c admin.Client, out *output) (err error) {
	var all struct {
		Readiness admin.Readiness           `json:"readiness"`
		Upstreams []upstreams.Status        `json:"upstreams"`
		Clients   []downstream.ClientStatus `json:"clients"`
		Conflicts struct {
			Keys  int `json:"keys"`
			Hosts int `json:"hosts"`
		} `json:"conflicts"`
	}
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
	text := cliview.Status(all.Readiness, all.Upstreams, all.Clients, time.Now())
	if all.Conflicts.Keys+all.Conflicts.Hosts > 0 {
		text += fmt.Sprintf("\nConflicts: %s in several upstreams, %s claimed by several resources. See \"relay conflicts\".\n",
			cliview.Count(all.Conflicts.Keys, "resource"), cliview.Count(all.Conflicts.Hosts, "host"))
	}
	return out.print(cmd, nil, all, text)
}
