package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/cliview"
)

func newExplain() *cobra.Command {
	var access access
	var out output
	var namespace, upstream string
	var diffs, leftOut bool
	cmd := &cobra.Command{
		Use:   "explain KIND NAME | explain --left-out [KIND]",
		Short: "Explain why a resource is served as it is",
		Long: `Show every upstream that has a resource, what import and rewrite rules did to it, whose copy
is served and why, since when, and which clients have acknowledged it. Name the resource as the
relay serves it, or as an upstream has it. The exit code is 1 when no upstream has it.

With --left-out, list all resources that import rules leave out, with the rule.`,
		Example: `  relay explain serviceentry db -n shop

  # With the differences between what each upstream has and what is served
  relay explain se db -n shop --diff

  # What import rules leave out of one upstream
  relay explain --left-out --upstream east`,
		Args: func(cmd *cobra.Command, args []string) error {
			if leftOut {
				return wanted(1, "KIND")(cmd, args)
			}
			return wanted(0, "KIND", "NAME")(cmd, args)
		},
		ValidArgsFunction: completeKinds,
		RunE: access.overAdmin(func(cmd *cobra.Command, c admin.Client, args []string) error {
			if leftOut {
				all, err := c.LeftOut(cmd.Context(), upstream, strings.Join(args, ""))
				return out.print(cmd, err, all, cliview.LeftOut(all))
			}
			e, err := c.Explain(cmd.Context(), args[0], namespace, args[1])
			if err == nil && e.Outcome == admin.Missing {
				return errors.Join(out.print(cmd, nil, e, ""), fmt.Errorf("no upstream has %s", e.Ref))
			}
			return out.print(cmd, err, e, cliview.Explain(e, diffs, time.Now()))
		}),
	}
	access.adminFlags(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the resource")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show differences between what each upstream has and what is served")
	cmd.Flags().BoolVar(&leftOut, "left-out", false, "list what import rules leave out")
	cmd.Flags().StringVar(&upstream, "upstream", "", "with --left-out: list this `upstream` only")
	out.flag(cmd, "table", "json")
	return cmd
}

func newConflicts() *cobra.Command {
	var access access
	var out output
	var kind string
	cmd := &cobra.Command{
		Use:   "conflicts",
		Short: "List resources and hosts on which upstreams conflict",
		Long: `List the resources that several upstreams have, with the winner, the losers, the reason and
the time; and the hosts that different resources claim for the same clients. Neither is an
error: the merge policy decides the first, the second is served as it is.`,
		Example: `  relay conflicts
  relay conflicts --kind serviceentries -o json`,
		RunE: access.overAdmin(func(cmd *cobra.Command, c admin.Client, _ []string) error {
			all, err := c.Conflicts(cmd.Context(), kind)
			return out.print(cmd, err, all, cliview.Conflicts(all, time.Now()))
		}),
	}
	access.adminFlags(cmd)
	cmd.Flags().StringVar(&kind, "kind", "", "list this `kind` only")
	out.flag(cmd, "table", "json")
	return cmd
}
