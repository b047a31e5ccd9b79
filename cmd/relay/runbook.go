package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"meshrelay/docs"
)

// addHelp adds the help command of cobra, with the runbooks and the manual pages.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.AddCommand(newRunbook(), newMan())
		}
	}
}

func newRunbook() *cobra.Command {
	return &cobra.Command{
		Use:   "runbook [ALERT]",
		Short: "Print what to do about an alert",
		Long: `Print the runbook of an alert: what it means, what it costs, commands to look with, what to do by
what they print, and whom to call. Without ALERT, list all runbooks. The alerts are those of
deploy/prometheus/alerts.yaml.`,
		Example: `  relay help runbook
  relay help runbook RelayHoldsDeletions`,
		Args: wanted(1, "ALERT"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, name := range docs.Runbooks() {
					names = append(names, cobra.CompletionWithDesc(name, docs.Meaning(name)))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listRunbooks(cmd)
			}
			text := docs.Runbook(args[0])
			if text == "" {
				return fmt.Errorf("no runbook %q: \"relay help runbook\" lists them", args[0])
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
}

func listRunbooks(cmd *cobra.Command) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ALERT\tMEANING")
	for _, name := range docs.Runbooks() {
		fmt.Fprintf(w, "%s\t%s\n", name, docs.Meaning(name))
	}
	return w.Flush()
}
