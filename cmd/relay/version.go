package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/buildinfo"
)

func newVersion(access *access) *cobra.Command {
	var out output
	var remote bool
	cmd := access.overAdmin(&cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, and of a running relay",
		Example: `  relay version
  relay version --remote
  relay version -o json`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		own := buildinfo.Read(version)
		if !remote {
			return out.print(cmd, nil, own, own.String()+"\n")
		}
		of, err := c.Version(cmd.Context())
		both := struct {
			Client buildinfo.Info `json:"client"`
			Server admin.Version  `json:"server"`
		}{own, of}
		return out.print(cmd, err, both, fmt.Sprintf("this program: %s\nrelay %s: %s\n", own, of.Name, of.Info))
	})
	cmd.Flags().BoolVar(&remote, "remote", false, "also print the version of the running relay")
	out.flag(cmd, "text", "json")
	return cmd
}
