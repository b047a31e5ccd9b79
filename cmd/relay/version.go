package main

import (
	"github.com/spf13/cobra"

	"meshrelay/internal/buildinfo"
)

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Example: `  relay version
  relay version -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := buildinfo.Read(version)
			return out.print(cmd, nil, info, info.String()+"\n")
		},
	}
	out.flag(cmd, "text", "json")
	return cmd
}
