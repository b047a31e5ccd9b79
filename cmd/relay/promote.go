package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/config"
	"meshrelay/sink/promotion"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// target has the flags of a command that changes the objects of a sink in their cluster. The relay that writes
// them may be down.
type target struct {
	file        configFile
	credentials apiserver.Credentials
	namespace   string
	perSecond   int
	dryRun, yes bool
	reason      string
	out         output
}

// promoter makes a command that changes the objects of a sink. done is the verb of its result.
func promoter(cmd *cobra.Command, done string, do func(context.Context, promotion.Options) (promotion.Report, error)) *cobra.Command {
	t := &target{}
	cmd.Args = wanted(0, "NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := t.options(cmd, args[0])
		if err != nil {
			return err
		}
		r, err := do(cmd.Context(), o)
		if err != nil {
			if r.Changed > 0 && !o.DryRun {
				cmd.PrintErrf("%d of %s %s before the error. The next run does the rest\n", r.Changed, view.Count(r.Objects, "object"), done)
			}
			return err
		}
		result := done
		if o.DryRun {
			result = "would be " + done
		}
		text := fmt.Sprintf("sink %s: %d of %s %s\n", o.Sink, r.Changed, view.Count(r.Objects, "object"), result)
		if r.Missing > 0 {
			text += fmt.Sprintf("%s deleted or created anew since the promotion, and left alone\n", view.Count(r.Missing, "object"))
		}
		if err := t.out.print(cmd, nil, r, text); err != nil || t.dryRun || t.yes {
			return err
		}
		cmd.PrintErrln("nothing was changed: use --yes to change it")
		return errNothingDone
	}
	t.file.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&t.credentials.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster, instead of a config file")
	f.StringVar(&t.credentials.Context, "context", "", "`context` of --kubeconfig (default: its current one)")
	f.StringArrayVar(&t.credentials.AllowExec, "allow-exec", nil, "`program` that --kubeconfig may run for credentials (may be repeated)")
	f.StringVar(&t.namespace, "namespace", "istio-system", "`namespace` of the sink in the cluster (default with -c: that of the config file)")
	f.IntVar(&t.perSecond, "writes-per-second", 0, "how many `objects` to change in a second (default: that of the sink in the config file, or 100)")
	f.BoolVar(&t.dryRun, "dry-run", false, "count the objects, but change nothing")
	f.BoolVar(&t.yes, "yes", false, "change the objects")
	f.StringVar(&t.reason, "reason", "", "`text` for the ConfigMap in the cluster")
	t.out.flag(cmd, "text", "json")
	return cmd
}

// options returns what the flags ask for.
func (t *target) options(cmd *cobra.Command, sink string) (promotion.Options, error) {
	o := promotion.Options{Sink: sink, By: person(), Reason: t.reason, DryRun: t.dryRun || !t.yes, Namespace: t.namespace, WritesPerSecond: 100}
	if err := intake.CheckReason(t.reason); err != nil {
		return o, fmt.Errorf("--reason: %w", err)
	}
	if err := config.CheckSinkName(sink); err != nil {
		return o, fmt.Errorf("sink %w", err)
	}
	if t.perSecond < 0 {
		return o, fmt.Errorf("--writes-per-second: %d: want 1 or more", t.perSecond)
	}
	if err := t.find(cmd, &o); err != nil {
		return o, err
	}
	if t.perSecond > 0 {
		o.WritesPerSecond = float64(t.perSecond)
	}
	o.Tell = func(format string, args ...any) { cmd.PrintErrln(cliview.Clean(fmt.Sprintf(format, args...))) }
	c := apiserver.NewClient(&t.credentials, "relay-sink")
	if err := c.Refresh(cmd.Context()); err != nil {
		return o, fmt.Errorf("sink %s: the credentials of its cluster: %w", o.Sink, err)
	}
	o.Tell("cluster %s, namespace %s", c.Current().Server(), o.Namespace)
	last := time.Now()
	o.Conn = func() *apiserver.Conn {
		if time.Since(last) > 30*time.Second { // a token may end while many objects are changed
			last = time.Now()
			if err := c.Refresh(cmd.Context()); err != nil {
				o.Tell("the credentials can not be renewed: %v", err)
			}
		}
		return c.Current()
	}
	return o, nil
}

// find finds the cluster of a sink: that of --kubeconfig, or of the config file.
func (t *target) find(cmd *cobra.Command, o *promotion.Options) error {
	if t.credentials.Kubeconfig != "" {
		if t.file != "" {
			return errors.New("--kubeconfig can not be combined with -c")
		}
		return nil
	}
	path, err := t.file.find()
	if err != nil {
		return fmt.Errorf("%w; or name the cluster with --kubeconfig", err)
	}
	cfg, err := loadConfig(path) // files that it names are not read: they may be lost
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cfg.Sinks, func(s config.Sink) bool { return s.Name == o.Sink })
	if i < 0 {
		return fmt.Errorf("%s has no sink %q: correct the name, or name the cluster with --kubeconfig", path, o.Sink)
	}
	s := cfg.Sinks[i]
	k := s.Kubernetes
	t.credentials = apiserver.Credentials{Kubeconfig: k.Kubeconfig, Context: k.Context, InCluster: k.InCluster, AllowExec: k.AllowExec}
	o.WritesPerSecond = float64(s.WritesPerSecond)
	if !cmd.Flags().Changed("namespace") {
		o.Namespace = s.Namespace
	}
	return nil
}

// person returns who runs the command, for others to read.
func person() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

func newSinkPromote() *cobra.Command {
	return promoter(&cobra.Command{
		Use:   "promote NAME",
		Short: "Turn the objects of a sink into objects of their cluster",
		Long: `Turn the mirror that a sink has written into the primary. The command talks to the API server of
the cluster; no relay has to run.

It writes the ConfigMap meshrelay-sink-NAME into the cluster first: while that is there, no relay writes or
deletes anything for a sink of that name. Then it waits until the writer has released its Lease, or has not
renewed it for 15 seconds. Then it lists the objects of the sink, and removes the labels, annotations and
field managers of the relay from them. Nothing else of them changes.

Without --yes the command counts the objects, changes nothing, and exits with 2. A run that ended in the
middle is completed by running the command again. "relay sink adopt" goes back. At most 100,000 objects can
be promoted.`,
		Example: `  relay sink promote dr --dry-run
  relay sink promote dr --yes --reason "the primary is lost"
  relay sink promote dr --kubeconfig ~/.kube/dr --context dr --yes`,
	}, "promoted", promotion.Promote)
}

func newSinkAdopt() *cobra.Command {
	return promoter(&cobra.Command{
		Use:   "adopt NAME",
		Short: "Give the objects of a promoted sink back to it",
		Long: `Give the objects that "relay sink promote" has listed back to the sink. The command talks to the API
server of the cluster; no relay has to run.

It labels exactly the listed objects. One that was deleted, or created anew with the same name, is left
alone. Then it deletes the lists, and at last the ConfigMap that forbids the sink to write. From then on the
sink writes the objects again as its view has them, over what was edited meanwhile: freeze it before, and
look at "relay sink diff NAME" before you unfreeze it.

Without --yes the command counts the objects, changes nothing, and exits with 2. A run that ended in the
middle is completed by running the command again. For a sink that is not promoted there is nothing to do;
a name that has no Lease in the namespace is an error.`,
		Example: `  relay sink adopt dr --dry-run
  relay sink adopt dr --yes`,
	}, "adopted", promotion.Adopt)
}
