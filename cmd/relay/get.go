package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/adsclient"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/cmd/relay/internal/lister"
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/downstream"
	"meshrelay/internal/loopback"
	"meshrelay/mirror"
)

// watchResync is how often "get --watch" requests all resources again: an istiod does not push every change
// (PROTOCOL C4).
const watchResync = 30 * time.Second

// getOptions are the flags of "relay get".
type getOptions struct {
	namespace     string
	allNamespaces bool
	output        output
	labels        string
	search        string
	noHeaders     bool
	watch         bool
	rows          rowLimit
	timeout       time.Duration
	disk          onDisk
	relay         *access
	serverFlags
}

// serverFlags are the flags for reaching an xDS server.
type serverFlags struct {
	access        lister.Access
	plaintext     bool
	nodeNamespace string
}

func (s *serverFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&s.plaintext, "plaintext", false, "connect without TLS (default for a server on loopback, unless a TLS flag is given)")
	f.StringVar(&s.access.CAFile, "ca-file", "", "PEM `file` with the trusted certificates (default: those of this host)")
	f.StringVar(&s.access.CertFile, "cert-file", "", "PEM `file` with a client certificate")
	f.StringVar(&s.access.KeyFile, "key-file", "", "PEM `file` with the key of the client certificate")
	f.StringVar(&s.access.ServerName, "server-name", "", "`name` to expect in the server's certificate (default: the host of the address)")
	f.StringVar(&s.access.TokenFile, "token-file", "", "`file` with a bearer token")
	f.StringVar(&s.nodeNamespace, "node-namespace", "", "`namespace` in the node ID: an istiod may demand its root namespace, or that of the token (default: that of the client certificate's SPIFFE ID, else istio-system)")
}

// complete sets access.Plaintext if the flag was given.
func (s *serverFlags) complete(cmd *cobra.Command) {
	if cmd.Flags().Changed("plaintext") {
		s.access.Plaintext = &s.plaintext
	}
}

// config returns the lister.Config for kinds of the server.
func (s serverFlags) config(kinds []selection.Kind, timeout time.Duration) (lister.Config, error) {
	namespace := cmp.Or(s.nodeNamespace, s.access.Namespace(), "istio-system")
	cfg := lister.Config{
		Kinds: kinds, Timeout: timeout,
		Node: adsclient.Node(adsclient.NodeConfig{Name: downstream.ToolName, Namespace: namespace, IP: "127.0.0.1", ClusterID: downstream.ToolName}),
	}
	return cfg, s.access.Apply(&cfg)
}

