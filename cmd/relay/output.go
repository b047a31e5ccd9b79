package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"

	"meshrelay/cmd/relay/internal/cliview"
)

// output is the flag -o of a command.
type output struct {
	format  string
	formats []string
	path    *jsonpath.JSONPath // the template of the format jsonpath; nil for other formats
}

// flag adds the flag to a command. The first format is the default.
func (o *output) flag(cmd *cobra.Command, formats ...string) {
	o.formats = formats
	usage := "output `format`: " + o.list()
	if slices.Contains(formats, "json") {
		usage += "; json is for programs and never shortened"
	}
	cmd.Flags().StringVarP(&o.format, "output", "o", formats[0], usage)
	fixedCompletions(cmd, "output", formats...)
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		template, ok := strings.CutPrefix(o.format, "jsonpath=")
		switch {
		case ok && slices.Contains(o.formats, "json"):
			o.path = jsonpath.New("output").AllowMissingKeys(true)
			if err = o.path.Parse(template); err != nil {
				return fmt.Errorf("output format jsonpath: %w: write it as for kubectl, such as jsonpath='{.items[*].metadata.name}'", err)
			}
		case !slices.Contains(o.formats, o.format):
			return fmt.Errorf("output format %q: want %s", o.format, o.list())
		}
		return nil
	}
}

func (o *output) list() string {
	all := o.formats
	if slices.Contains(all, "json") {
		all = append(slices.Clone(all), "jsonpath=TEMPLATE")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// json prints a JSON document through the template of the flag.
func (o *output) json(w io.Writer, text []byte) error {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return o.path.Execute(w, v)
}

// print prints v as JSON or YAML, and text in other formats. If err is not nil, it only returns err.
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
	case o.path != nil, o.format == "yaml":
		b, err := json.Marshal(v)
		if err == nil && o.path != nil {
			return o.json(w, b)
		}
		if err == nil {
			b, err = yaml.JSONToYAML(b)
		}
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	if !colored(cmd) {
		text = cliview.Plain(text)
	}
	_, err = io.WriteString(w, text)
	return err
}

// fixedCompletions completes a flag with a few values.
func fixedCompletions(cmd *cobra.Command, flag string, values ...string) {
	// It fails only if the flag does not exist, and then every test fails.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}
