package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelpTellsWhatATerminalGetsInPart: tables, and all formats of "relay get". Other JSON is complete.
func TestHelpTellsWhatATerminalGetsInPart(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		output, limit := cmd.Flags().Lookup("output"), cmd.Flags().Lookup("limit")
		hasJSON := output != nil && strings.Contains(output.Usage, "jsonpath=TEMPLATE")
		switch {
		case cmd.Name() == "get":
			if !strings.Contains(output.Usage, "on a terminal, --limit bounds") || !strings.Contains(limit.Usage, "on a terminal") {
				t.Errorf("get: %s\n%s", output.Usage, limit.Usage)
			}
		case hasJSON && !strings.Contains(output.Usage, "json is for programs and never shortened"):
			t.Errorf("%s: %s", cmd.CommandPath(), output.Usage)
		case hasJSON && limit != nil && strings.Contains(limit.Usage, "rows") && !strings.Contains(limit.Usage, "-o json always prints all"):
			t.Errorf("%s: %s", cmd.CommandPath(), limit.Usage)
		}
		for _, c := range cmd.Commands() {
			each(c)
		}
	}
	each(newRoot())
}
