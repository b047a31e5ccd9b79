package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/internal/buildinfo"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print which build this is",
		Example: `  relay version
  relay version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := buildinfo.Read(version)
			switch output {
			case "text":
				fmt.Fprintln(cmd.OutOrStdout(), info)
				return nil
			case "json":
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(info)
			}
			return fmt.Errorf("output format %q: want text or json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output `format`: text or json")
	fixedCompletions(cmd, "output", "text", "json")
	return cmd
}
