package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/config"
	"meshrelay/notify"
)

func newNotify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Test the receivers of notifications",
		Long:  `Work with the receivers of notifications: the section notify of the config file.`,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNotifyTest())
	return cmd
}

func newNotifyTest() *cobra.Command {
	var file configFile
	var out output
	cmd := &cobra.Command{
		Use:   "test [NAME]",
		Short: "Send one test message to the receivers of a config",
		Long: `Send one message to each receiver in the section notify of a config file, or to the one of that
name, and print its answer. The message is marked as a test: its type is "test", and an
Alertmanager gets the alert RelayTest of severity info for five minutes.

The command sends from this host, with the files of TLS, tokens and URLs that the config names,
and prints no secret. It needs no running relay. It exits with 1 when a receiver does not take
the message.`,
		Example: `  relay notify test -c relay.yaml
  relay notify test -c relay.yaml pager`,
		Args: wanted(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := file.find()
			if err != nil {
				return err
			}
			cfg, err := loadConfig(path)
			if err != nil {
				return err
			}
			receivers, err := receiversOf(cfg, path, args)
			if err != nil {
				return err
			}
			answers := testReceivers(cmd, cfg.Node.ID, receivers)
			if err := out.print(cmd, nil, answers, cliview.NotifyAnswers(answers)); err != nil {
				return err
			}
			if slices.ContainsFunc(answers, func(a cliview.NotifyAnswer) bool { return a.Error != "" }) {
				return errUnhealthy // the table has the reason
			}
			return nil
		},
	}
	file.flag(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

// receiversOf returns the receivers of a config, or the one that is named.
func receiversOf(cfg *config.Config, path string, args []string) ([]config.Notify, error) {
	if len(cfg.Notify) == 0 {
		return nil, fmt.Errorf("%s has no receivers: add a section notify, see docs/configuration.md", path)
	}
	if len(args) == 0 {
		return cfg.Notify, nil
	}
	var names []string
	for _, r := range cfg.Notify {
		if r.Name == args[0] {
			return []config.Notify{r}, nil
		}
		names = append(names, r.Name)
	}
	return nil, fmt.Errorf("%s has no receiver %q: there is %s", path, args[0], strings.Join(names, ", "))
}

// testReceivers sends the messages at the same time. The config bounds how many there are, and how long
// each takes.
func testReceivers(cmd *cobra.Command, relay string, receivers []config.Notify) []cliview.NotifyAnswer {
	answers := make([]cliview.NotifyAnswer, len(receivers))
	var group errgroup.Group
	for i, r := range receivers {
		group.Go(func() error {
			answers[i] = cliview.NotifyAnswer{Receiver: r.Name, Format: r.Format}
			if err := notify.Test(cmd.Context(), r, relay); err != nil {
				answers[i].Error = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() //nolint:errcheck // the answers have the errors
	return answers
}
