package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/docs"
	"meshrelay/relay"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON schema of the config file, for editors",
		Long: `Print a JSON schema of the config file. With it, editors complete fields, describe them, and mark
mistakes. "relay validate" finds more mistakes than a schema can describe.

The YAML language server reads the schema that a comment in the first line of the config file names.
"relay init" writes this comment:

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
