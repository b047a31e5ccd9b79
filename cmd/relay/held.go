package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/statusview"
	"meshrelay/upstreams"
)

// errNothingDone ends a command that was not told enough to change anything.
var errNothingDone = errors.New("nothing was changed")

func newHeld() *cobra.Command {
	var access socketAccess
	var output string
	cmd := &cobra.Command{
		Use:   "held [UPSTREAM]",
		Short: "List deletions that guards hold back",
		Long: `List the deletions that the guards of a running relay hold back: of one upstream or of all,
with the ID and the reason of each hold, when it ends, and every resource with its age and how
long ago its upstream deleted it. All that is listed is still served.`,
		Example: `  relay held
  relay held east
  relay held east -o yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%q is too much: relay held [UPSTREAM]", args[1])
			}
			return nil
		},
		ValidArgsFunction: access.completeUpstreams,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" && output != "yaml" {
				return fmt.Errorf("output format %q: want table, yaml or json", output)
			}
			return access.with(cmd, func(c admin.Client) error {
				held, err := c.Held(cmd.Context(), strings.Join(args, ""))
				switch {
				case err != nil:
					return err
				case output == "json":
					return writeJSON(cmd.OutOrStdout(), held)
				case output == "yaml":
					return writeYAML(cmd.OutOrStdout(), held)
				}
				return statusview.Held(cmd.OutOrStdout(), held, time.Now())
			})
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "output `format`: table, yaml or json")
	fixedCompletions(cmd, "output", "table", "yaml", "json")
	return cmd
}

// writeYAML writes what writeJSON would, as YAML.
func writeYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if b, err = yaml.JSONToYAML(b); err == nil {
		_, err = w.Write(b)
	}
	return err
}

// describeHeld lists what is held, after a line break.
func describeHeld(held []upstreams.HeldUpstream) string {
	var out strings.Builder
	out.WriteByte('\n')
	_ = statusview.Held(&out, held, time.Now()) // a Builder takes everything
	return strings.TrimRight(out.String(), "\n")
}
