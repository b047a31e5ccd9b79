package main

import (
	"errors"
	"fmt"
	"strings"
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
	cmd := access.overAdmin(&cobra.Command{
		Use:   "status",
		Short: "Show the upstreams and clients of a running relay",
		Long: `Show whether a running relay is ready, and if not why, the state of its upstreams, and its
clients. The command asks the admin address, which is on loopback by default. The exit code is
0 whenever the relay answers.`,
		Example: `  relay status
  relay status --admin 127.0.0.1:15014 -o json
  kubectl exec meshrelay-0 -- relay status`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error { return printStatus(cmd, c, &out) })
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

func newExplain() *cobra.Command {
	var access access
	var out output
	var namespace, upstream string
	var diffs, leftOut bool
	cmd := access.overAdmin(&cobra.Command{
		Use:   "explain KIND [NAMESPACE/]NAME | explain --left-out [KIND]",
		Short: "Explain why a resource is served as it is",
		Long: `Show every upstream that has a resource, what import and rewrite rules did to it, whose copy
is served and why, since when, and which clients have acknowledged it. Name the resource as the
relay serves it, or as an upstream has it: KIND NAME with -n, KIND NAMESPACE/NAME, or KIND/NAME.
The exit code is 1 when no upstream has it.

With --left-out, list all resources that import rules leave out, with the rule.`,
		Example: `  relay explain serviceentry db -n shop
  relay explain se shop/db

  # With the differences between what each upstream has and what is served
  relay explain se db -n shop --diff

  # What import rules leave out of one upstream
  relay explain --left-out --upstream east`,
		Args: func(cmd *cobra.Command, args []string) error {
			if leftOut {
				return wanted(1, "KIND")(cmd, args)
			}
			if _, _, ok := kindAndName(args); ok {
				return nil
			}
			return wanted(0, "KIND", "NAME")(cmd, args)
		},
		ValidArgsFunction: completeKinds,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		if leftOut {
			all, err := c.LeftOut(cmd.Context(), upstream, strings.Join(args, ""))
			return out.print(cmd, err, all, cliview.LeftOut(all))
		}
		kind, name, ok := kindAndName(args)
		if !ok {
			kind, name = args[0], args[1]
		}
		if of, rest, ok := strings.Cut(name, "/"); ok {
			if cmd.Flags().Changed("namespace") && of != namespace {
				return fmt.Errorf("namespace %s or %s: give NAMESPACE/NAME or -n, not both", namespace, of)
			}
			namespace, name = of, rest
		}
		e, err := c.Explain(cmd.Context(), kind, namespace, name)
		if err == nil && e.Outcome == admin.Missing {
			return errors.Join(out.print(cmd, nil, e, ""), fmt.Errorf("no upstream has %s%s", e.Ref, cliview.Elsewhere(e)))
		}
		return out.print(cmd, err, e, cliview.Explain(e, diffs, time.Now()))
	})
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the resource")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show differences between what each upstream has and what is served")
	cmd.Flags().BoolVar(&leftOut, "left-out", false, "list what import rules leave out")
	cmd.Flags().StringVar(&upstream, "upstream", "", "with --left-out: list this `upstream` only")
	out.flag(cmd, "table", "json")
	return cmd
}

// kindAndName splits KIND/NAME. A type, group/version/Kind, is none.
func kindAndName(args []string) (kind, name string, ok bool) {
	if len(args) != 1 {
		return "", "", false
	}
	kind, name, ok = strings.Cut(args[0], "/")
	return kind, name, ok && kind != "" && name != "" && !strings.Contains(name, "/")
}

func newConflicts() *cobra.Command {
	var access access
	var out output
	var kind string
	cmd := access.overAdmin(&cobra.Command{
		Use:   "conflicts",
		Short: "List resources and hosts on which upstreams conflict",
		Long: `List the resources that several upstreams have, with the winner, the losers, the reason and
the time; and the hosts that different resources claim for the same clients. Neither is an
error: the merge policy decides the first, the second is served as it is.`,
		Example: `  relay conflicts
  relay conflicts --kind serviceentries -o json`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		all, err := c.Conflicts(cmd.Context(), kind)
		return out.print(cmd, err, all, cliview.Conflicts(all, time.Now()))
	})
	cmd.Flags().StringVar(&kind, "kind", "", "list this `kind` only")
	out.flag(cmd, "table", "json")
	return cmd
}

func newHeld() *cobra.Command {
	var access access
	var out output
	cmd := access.overSocket(&cobra.Command{
		Use:   "held [UPSTREAM]",
		Short: "List deletions that guards hold",
		Long: `List the deletions that the guards of a running relay hold, of one upstream or of all: the ID
and reason of each hold, when it ends, and every resource with its age and the time since its
upstream deleted it. All listed resources are still served.`,
		Example: `  relay held
  relay held east
  relay held east -o yaml`,
		Args:              wanted(1, "UPSTREAM"),
		ValidArgsFunction: access.completeUpstreams,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		held, err := c.Held(cmd.Context(), strings.Join(args, ""))
		return out.print(cmd, err, held, cliview.Held(held, time.Now()))
	})
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}

func newHistory() *cobra.Command {
	var access access
	var out output
	cmd := access.overSocket(&cobra.Command{
		Use:   "history UPSTREAM",
		Short: "List the revisions of an upstream, newest first",
		Long: `List the revisions of an upstream of a running relay: when it changed, and what. state.history
in the config file limits their number and age.`,
		Example: `  relay history east
  relay history east -o json`,
		Args:              wanted(0, "UPSTREAM"),
		ValidArgsFunction: access.completeUpstreams,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		revisions, err := c.History(cmd.Context(), args[0])
		return out.print(cmd, err, revisions, cliview.History(revisions, time.Now()))
	})
	out.flag(cmd, "table", "json")
	return cmd
}
