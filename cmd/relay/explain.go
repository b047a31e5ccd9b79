package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/explainview"
	"meshrelay/internal/visible"
)

func newExplain() *cobra.Command {
	var access adminAccess
	var namespace, output string
	var diffs, leftOut bool
	var upstream string
	cmd := &cobra.Command{
		Use:   "explain KIND NAME | explain --left-out [KIND]",
		Short: "Show how what a running relay serves of a config came about",
		Long: `Show every upstream that has a config, what import and rewrite rules did to it there,
whose copy is served and why, since when, and which clients have acknowledged it. The
config is named as the relay serves it, or as an upstream has it. The exit code is 1 when
no upstream has it.

With --left-out, list all that the upstreams have and import rules leave out, each with the
rule.`,
		Example: `  relay explain serviceentry db -n shop

  # With what is served as a difference from what each upstream has
  relay explain se db -n shop --diff

  # What import rules leave out of one upstream
  relay explain --left-out --upstream east`,
		Args: func(cmd *cobra.Command, args []string) error {
			if leftOut {
				return wanted([]string{"kind"}[:min(len(args), 1)]...)(cmd, args) // or none
			}
			return wanted("kind", "name")(cmd, args)
		},
		ValidArgsFunction: completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tableOrJSON(output); err != nil {
				return err
			}
			return access.with(cmd, func(c admin.Client) error {
				if leftOut {
					return printLeftOut(cmd, c, upstream, args, output)
				}
				e, err := c.Explain(cmd.Context(), args[0], namespace, args[1])
				switch {
				case err != nil:
					return err
				case output == "json":
					err = writeJSON(cmd.OutOrStdout(), e)
				case e.Outcome != admin.Missing:
					err = explainview.Explain(cmd.OutOrStdout(), e, diffs, time.Now())
				}
				if err == nil && e.Outcome == admin.Missing {
					err = fmt.Errorf("no upstream has %s", e.Ref)
				}
				return err
			})
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the config")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show what is served as a difference from what each upstream has")
	cmd.Flags().BoolVar(&leftOut, "left-out", false, "list what import rules leave out")
	cmd.Flags().StringVar(&upstream, "upstream", "", "with --left-out: of this `upstream` only")
	outputFlag(cmd, &output)
	return cmd
}

func printLeftOut(cmd *cobra.Command, c admin.Client, upstream string, args []string, output string) error {
	kind := ""
	if len(args) > 0 {
		kind = args[0]
	}
	all, err := c.LeftOut(cmd.Context(), upstream, kind)
	switch {
	case err != nil:
		return err
	case output == "json":
		return writeJSON(cmd.OutOrStdout(), all)
	}
	return explainview.LeftOut(cmd.OutOrStdout(), all)
}

func newConflicts() *cobra.Command {
	var access adminAccess
	var kind, output string
	cmd := &cobra.Command{
		Use:   "conflicts",
		Short: "Show what the upstreams of a running relay do not agree on",
		Long: `Show the keys (kind, namespace and name) that several upstreams have, with the winner,
the losers, the reason and since when it is so; and the hosts that different configs claim
where the same clients see them. Neither is an error: the first is settled by the merge
policy, the second is served as it is.`,
		Example: `  relay conflicts
  relay conflicts --kind serviceentries -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := tableOrJSON(output); err != nil {
				return err
			}
			return access.with(cmd, func(c admin.Client) error {
				all, err := c.Conflicts(cmd.Context(), kind)
				switch {
				case err != nil:
					return err
				case output == "json":
					return writeJSON(cmd.OutOrStdout(), all)
				}
				return explainview.Conflicts(cmd.OutOrStdout(), all, time.Now())
			})
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVar(&kind, "kind", "", "show this `kind` only")
	outputFlag(cmd, &output)
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "output `format`: table or json")
	fixedCompletions(cmd, "output", "table", "json")
}

func tableOrJSON(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("output format %q: want table or json", output)
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(visible.JSONWriter(w))
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

var errDiffers = errors.New("the plan changes what is served")
