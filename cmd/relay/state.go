package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/internal/printer"
	"meshrelay/internal/statusview"
	"meshrelay/state"
	"meshrelay/state/local"
)

// shownRevisions bounds the revisions that "relay state inspect" shows of an upstream.
const shownRevisions = 10

func newState() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Look at, export or replace what a relay keeps on disk",
		Long: `Work with the state that a relay keeps on disk (state.dir): the last known good content of
each upstream, and the changes that led to it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStateInspect(), newStateExport(), newStateImport())
	return cmd
}

// stateAccess says which state is meant.
type stateAccess struct {
	dir, file, socket string
	timeout           time.Duration
}

func (a *stateAccess) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.dir, "dir", "", "`directory` of the state (default: state.dir of the config file)")
	cmd.Flags().StringVarP(&a.file, "config", "c", "", "config `file`")
}

// readFlags are for what a running relay can be asked.
func (a *stateAccess) readFlags(cmd *cobra.Command) {
	a.flags(cmd)
	cmd.Flags().StringVar(&a.socket, "socket", "", "`path` of the Unix socket of a relay that runs with the state (default: that of the config file, or admin.sock in the directory)")
	cmd.Flags().DurationVar(&a.timeout, "timeout", 30*time.Second, "how long to wait for a relay that runs with the state")
}

// open returns the directory, and the config, which is nil when none is given.
func (a *stateAccess) open() (dir string, cfg *config.Config, err error) {
	if a.file != "" {
		if cfg, err = loadConfig(a.file); err != nil {
			return "", nil, err
		}
	}
	switch {
	case a.dir != "":
		if info, err := os.Stat(a.dir); errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("there is no directory %s; make it first, or name the state.dir of the relay", a.dir)
		} else if err == nil && !info.IsDir() {
			return "", nil, fmt.Errorf("%s is not a directory; name the state.dir of the relay", a.dir)
		}
		return a.dir, cfg, nil
	case cfg == nil:
		return "", nil, errors.New("say which state, with --dir DIR or -c FILE")
	case cfg.State.Dir == "":
		return "", nil, fmt.Errorf("%s: state.dir is not set, so that no state is kept", a.file)
	}
	return cfg.State.Dir, cfg, nil
}

// read reads the state: the file, or, when a relay runs with it, a copy which that one gives.
func (a *stateAccess) read(ctx context.Context) (file *state.File, cfg *config.Config, err error) {
	dir, cfg, err := a.open()
	if err != nil {
		return nil, nil, err
	}
	path := local.Path(dir)
	file, err = local.ReadFile(path)
	if !errors.Is(err, state.ErrInUse) {
		return file, cfg, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	socket := a.socket
	switch {
	case socket != "":
	case cfg != nil:
		socket = cfg.AdminSocket()
	default:
		socket = filepath.Join(dir, "admin.sock")
	}
	file, err = readCopy(ctx, admin.Client{Socket: socket})
	if err != nil {
		return nil, nil, fmt.Errorf("%s is in use by a relay, and that one gives no copy: %w", path, err)
	}
	file.Path = path
	return file, cfg, nil
}

// readCopy reads a copy of the state that a running relay gives.
func readCopy(ctx context.Context, c admin.Client) (file *state.File, err error) {
	f, err := os.CreateTemp("", "relay-state-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is in a directory for such files
	if err = errors.Join(c.Backup(ctx, f), f.Close()); err != nil {
		return nil, err
	}
	return local.ReadFile(f.Name())
}

// damage returns what is wrong with a file as an error, nil when nothing is.
func damage(file *state.File) error {
	if file.Damage == "" {
		return nil
	}
	return fmt.Errorf("%s: %s: only what is whole in it is taken", file.Path, file.Damage)
}

func newStateInspect() *cobra.Command {
	var access stateAccess
	var upstream, output string
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show what is kept of each upstream",
		Long: `Show what is kept of each upstream; of one of them also its kinds and newest changes. When
