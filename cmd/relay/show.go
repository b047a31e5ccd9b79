package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func newStatus(access *access) *cobra.Command {
	var out output
	var watch, exitCode bool
	cmd := access.overAdmin(&cobra.Command{
		Use:   "status",
		Short: "Show the readiness, upstreams and clients of a running relay",
		Long: `Show whether a running relay is ready, and if not why, its upstreams and its clients. Of many
clients, it shows those with problems. Where the config has replicas, a table has all of them, and
lines tell which order is not in force on which one. The head has the memory in use, and the config file with the
beginning of the SHA-256 of the loaded text: if sha256sum prints another one, the file has changed
since. The command reads the admin address, which is on loopback by default. The exit code is 0
when the relay answers; with --exit-code it depends on the state of the relay.

With --watch, print the status again whenever it changes, until interrupted.`,
		Example: `  relay status
  relay status --watch
  relay status --exit-code
  relay status --admin 127.0.0.1:15014 -o json
  kubectl exec meshrelay-0 -- relay status`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: see \"relay upstreams %s\" or \"relay clients %s\"", args[0], args[0], args[0])
			}
			return nil
		},
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		all, err := statusOf(cmd.Context(), c)
		err = out.print(cmd, err, all, all.text(time.Now()))
		switch {
		case err != nil || !exitCode:
		case !all.Readiness.Ready:
			return &exitError{code: 3}
		case len(all.Readiness.Reasons) > 0:
			return &exitError{code: 2}
		}
		return err
	})
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 when the relay is degraded, and with 3 when it is not ready")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the status again whenever it changes, until interrupted")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !watch {
			return once(cmd, args)
		}
		if out.format != "table" {
			return fmt.Errorf("--watch prints tables: leave out -o %s", out.format)
		}
		return watchStatus(cmd, access.client(), access.timeout)
	}
	out.flag(cmd, "table", "json")
	return cmd
}

// overview is the data of "relay status".
type overview struct {
	Version   admin.Version             `json:"version"`
	Readiness admin.Readiness           `json:"readiness"`
	Upstreams []upstreams.Status        `json:"upstreams"`
	Clients   []downstream.ClientStatus `json:"clients"`
	Replicas  []orders.Replica          `json:"replicas,omitempty"`
	Conflicts struct {
		Keys  int `json:"keys"`
		Hosts int `json:"hosts"`
	} `json:"conflicts"`
}

func statusOf(ctx context.Context, c admin.Client) (all overview, err error) {
	if all.Version, err = c.Version(ctx); err == nil {
		all.Readiness, err = c.Ready(ctx)
	}
	if err == nil {
		all.Upstreams, err = c.Upstreams(ctx)
	}
	if err == nil {
		all.Clients, err = c.Clients(ctx)
	}
	if err == nil {
		all.Replicas, err = c.Replicas(ctx)
	}
	if err != nil {
		return all, err
	}
	conflicts, err := c.Conflicts(ctx, "")
	all.Conflicts.Keys, all.Conflicts.Hosts = len(conflicts.Keys), len(conflicts.Hosts)
	return all, err
}

// text returns the overview for a terminal. Ages are relative to now.
func (all overview) text(now time.Time) string {
	text := cliview.Status(all.Version, all.Readiness, all.Upstreams, all.Clients, now) + cliview.Replicas(all.Replicas, now)
	if all.Conflicts.Keys+all.Conflicts.Hosts > 0 {
		text += fmt.Sprintf("\nConflicts: %s in several upstreams, %s claimed by several resources. See \"relay conflicts\".\n",
			view.Count(all.Conflicts.Keys, "resource"), view.Count(all.Conflicts.Hosts, "host"))
	}
	return text
}

// watchEvery is how often "status --watch" reads the status.
const watchEvery = time.Second

// watchStatus prints the status, and prints it again when anything but ages has changed.
func watchStatus(cmd *cobra.Command, c admin.Client, timeout time.Duration) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	last := ""
	for ok := true; ok; ok = mirror.Sleep(ctx, watchEvery) {
		asked, cancel := context.WithTimeout(ctx, timeout)
		all, err := statusOf(asked, c)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		// With a zero time, the text has no ages.
		text, now := all.text(time.Time{}), time.Now()
		if err != nil {
			text = hinted(err).Error()
		}
		if text != last {
			shown := text + "\n"
			if err == nil {
				shown = all.text(now)
			}
			if !colored(cmd) {
				shown = cliview.Plain(shown)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "--- %s\n%s\n", now.UTC().Format(time.RFC3339), shown)
			last = text
		}
	}
	return nil
}

