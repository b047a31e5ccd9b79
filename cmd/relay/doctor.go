package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/errlist"
	"meshrelay/internal/memory"
	"meshrelay/relay"
)

// exitError ends a command with an exit code. Nothing is printed for it.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// report is the JSON output of doctor.
type report struct {
	OK       int              `json:"ok"`
	Warnings int              `json:"warnings"`
	Failed   int              `json:"failed"`
	Findings []doctor.Finding `json:"findings"`
}

func newDoctor() *cobra.Command {
	var file configFile
	var out output
	d := relay.Doctor{Files: relay.LookAtFiles}
	cmd := &cobra.Command{
		Use:   "doctor [-c FILE]",
		Short: "Check everything that a relay needs before it starts",
		Long: `Check a config file, and everything that a relay with it needs. On this host: the ports, what
judges clients, the Unix socket and the state directory. For each upstream: name,
port, certificates, token, identity and permissions; the command connects to each address and
requests all resources once. For each place of clusters: that the relay can list and watch it, the
allowed programs, and each kubeconfig. For each sink and the orders of replicas: the API server, and
its rules for the relay. It reads the files of upstreams for 0.7 s, and reports if it did not read all.

Run it as the user that runs the relay, on the same host or in the same pod. It changes nothing, and
can run beside the relay. It prints each problem with its cause and its fix. The exit code is 1 when
a check failed, 2 when there are only warnings, and 0 otherwise.`,
		Example: `  relay doctor -c relay.yaml
  relay doctor -c relay.yaml --upstream east
  relay doctor -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := file.find()
			if err != nil {
				return err
			}
			told := func(string, ...any) {}
			if onTerminal(cmd.ErrOrStderr()) {
				told = cmd.PrintErrf
			}
			found, err := examine(cmd.Context(), path, d, told)
			if err != nil {
				return err
			}
			all := report{doctor.Count(found, doctor.OK), doctor.Count(found, doctor.Warning), doctor.Count(found, doctor.Failed), found}
			if err := out.print(cmd, nil, all, cliview.Doctor(found)); err != nil {
				return err
			}
			switch doctor.Worst(found) {
			case doctor.Failed:
				return &exitError{code: 1}
			case doctor.Warning:
				return &exitError{code: 2}
			}
			return nil
		},
	}
	file.flag(cmd)
	cmd.Flags().StringVar(&d.Upstream, "upstream", "", "check this `upstream` only")
	cmd.Flags().DurationVar(&d.Limit, "timeout", 10*time.Second, "how long each check may take; they run at the same time")
	out.flag(cmd, "text", "json")
	return cmd
}

// examine checks the config file, and everything that a relay with it needs. It reports progress with told.
func examine(ctx context.Context, path string, d relay.Doctor, told func(string, ...any)) ([]doctor.Finding, error) {
	if d.Limit <= 0 {
		return nil, fmt.Errorf("--timeout is %v: want more than 0", d.Limit)
	}
	cfg, err := config.Check(path, relay.Sources()...)
	found := []doctor.Finding{}
	for _, mistake := range errlist.Split(err) {
		found = append(found, doctor.Bad("config", "", mistake.Error(), "", ""))
	}
	if cfg == nil { // the findings have the mistakes
		return found, nil
	}
	if len(found) == 0 {
		found = append(found, doctor.Good("config", path, "valid, %s", view.Count(len(cfg.Upstreams), "upstream")))
	}
	if line := cfg.Unlimited(); line != "" {
		found = append(found, doctor.Good("config", path, "%s", line))
	}
	if d.Upstream != "" && !slices.ContainsFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == d.Upstream }) {
		return nil, fmt.Errorf("%s has no upstream %q", path, d.Upstream)
	}
	d.Config, d.Memory = cfg, memory.SetLimit()
	cfg.FitMemory(d.Memory)
	n := len(cfg.Upstreams)
	if d.Upstream != "" {
		n = 1
	}
	told("checking this host and %s, each for %v at most\n", view.Count(n, "upstream"), d.Limit)
	d.Running = func(ctx context.Context) bool {
		v, err := admin.Client{Address: cfg.Admin.Address}.Version(ctx)
		return err == nil && v.Name == cfg.Node.ID
	}
	return append(found, d.Examine(ctx)...), nil
}
