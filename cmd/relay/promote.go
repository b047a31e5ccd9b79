package main

import (
	"cmp"
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

// promoter makes a command that talks to the cluster of a sink. done is the verb of its result, of objects if it changes them.
func promoter(cmd *cobra.Command, done string, objects bool, do func(context.Context, promotion.Options) (promotion.Report, error)) *cobra.Command {
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
		is := "is"
		if o.DryRun {
			is = "would be"
		}
		text := fmt.Sprintf("sink %s %s %s\n", o.Sink, is, done)
		if objects {
			text = fmt.Sprintf("sink %s: %d of %s %s %s\n", o.Sink, r.Changed, view.Count(r.Objects, "object"), cmp.Or(map[bool]string{true: is}[o.DryRun], "are"), done)
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
	if objects {
		f.IntVar(&t.perSecond, "writes-per-second", 0, "how many `objects` to change in a second (default: that of the sink in the config file, or 100)")
	}
	f.BoolVar(&t.dryRun, "dry-run", false, "ask the API server whether it would do it, and change nothing")
	f.BoolVar(&t.yes, "yes", false, "do it")
	f.StringVar(&t.reason, "reason", "", "`text` for the Lease in the cluster")
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
	t.credentials = apiserver.Credentials{Cluster: s.Cluster}
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
		Short: "Make the objects of a sink those of the people of their cluster",
		Long: `Make the mirror that a sink has written the primary. The command talks to the API server of the cluster; no
relay has to run.

It takes the Lease meshrelay-sink-NAME for good: its holder is "promoted", and its annotations tell who, why
and when. No relay takes such a Lease, writes or deletes for a sink of that name. Then it waits 16 seconds,
in which requests of the last writer end. It touches no object: edit them with kubectl from now on. "relay
sink adopt" goes back.

Without --yes the command asks the API server whether it would take it, changes nothing, and exits with 2. A
run that ended in the middle is completed by running the command again.`,
		Example: `  relay sink promote dr --dry-run
  relay sink promote dr --yes --reason "the primary is lost"
  relay sink promote dr --kubeconfig ~/.kube/dr --context dr --yes`,
	}, "promoted", false, func(ctx context.Context, o promotion.Options) (r promotion.Report, err error) {
		return r, promotion.Promote(ctx, o)
	})
}

func newSinkAdopt() *cobra.Command {
	return promoter(&cobra.Command{
		Use:   "adopt NAME",
		Short: "Give the objects of a promoted sink back to it",
		Long: `Give the objects of a promoted sink back to it. The command talks to the API server of the cluster; no relay
has to run.

It frees the Lease of the sink, and writes into it that the sink is frozen, and that every deletion is held.
So nothing is lost: what was edited at the site shows as drift, and what was created there stays. Look at
"relay sink diff NAME", take over into the primary what is to stay, then run "relay unfreeze sink/NAME":
edits are put right. "relay release sink/NAME" is for the deletions, and ends that every one is held.

Without --yes the command asks the API server whether it would take it, changes nothing, and exits with 2. A
sink that is not promoted is an error, unless its Lease is lost: then it gets one.`,
		Example: `  relay sink adopt dr --dry-run
  relay sink adopt dr --yes`,
	}, "the relay's again, frozen", false, func(ctx context.Context, o promotion.Options) (r promotion.Report, err error) {
		return r, promotion.Adopt(ctx, o)
	})
}

func newSinkDisown() *cobra.Command {
	return promoter(&cobra.Command{
		Use:   "disown NAME",
		Short: "Take what a promoted sink has left on its objects off, for good",
		Long: `Remove the labels, annotations and field managers of the relay from the objects of a promoted sink: for a site
that stays the primary, that is read as an upstream, or whose objects a tool such as Argo CD takes over. The
command talks to the API server of the cluster; no relay has to run.

The sink stays promoted, and its name is used up in that cluster: to use it again, delete the Lease, and the
state of the sink in each relay that had it. There is no way back but a sink of another name with adopt: true.

Without --yes the command counts the objects, changes nothing, and exits with 2. A run that ended in the
middle is completed by running the command again.`,
		Example: `  relay sink disown dr --dry-run
  relay sink disown dr --yes`,
	}, "disowned", true, promotion.Disown)
}
