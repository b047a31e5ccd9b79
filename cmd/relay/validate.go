package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/config"
	"meshrelay/internal/errlist"
	"meshrelay/internal/memory"
	"meshrelay/relay"
)

func newValidate() *cobra.Command {
	var file configFile
	var out output
	cmd := &cobra.Command{
		Use:   "validate [-c FILE]",
		Short: "Check a config file",
		Long: `Check a config file, the files it names (certificates, keys and kubeconfigs), and every resource in
its file upstreams. The command prints each mistake with file and line, and exits with 1 if there
are any, and with 2 if its own flags or arguments are wrong. It does not connect to upstreams.`,
		Example: `  relay validate -c relay.yaml

  # Also print the config with all defaults
  relay validate -c relay.yaml -o yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := file.find()
			if err != nil {
				return err
			}
			return validate(cmd, path, out.format)
		},
	}
	file.flag(cmd)
	out.flag(cmd, "text", "yaml")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return failed(cmd, cmd.Parent().FlagErrorFunc()(cmd, err)) })
	cmd.Args = func(cmd *cobra.Command, args []string) error { return failed(cmd, noArguments(cmd, args)) }
	format := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error { return failed(cmd, format(cmd, args)) }
	return cmd
}

// failed prints an error, and ends the command with 2: 1 is for findings.
func failed(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	printError(cmd.ErrOrStderr(), err)
	return &exitError{code: 2}
}

func validate(cmd *cobra.Command, file, format string) error {
	cfg, err := config.Check(file, relay.Sources()...)
	if cfg == nil {
		return err
	}
	cfg.FitMemory(memory.SetLimit())
	problems := errlist.Split(err)
	resources, warnings := 0, []string(nil)
	for _, u := range cfg.Upstreams {
		has := relay.Read(cmd.Context(), u)
		resources += has.Resources
		problems = append(problems, has.Problems...)
		for _, f := range has.Objections.Findings("") {
			warnings = append(warnings, fmt.Sprintf("upstream %s: %s: %s", u.Name, f.What, f.Why))
		}
	}
	if err := cmd.Context().Err(); err != nil {
		return err // the rest was not read
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	for _, line := range slices.Concat(cfg.Warnings(), relay.SinkWarnings(cfg), warnings) {
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", file, line); err != nil {
			return err
		}
	}
	if format == "yaml" {
		b, err := cfg.YAML()
		if err == nil {
			_, err = cmd.OutOrStdout().Write(b)
		}
		return err
	}
	parts := view.Count(len(cfg.Upstreams), "upstream")
	if n := len(cfg.Clusters); n > 0 {
		parts += fmt.Sprintf(", clusters from %s", view.Count(n, "place"))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s, %s in file upstreams\n", file, parts, view.Count(resources, "resource"))
	return err
}

// loadConfig loads a config file. Its mistakes are joined errors.
func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(file, relay.Sources()...)
	if err != nil {
		return nil, err
	}
	cfg.FitMemory(memory.SetLimit())
	return cfg, nil
}
