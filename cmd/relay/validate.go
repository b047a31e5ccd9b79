package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/internal/printer"
	source "meshrelay/upstreams/file"
)

func newValidate() *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use:   "validate -c FILE",
		Short: "Check a config file and the files it names, without starting",
		Long: `Check a config file, that the files it names can be read, and every resource in its file
sources. Each problem is printed with file and line, and the exit code is 1 if there is
one. Nothing is connected to.`,
		Example: `  relay validate -c relay.yaml

  # The same, and print the configuration with all defaults
  relay validate -c relay.yaml -o yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return validate(cmd, file, output) },
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "config `file` (required)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output `format`: text, or yaml for the effective configuration")
	fixedCompletions(cmd, "output", "text", "yaml")
	return cmd
}

func validate(cmd *cobra.Command, file, output string) error {
	if output != "text" && output != "yaml" {
		return fmt.Errorf("output format %q: want text or yaml", output)
	}
	cfg, err := loadConfig(file)
	if err != nil {
		return err
	}
	var problems []error
	if err := cfg.CheckFiles(); err != nil {
		for _, e := range split(err) {
			problems = append(problems, fmt.Errorf("%s: %w", file, e))
		}
	}
	resources := 0
	for _, u := range cfg.Upstreams {
		if u.File == nil {
			continue
		}
		if _, err := os.Stat(u.File.Path); err != nil {
			continue // CheckFiles has said so
		}
		found, bad, err := source.Read(u.File.Path, u.Name)
		if err != nil {
			problems = append(problems, fmt.Errorf("upstream %s: %w", u.Name, err))
		}
		for _, b := range bad {
			problems = append(problems, fmt.Errorf("%s: %s", b.Resource, b.Reason))
		}
		resources += len(found)
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	if output == "yaml" {
		b, err := cfg.YAML()
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(b)
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s, %s in file sources\n", file, printer.Count(len(cfg.Upstreams), "upstream"), printer.Count(resources, "resource"))
	return err
}

// loadConfig loads a config file. What is wrong with it comes as joined errors.
func loadConfig(file string) (*config.Config, error) {
	if file == "" {
		return nil, errNoConfig
	}
	cfg, err := config.Load(file)
	if err != nil {
		return nil, errors.Join(split(err)...)
	}
	fitMemory(cfg)
	return cfg, nil
}

// split returns the errors of which one consists.
func split(err error) []error {
	var many *multierror.Error
	if errors.As(err, &many) {
		return many.Errors
	}
	return []error{err}
}

var errNoConfig = errors.New("say which config file, with -c FILE")
