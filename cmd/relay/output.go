package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"meshrelay/internal/cliview"
)

// output is the flag -o of a command.
type output struct {
	format  string
	formats []string
}

// flag adds the flag to a command. The first format is the default.
func (o *output) flag(cmd *cobra.Command, formats ...string) {
	o.formats = formats
	cmd.Flags().StringVarP(&o.format, "output", "o", formats[0], "output `format`: "+o.list())
	fixedCompletions(cmd, "output", formats...)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(o.formats, o.format) {
			return fmt.Errorf("output format %q: want %s", o.format, o.list())
		}
		return nil
	}
}

func (o *output) list() string {
	last := len(o.formats) - 1
	return strings.Join(o.formats[:last], ", ") + " or " + o.formats[last]
}

// print prints v as JSON or YAML, and in other formats as text. It returns err when it is not
// nil.
func (o *output) print(cmd *cobra.Command, err error, v any, text string) error {
	w := cmd.OutOrStdout()
	switch {
	case err != nil:
		return err
	case o.format == "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case o.format == "yaml":
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if b, err = yaml.JSONToYAML(b); err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	if paintOf(cmd) {
		text = cliview.Colour(text)
	}
	_, err = io.WriteString(w, text)
	return err
}

// fixedCompletions completes a flag with a few values.
func fixedCompletions(cmd *cobra.Command, flag string, values ...string) {
	// It fails only without that flag, which every test would show.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}
