package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/internal/printer"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
)

func newStateImport() *cobra.Command {
	var access stateAccess
	var upstream, path string
	var held bool
	cmd := &cobra.Command{
		Use:   "import --upstream NAME -f PATH",
		Short: "Make YAML what is kept of an upstream",
		Long: `Make a file or directory of Kubernetes YAML, read as a file upstream would, the last known
good content of an upstream: the next start serves it until the upstream has synced. It
replaces what is there, and is a revision of the history. No relay may run with the state.

The YAML is what the upstream itself would give: the relay's rules for it (import, rewrite)
are applied to it at the next start. With --held it is what "relay state export" has
written, to which they were applied before.`,
		Example: `  relay state import -c relay.yaml --upstream east -f backup/
  relay state import --dir /var/lib/relay --upstream east -f export/01-east --held`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return importState(cmd, &access, upstream, path, held)
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVar(&upstream, "upstream", "", "the `upstream` (required)")
	cmd.Flags().StringVarP(&path, "filename", "f", "", "file or directory of YAML, its `path` (required)")
	cmd.Flags().BoolVar(&held, "held", false, "the YAML is as the relay holds it")
	return cmd
}

func importState(cmd *cobra.Command, access *stateAccess, upstream, path string, held bool) error {
	switch {
	case upstream == "":
		return errors.New("say of which upstream, with --upstream NAME")
	case path == "":
		return errors.New("say what to import, with -f PATH")
	}
	dir, cfg, err := access.open()
	if err != nil {
		return err
	}
	history := state.History{Revisions: keepAllRevisions}
	if cfg != nil {
		if !slices.ContainsFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == upstream }) {
			return fmt.Errorf("%s has no upstream %q", access.file, upstream)
		}
		history = historyOf(cfg.State)
	}
	before, known, err := keptBefore(dir, upstream)
	if err != nil {
		return err
	}
	if held && !known {
		return fmt.Errorf("%s has nothing of upstream %q, so that it is not known under which rules it is held: import without --held", local.Path(dir), upstream)
	}
	records, err := readRecords(path, upstream, stampOf(cfg, upstream, before))
	if err != nil {
		return err
	}
	s := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), By: "import", Frozen: before.Meta.Frozen}, Records: records}
	if held {
		s.Meta.Fingerprint = before.Meta.Fingerprint
	}
	if err := local.Replace(dir, history, upstream, s, nil); err != nil {
		if errors.Is(err, state.ErrInUse) {
			return fmt.Errorf("%w: end the relay first", err)
		}
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "upstream %s: %s imported, %d %s kept before\n", upstream, printer.Count(len(records), "resource"),
		len(before.Records), printer.Agree(len(before.Records), "was", "were"))
	return err
}

// keepAllRevisions prunes no history: the relay itself does.
const keepAllRevisions = 1 << 20

// keptBefore returns what a state has of an upstream, and whether it has anything.
func keptBefore(dir, upstream string) (state.Contents, bool, error) {
	file, err := local.ReadFile(local.Path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return state.Contents{}, false, nil
	case errors.Is(err, state.ErrInUse):
		return state.Contents{}, false, fmt.Errorf("%w: end the relay first", err)
	case err != nil:
		return state.Contents{}, false, err
	case file.Damage != "":
		return state.Contents{}, false, damage(file)
	}
	for _, s := range file.Sources {
		if s.Name == upstream {
			return s, true, nil
		}
	}
	return state.Contents{}, false, nil
}

// stampOf returns the stamp that the relay puts on what an upstream gives: by the config, or,
// without one, as what was kept before has it.
func stampOf(cfg *config.Config, upstream string, before state.Contents) *mirror.Stamp {
	of := mirror.StampOf{Source: upstream, Believe: true, Begin: true}
	if cfg == nil {
		of.Cluster, of.Relay = origin(before.Records)
		if of.Cluster == "" {
			of.Cluster = upstream
		}
		return mirror.NewStamp(of)
	}
	for _, u := range cfg.Upstreams {
		if u.Name == upstream {
			of.Cluster = u.ClusterID
		}
	}
	if cfg.Provenance.Annotations {
		of.Relay = cfg.Provenance.Relay
	}
	return mirror.NewStamp(of)
}

// readRecords reads YAML as a file upstream does, for the state of an upstream.
func readRecords(path, upstream string, stamp *mirror.Stamp) ([]state.Record, error) {
	found, refused, err := upstreams.ReadFiles(path, upstream)
	if err != nil {
		return nil, err
	}
	if len(refused) > 0 {
		var all []error
		for _, p := range refused {
			all = append(all, fmt.Errorf("%s: %s", p.Resource, p.Reason))
		}
		return nil, errors.Join(append(all, errors.New("nothing was imported"))...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no resources: nothing was imported", path)
	}
	records := make([]state.Record, 0, len(found))
	for _, r := range found {
		r = r.Stamped(stamp)
		records = append(records, state.Record{Resource: r, TypeURL: r.Kind().PreferredTypeURL(), At: time.Now().Truncate(time.Second)})
	}
	return records, nil
}
