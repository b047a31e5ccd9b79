package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"meshrelay/internal/buildinfo"
)

// newMan makes the command that packages are built with.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a directory",
		Example: `  relay help man /usr/local/share/man/man1`,
		Hidden:  true,
		Args:    wanted(0, "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // everybody may read manual pages
				return err
			}
			root := cmd.Root()
			asTyped(root)
			header := doc.GenManHeader{Section: "1", Source: "relay " + buildinfo.Read(version).Version, Manual: "relay"}
			return doc.GenManTree(root, &header, args[0])
		},
	}
}

// asTyped has the texts of a command and those below it printed as they are. Manual pages take them for Markdown.
func asTyped(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	if cmd.Long != "" {
		cmd.Long = "```\n" + cmd.Long + "\n```"
	}
	for _, c := range cmd.Commands() {
		asTyped(c)
	}
}
