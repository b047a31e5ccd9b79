package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/docs"
	"meshrelay/internal/relay"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON schema of the config file, for editors",
		Long: `Print a JSON schema of the config file. Editors complete fields with it, show what they mean, and
mark mistakes. "relay validate" finds more than a schema can tell.

The YAML language server takes it from a comment in the first line of the config file:

  # yaml-language-server: $schema=relay.schema.json`,
		Example: `  relay schema >relay.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fields := docs.Fields()
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(config.SchemaOf(func(path string) string { return fields[path] }, relay.Sources()...))
		},
	}
}