func newUpstreams(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	var held bool
	cmd := access.overAdmin(&cobra.Command{
		Use:     "upstreams [NAME]",
		Aliases: []string{"upstream"},
		Short:   "List the upstreams of a running relay, or show one",
		Long: `List the upstreams of a running relay with their state. With NAME, show one upstream: its resources
by kind, and which resources are refused or left out, and why.

With --held, list the deletions that the guards of all upstreams hold, or that of one: the ID and
reason of each hold, when it ends, and every resource with its age and the time since its upstream
deleted it. All listed resources are still served.`,
		Example: `  relay upstreams
  relay upstreams east
  relay upstreams --held
  relay upstreams east --held -o yaml`,
		Args:              wanted(1, "NAME"),
		ValidArgsFunction: access.completeUpstreams,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		if held {
			return throughSocket(cmd, c, args, func(cmd *cobra.Command, c admin.Client, args []string) error {
				all, err := c.Held(cmd.Context(), strings.Join(args, ""))
				shown := slices.Clone(all)
				for i := range shown {
					shown[i].Deletions = cut(&rows, shown[i].Deletions)
				}
				return out.rows(cmd, &rows, err, all, cliview.Held(shown, time.Now()))
			})
		}
		all, err := c.Upstreams(cmd.Context())
		if err != nil || len(args) == 0 {
			return out.rows(cmd, &rows, err, all, cliview.Upstreams(cut(&rows, all), time.Now()))
		}
		i := slices.IndexFunc(all, func(u upstreams.Status) bool { return u.Name == args[0] })
		if i < 0 {
			return fmt.Errorf("no upstream %q: see \"relay upstreams\"", args[0])
		}
		return out.print(cmd, nil, all[i], cliview.Upstream(all[i], time.Now()))
	})
	cmd.Flags().BoolVar(&held, "held", false, "list the deletions that guards hold")
	rows.flag(cmd)
	out.flag(cmd, "table", "yaml", "json")
	cmd.AddCommand(control(access, &cobra.Command{
		Use:   "resync NAME",
		Short: "Read everything of an upstream again",
		Long: `Make a running relay read everything of an upstream again, as it does every few hours by itself. The
guard judges what is missing. It is for a server that has lost an event. Ask each replica.`,
		Example: `  relay upstreams resync east`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		_, err := c.Order(ctx, upstream, "resync", intake.Order{})
		return "upstream " + upstream + ": everything is read again", err
	}))
	return cmd
}

func newClients(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	cmd := access.overAdmin(&cobra.Command{
		Use:     "clients [NAME]",
		Aliases: []string{"client"},
		Short:   "List the clients of a running relay, or show one",
		Long: `List the clients of a running relay, and whether they have acknowledged all responses. With NAME,
show one client by type. NAME is POD.NAMESPACE as in the list, a node ID, or a connection.`,
		Example: `  relay clients
  relay clients istiod-7d9.istio-system`,
		Args: wanted(1, "NAME"),
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		all, err := c.Clients(cmd.Context())
		if err != nil || len(args) == 0 {
			return out.rows(cmd, &rows, err, all, cliview.Clients(cut(&rows, all), time.Now()))
		}
		found := cliview.MatchClients(all, args[0])
		if len(found) == 0 {
			return fmt.Errorf("no client %q is connected: see \"relay clients\"", args[0])
		}
		texts := make([]string, len(found))
		for i, client := range found {
			texts[i] = cliview.Client(client, time.Now())
		}
		return out.print(cmd, nil, found, strings.Join(texts, "\n"))
	})
	rows.flag(cmd)
	out.flag(cmd, "table", "yaml", "json")
	return cmd
}

