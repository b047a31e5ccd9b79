package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"meshrelay/internal/buildinfo"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "relay",
		Short: "Merge the resources of many istiods and serve them over xDS",
		Long: `relay connects to several istiods (or other relays, or directories of YAML), mirrors their Istio
and Gateway API resources, merges them, and serves the result on one xDS endpoint. The protocol is
MCP-over-xDS (Mesh Configuration Protocol), which istiods use among themselves.

A first run:
  relay validate -c relay.yaml         check the config file and the files it names
  relay doctor -c relay.yaml           check the network, certificates, tokens and ports
  relay serve -c relay.yaml            run the relay
  relay status                         show its upstreams and clients
  relay status --watch                 show them again whenever something changes
  relay get serviceentries -A          list the resources that it, or an istiod, serves
  relay explain se NAME -n NAMESPACE   explain why a resource is served as it is
  relay plan -c new.yaml               show what another config file would change

Documentation: docs/ in the source, and relay COMMAND --help.`,
		Version:       buildinfo.Read(version).Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		// Without RunE, --help and errors would describe a command that does nothing.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see \"%s --help\"", err, cmd.CommandPath())
	})
	access := &access{}
	access.flags(root)
	groups := []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run a relay:", []*cobra.Command{newInit(), newServe(), newValidate(), newDoctor(), newSchema(), newPlan(access), newReload(access), newLogLevel(access)}},
		{"Look:", []*cobra.Command{newStatus(access), newUpstreams(access), newClusters(access), newClients(access), newGet(access), newServices(access), newExplain(access), newConflicts(access), newHistory(access), newEvents(access), newDiff(), newWait(access)}},
		{"Decide:", []*cobra.Command{newRelease(access), newFreeze(access), newUnfreeze(access), newRollback(access), newServeWithout(access), newSink(access)}},
		{"Report a bug:", []*cobra.Command{newSupportBundle(access)}},
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(newVersion(access))
	strict(root)
	addHelp(root)
	return root
}

// strict makes commands without an argument check refuse all arguments.
func strict(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.Args == nil {
			c.Args = noArguments
		}
		strict(c)
	}
}

// noArguments refuses arguments. The errors of cobra would call them unknown commands.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Flags().Lookup("config") != nil && !cmd.Flags().Changed("config"):
		return fmt.Errorf("unexpected argument %q: a config file is given as %s -c %[1]s", args[0], cmd.CommandPath())
	}
	return fmt.Errorf("unexpected argument %q: see \"%s --help\"", args[0], cmd.CommandPath())
}