func newGet(access *access) *cobra.Command {
	o := getOptions{relay: access}
	cmd := &cobra.Command{
		Use:   "get KIND[,KIND...] [NAME...]",
		Short: "List the resources that a relay or istiod serves",
		Long: `List the resources that a server sends to its MCP-over-xDS clients: a relay, an istiod (port
15010 or 15012), or another server of the protocol. An istiod with that server in configSources
gets the same resources.

Name kinds as for kubectl: by kind, plural or short name, with or without group. "all" means
every well-known kind; name others as group/version/Kind. A name that belongs to several kinds,
such as gateways, means all of them.

UPSTREAM is the upstream of the first relay on the way; an istiod does not send it. With -o wide,
CLUSTER is the cluster of that upstream, RELAYS are all relays on the way, and VERSION is the version
at this server: equal content has equal versions on every relay. The server does not send when a
relay received the content: "relay explain" shows this under SINCE.

A "*" behind UPSTREAM marks what is listed as it was when its source lost contact; a line on standard
error names the source. xDS does not tell it: the command asks the relay's admin address, if --server
is on loopback or --admin is given. --watch and other formats mark nothing.

With --state, it reads the state.dir of a relay that is down: what each upstream had last, after import
and rewrite rules, and before the merge. Without KIND, it then lists the upstreams.`,
		Example: `  # All kinds and namespaces of the relay on this host
  relay get all -A

  # Two kinds in one namespace, and one resource as YAML that a file source can read
  relay get serviceentries,vs -n shop
  relay get se db -n shop -o yaml

  # Follow changes
  relay get virtualservices -A --watch

  # Resources of an istiod: in plaintext through kubectl port-forward, and with TLS
  relay get se -A --server 127.0.0.1:15010
  relay get se -A --server istiod.example:15012 --ca-file root-cert.pem \
    --server-name istiod.istio-system.svc --token-file token

  # The disk of a relay that is down: its upstreams, and one of them as YAML that a file source can read
  relay get --state /var/lib/relay
  relay get all -A --state /var/lib/relay --upstream east -o yaml`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.complete(cmd)
			switch {
			case o.disk.dir == "" && o.disk.upstream != "":
				return errors.New("--upstream is for --state: servers have merged resources")
			case o.disk.dir != "" && o.watch:
				return errors.New("--state has no changes to --watch: the relay is down")
			case o.disk.dir != "" && len(args) == 0:
				return o.disk.list(cmd, &o.output)
			}
			return get(cmd, args, o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", "default", "list this `namespace`")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list all namespaces")
	f.StringVarP(&o.labels, "selector", "l", "", "list resources whose labels match this `selector`, such as team=shop,tier!=test")
	f.StringVar(&o.search, "search", "", "list resources with this `text` in namespace/name")
	f.BoolVar(&o.noHeaders, "no-headers", false, "leave out the titles of tables")
	f.BoolVarP(&o.watch, "watch", "w", false, "after the resources, list changes until interrupted")
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for the server's complete answer")
	f.StringVar(&o.access.Server, "server", cmp.Or(os.Getenv("RELAY_SERVER"), "127.0.0.1:15010"), "`address` of the server, host:port; $RELAY_SERVER sets another default")
	f.StringVar(&o.disk.dir, "state", "", "read this `directory`, the state.dir of a relay that is down, instead of a server")
	f.StringVar(&o.disk.upstream, "upstream", "", "with --state, list what this `upstream` had")
	o.flags(cmd)
	o.rows.flag(cmd)
	f.Lookup("limit").Usage = "print at most this `number` of resources in a table or on a terminal; 0 prints all; --watch on a terminal bounds only the first list, not the changes"
	o.output.flag(cmd, "table", "wide", "yaml", "json", "name")
	f.Lookup("output").Usage = "output `format`: " + o.output.list() + "; on a terminal, --limit bounds all but jsonpath"
	return asks(cmd)
}

// completeKinds completes kinds at the begin of the argument and after each comma.
func completeKinds(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	done := word[:strings.LastIndexByte(word, ',')+1]
	var out []string
	for _, w := range selection.Words() {
		if strings.HasPrefix(done+w, word) {
			out = append(out, done+w)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func get(cmd *cobra.Command, args []string, o getOptions) error {
	namespace := o.namespace
	if o.allNamespaces {
		namespace = ""
	}
	sel, err := selection.Parse(args, namespace)
	if err == nil {
		err = sel.WithLabels(o.labels)
	}
	if err == nil {
		err = sel.WithText(o.search)
	}
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return fmt.Errorf("--timeout is %v: want more than 0", o.timeout)
	}
	cfg, err := o.config(sel.Kinds(), o.timeout)
	if err != nil {
		return err
	}
	format := o.output.format
	if o.output.path != nil {
		format = "json"
	}
	if o.watch && o.output.path != nil {
		return errors.New("--watch has no jsonpath: use -o json")
	}
	opts := cliview.ResourceOptions{
		Format: cliview.Format(format), Namespaces: namespace == "", Kinds: len(cfg.Kinds) > 1,
		Single: sel.Single(), NoHeaders: o.noHeaders,
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	if o.watch {
		if !onTerminal(cmd.OutOrStdout()) && !cmd.Flags().Changed("limit") {
			o.rows.most = 0
		}
		return watch(ctx, cmd, cfg, sel, opts, &o.rows)
	}
	return list(ctx, cmd, cfg, sel, opts, o)
}

func list(ctx context.Context, cmd *cobra.Command, cfg lister.Config, sel *selection.Selection, opts cliview.ResourceOptions, o getOptions) error {
	var resources []*mirror.Resource
	var problems []error
	if o.disk.dir != "" {
		resources, problems = o.disk.resources()
	} else {
		var err error
		if resources, problems, err = lister.List(ctx, cfg); err != nil {
			return err
		}
		if n := len(problems); n > 0 {
			problems = append(problems, fmt.Errorf("resources that do not decode and are not shown: %d", n))
		}
	}
	found := sel.Find(resources)
	missing := sel.Missing(found)
	switch {
	case len(found.Keys) > 0, opts.Format == cliview.JSON && len(missing) == 0:
		if opts.Tabular() || cmd.Flags().Changed("limit") || onTerminal(cmd.OutOrStdout()) && o.output.path == nil {
			found.Groups = cutGroups(&o.rows, found.Groups)
		}
		var notes []string
		host, _, _ := net.SplitHostPort(o.access.Server) // it was correct
		if opts.Tabular() && o.disk.dir == "" && (loopback.Host(host) || cmd.Flags().Changed("admin")) {
			opts.Lost, notes = o.relay.withoutContact(ctx, resources)
		}
		if err := printResources(cmd, found.Groups, opts, o.output); err != nil {
			return err
		}
		for _, note := range notes {
			cmd.PrintErrln("* " + cliview.Clean(note))
		}
		if o.rows.left > 0 {
			unit := map[bool]string{true: "more row", false: "more resource"}[opts.Tabular()]
			whole := ", and so does -o yaml or json into a pipe or file"
			if cmd.Flags().Changed("limit") {
				whole = ""
			}
			cmd.PrintErrf("left out: %s; --limit 0 prints all%s\n", view.Count(o.rows.left, unit), whole)
		}
	case len(missing) == 0:
		fmt.Fprintln(cmd.ErrOrStderr(), sel.Nothing(found))
	}
	return errors.Join(append(missing, problems...)...)
}

// printResources prints groups in the format of the flag -o.
func printResources(cmd *cobra.Command, groups []selection.Group, opts cliview.ResourceOptions, o output) error {
	if o.path == nil {
		return cliview.Resources(cmd.OutOrStdout(), groups, opts, time.Now())
	}
	var text bytes.Buffer
	if err := cliview.Resources(&text, groups, opts, time.Now()); err != nil {
		return err
	}
	return o.json(cmd.OutOrStdout(), text.Bytes())
}

// cutGroups cuts groups, so that they together have at most l.most resources.
func cutGroups(l *rowLimit, groups []selection.Group) (out []selection.Group) {
	room := l.most
	for _, g := range groups {
		if l.most > 0 {
			n := min(len(g.Resources), room)
			l.left += len(g.Resources) - n
			g.Resources, room = g.Resources[:n], room-n
		}
		out = append(out, g)
	}
	return out
}

// watch prints all resources, at most as many as the limit, and then each change.
func watch(ctx context.Context, cmd *cobra.Command, cfg lister.Config, sel *selection.Selection, opts cliview.ResourceOptions, rows *rowLimit) error {
	cfg.ResyncInterval = watchResync
	out := cliview.NewWatcher(cmd.OutOrStdout(), opts)
	most := rows.most
	observe := func(events []lister.Event) error {
		shown := 0
		for _, e := range events {
			i := slices.IndexFunc(cfg.Kinds, func(k selection.Kind) bool { return k.Kind == cmp.Or(e.Cur, e.Old).Kind() })
			// A change of labels may move a resource into or out of the selection.
			was := e.Old != nil && sel.Matches(cfg.Kinds[i], e.Old)
			is := e.Cur != nil && sel.Matches(cfg.Kinds[i], e.Cur)
			r, event := e.Cur, cliview.Modified
			switch {
			case !was && !is:
				continue
			case !was:
				event = cliview.Added
			case !is:
				r, event = e.Old, cliview.Deleted
			}
			if most > 0 && shown >= most {
				rows.left++
				continue
			}
			shown++
			if err := out.Print(event, cfg.Kinds[i], r, time.Now()); err != nil {
				return err
			}
		}
		most = 0 // from now on there are only changes
		if shown == 0 {
			return nil
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if rows.left > 0 {
			cmd.PrintErrf("left out: %s; --limit 0 prints all; changes of all resources follow\n", view.Count(rows.left, "more resource"))
			rows.left = 0
		}
		return nil
	}
	notice := func(err error) { fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err) }
	return lister.Watch(ctx, cfg, observe, notice)
}