a relay runs with the state it is asked for a copy over its Unix socket.`,
		Example: `  relay state inspect -c relay.yaml
  relay state inspect --dir /var/lib/relay --upstream east
  relay state inspect --dir /var/lib/relay -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := tableOrJSON(output); err != nil {
				return err
			}
			file, _, err := access.read(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(inspect(cmd.OutOrStdout(), file, upstream, output, time.Now()), damage(file))
		},
	}
	access.readFlags(cmd)
	cmd.Flags().StringVar(&upstream, "upstream", "", "show more of this `upstream`")
	outputFlag(cmd, &output)
	return cmd
}

// inspection is what "relay state inspect -o json" prints.
type inspection struct {
	Path      string              `json:"path"`
	Format    int                 `json:"format"`
	Size      int64               `json:"size"` // bytes
	Damage    string              `json:"damage,omitempty"`
	Upstreams []upstreamInspected `json:"upstreams"`
}

type upstreamInspected struct {
	Name        string           `json:"name"`
	Resources   int              `json:"resources"`
	Kinds       map[string]int   `json:"kinds"`
	Bytes       int64            `json:"bytes"`
	Synced      bool             `json:"synced"`
	LastContact time.Time        `json:"lastContact,omitzero"`
	Frozen      *state.Frozen    `json:"frozen,omitempty"`
	Revisions   []state.Revision `json:"revisions"`
}

func inspect(w io.Writer, file *state.File, upstream, output string, now time.Time) error {
	out := inspection{Path: file.Path, Format: file.Format, Size: file.Size, Damage: file.Damage, Upstreams: []upstreamInspected{}}
	for _, s := range file.Sources {
		if upstream != "" && s.Name != upstream {
			continue
		}
		u := upstreamInspected{
			Name: s.Name, Resources: len(s.Records), Kinds: map[string]int{}, Bytes: s.Bytes, Synced: s.Meta.Synced,
			LastContact: s.Meta.LastContact, Frozen: s.Meta.Frozen, Revisions: s.Revisions,
		}
		for i := range s.Records {
			u.Kinds[s.Records[i].Resource.Kind().String()]++
		}
		out.Upstreams = append(out.Upstreams, u)
	}
	if upstream != "" && len(out.Upstreams) == 0 {
		return noUpstream(file, upstream)
	}
	if output == "json" {
		return writeJSON(w, out)
	}
	rows := [][]string{{"UPSTREAM", "RESOURCES", "BYTES", "SYNCED", "LAST CONTACT", "FROZEN", "REVISIONS"}}
	for _, u := range out.Upstreams {
		rows = append(rows, []string{
			u.Name, strconv.Itoa(u.Resources), strconv.FormatInt(u.Bytes, 10), yesNo(u.Synced),
			printer.Ago(u.LastContact, now), frozenText(u.Frozen, now), strconv.Itoa(len(u.Revisions)),
		})
	}
	if err := printer.Rows(w, rows); err != nil || upstream == "" {
		return err
	}
	return inspectOne(w, &out.Upstreams[0], now)
}

// noUpstream is the error of asking for what a state does not have.
func noUpstream(file *state.File, upstream string) error {
	names := make([]string, 0, len(file.Sources))
	for _, s := range file.Sources {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has nothing of upstream %q, nor of any other", file.Path, upstream)
	}
	return fmt.Errorf("%s has nothing of upstream %q: it has %s", file.Path, upstream, strings.Join(names, ", "))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func frozenText(f *state.Frozen, now time.Time) string {
	switch {
	case f == nil:
		return "no"
	case f.Revision != 0:
		return fmt.Sprintf("%s, at revision %d", printer.Ago(f.Since, now), f.Revision)
	}
	return printer.Ago(f.Since, now)
}

func inspectOne(w io.Writer, u *upstreamInspected, now time.Time) error {
	rows := [][]string{{"KIND", "RESOURCES"}}
	for _, kind := range sortedKinds(u.Kinds) {
		rows = append(rows, []string{kind, strconv.Itoa(u.Kinds[kind])})
	}
	fmt.Fprintln(w)
	if err := printer.Rows(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return statusview.History(w, u.Revisions[:min(len(u.Revisions), shownRevisions)], now)
}

func sortedKinds(counts map[string]int) []string {
	out := make([]string, 0, len(counts))
	for kind := range counts {
		out = append(out, kind)
	}
	slices.Sort(out)
	return out
}