func newExplain(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	var namespace, upstream string
	var diffs, leftOut bool
	cmd := access.overAdmin(&cobra.Command{
		Use:   "explain KIND [NAMESPACE/]NAME | explain --left-out [KIND]",
		Short: "Explain why a resource is served as it is",
		Long: `Show every upstream that has a resource, the effect of import and rewrite rules, which copy is
served, why and since when, and which clients have acknowledged it. Name the resource as the relay
serves it, or as an upstream has it: KIND NAME with -n, KIND NAMESPACE/NAME, or KIND/NAME. The exit
code is 1 when no upstream has it.

With --left-out, list all resources that import rules leave out, with the rule.`,
		Example: `  relay explain serviceentry db -n shop
  relay explain se shop/db

  # With the differences between the copy of each upstream and the served resource
  relay explain se db -n shop --diff

  # The resources of one upstream that import rules leave out
  relay explain --left-out --upstream east`,
		Args: func(cmd *cobra.Command, args []string) error {
			if leftOut {
				return wanted(1, "KIND")(cmd, args)
			}
			if _, _, ok := kindAndName(args); ok {
				return nil
			}
			return wanted(0, "KIND", "NAME")(cmd, args)
		},
		ValidArgsFunction: completeKinds,
	}, func(cmd *cobra.Command, c admin.Client, args []string) error {
		if leftOut {
			all, err := c.LeftOut(cmd.Context(), upstream, strings.Join(args, ""))
			return out.rows(cmd, &rows, err, all, cliview.LeftOut(cut(&rows, all)))
		}
		kind, namespace, name, err := resourceOf(cmd, args, namespace)
		if err != nil {
			return err
		}
		e, err := c.Explain(cmd.Context(), kind, namespace, name)
		if err == nil && e.Outcome == admin.Missing {
			return errors.Join(out.print(cmd, nil, e, ""), fmt.Errorf("no upstream has %s%s", e.Key, cliview.Elsewhere(e)))
		}
		shown := e
		shown.HostConflicts, shown.Group, shown.Clients = cut(&rows, e.HostConflicts), cut(&rows, e.Group), cut(&rows, e.Clients)
		return out.rows(cmd, &rows, err, e, cliview.Explain(shown, diffs, time.Now()))
	})
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the resource")
	cmd.Flags().BoolVar(&diffs, "diff", false, "show the differences between the copy of each upstream and the served resource")
	cmd.Flags().BoolVar(&leftOut, "left-out", false, "list the resources that import rules leave out")
	cmd.Flags().StringVar(&upstream, "upstream", "", "with --left-out: list this `upstream` only")
	rows.flag(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

// resourceOf returns the kind, namespace and name that arguments name: KIND NAME, KIND NAMESPACE/NAME or KIND/NAME.
// namespace is the value of the flag.
func resourceOf(cmd *cobra.Command, args []string, namespace string) (kind, ns, name string, err error) {
	kind, name, ok := kindAndName(args)
	if !ok {
		kind, name = args[0], args[1]
	}
	of, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return kind, namespace, name, nil
	case cmd.Flags().Changed("namespace") && of != namespace:
		return "", "", "", fmt.Errorf("namespace %s or %s: use NAMESPACE/NAME or -n, not both", namespace, of)
	}
	return kind, of, rest, nil
}

// kindAndName splits KIND/NAME. It does not split a type, group/version/Kind.
func kindAndName(args []string) (kind, name string, ok bool) {
	if len(args) != 1 {
		return "", "", false
	}
	kind, name, ok = strings.Cut(args[0], "/")
	return kind, name, ok && kind != "" && name != "" && !strings.Contains(name, "/")
}

func newConflicts(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	var kind string
	cmd := access.overAdmin(&cobra.Command{
		Use:   "conflicts",
		Short: "List resources and hosts on which upstreams conflict",
		Long: `List the resources that several upstreams have, with the winner, the losers, the reason and the
time. Also list the hosts that different resources claim for the same clients. Neither is an error:
the merge policy selects one copy of a resource, and all resources of a host are served, unless
hostConflicts gives it to one upstream or to none: what is not served is in the first list. Then come
the hosts whose ServiceEntry, rules and routes come from different upstreams, and the resources that
import.hosts leaves out. MeshConfig is not listed: each upstream has one, for its own
mesh.`,
		Example: `  relay conflicts
  relay conflicts --kind serviceentries -o json`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		all, err := c.Conflicts(cmd.Context(), kind)
		few := rowLimit{most: (rows.most + 3) / 4} // their rows are long
		shown := admin.Conflicts{Keys: cut(&rows, all.Keys), Hosts: cut(&rows, all.Hosts), Hybrids: cut(&few, all.Hybrids), Refused: cut(&rows, all.Refused)}
		rows.left += few.left
		return out.rows(cmd, &rows, err, all, cliview.Conflicts(shown, time.Now()))
	})
	cmd.Flags().StringVar(&kind, "kind", "", "list this `kind` only")
	rows.flag(cmd)
	out.flag(cmd, "table", "json")
	return cmd
}

func newHistory(access *access) *cobra.Command {
	var out output
	var rows rowLimit
	var diff bool
	var revision uint64
	cmd := access.overSocket(&cobra.Command{
		Use:   "history UPSTREAM [REVISION]",
		Short: "List the revisions of an upstream, newest first",
		Long: `List the revisions of an upstream of a running relay: when and how it changed. state.history in the
config file limits their number and age.

With --diff, show the difference between a revision, by default the newest, and the one before. For
the oldest kept revision, all resources are shown as added.`,
		Example: `  relay history east
  relay history east 41 --diff
  relay history east -o json`,
		Args:              wanted(1, "UPSTREAM", "REVISION"),
		ValidArgsFunction: access.completeUpstreams,
	}, func(cmd *cobra.Command, c admin.Client, args []string) (err error) {
		if len(args) > 1 {
			if revision, err = strconv.ParseUint(args[1], 10, 64); err != nil || revision == 0 {
				return fmt.Errorf("want a revision, not %q: \"relay history %s\" lists them", args[1], args[0])
			}
		}
		if diff {
			d, err := c.Diff(cmd.Context(), args[0], revision)
			return out.print(cmd, err, d, view.RevisionDiff(d, rows.diffs(true)))
		}
		revisions, err := c.History(cmd.Context(), args[0])
		if revision > 0 {
			revisions = slices.DeleteFunc(revisions, func(r state.Revision) bool { return r.ID != revision })
		}
		if err == nil && revision > 0 && len(revisions) == 0 {
			err = fmt.Errorf("upstream %s: revision %d is not kept: \"relay history %s\" lists those that are", args[0], revision, args[0])
		}
		return out.rows(cmd, &rows, err, revisions, cliview.History(cut(&rows, revisions), time.Now()))
	})
	rows.flag(cmd)
	cmd.Flags().BoolVar(&diff, "diff", false, "show the changes of the revision, or of the newest one")
	out.flag(cmd, "table", "json")
	return cmd
}
