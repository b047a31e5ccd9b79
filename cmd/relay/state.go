package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/cmd/relay/internal/stateio"
	"meshrelay/config"
	"meshrelay/state"
	"meshrelay/state/local"
)

func newState() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Inspect, export or replace the state of a relay on disk",
		Long: `Work with the state that a relay keeps on disk (state.dir): the last known good resources of
each upstream, and their history.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStateInspect(), newStateExport(), newStateImport())
	return cmd
}

// stateAccess has the flags for finding the state.
type stateAccess struct {
	dir, file, socket string
	timeout           time.Duration
}

func (a *stateAccess) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.dir, "dir", "", "`directory` of the state (default: state.dir of the config file)")
	cmd.Flags().StringVarP(&a.file, "config", "c", "", "config `file`")
}

// readFlags adds the flags of commands that also read the state of a running relay.
func (a *stateAccess) readFlags(cmd *cobra.Command) {
	a.flags(cmd)
	cmd.Flags().StringVar(&a.socket, "socket", "", "`path` of the Unix socket of a relay that uses the state (default: that of the config file, or admin.sock in the directory)")
	cmd.Flags().DurationVar(&a.timeout, "timeout", 30*time.Second, "how long to wait for a relay that uses the state")
}

// open returns the directory of the state, and the config, which is nil without -c.
func (a *stateAccess) open() (dir string, cfg *config.Config, err error) {
	if a.file != "" {
		if cfg, err = loadConfig(a.file); err != nil {
			return "", nil, err
		}
	}
	switch {
	case a.dir != "":
		if info, err := os.Stat(a.dir); errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("there is no directory %s; create it, or use the state.dir of the relay", a.dir)
		} else if err == nil && !info.IsDir() {
			return "", nil, fmt.Errorf("%s is not a directory; use the state.dir of the relay", a.dir)
		}
		return a.dir, cfg, nil
	case cfg == nil:
		return "", nil, errors.New("missing state: use --dir DIR or -c FILE")
	case cfg.State.Dir == "":
		return "", nil, fmt.Errorf("%s: state.dir is not set, so the relay keeps no state", a.file)
	}
	return cfg.State.Dir, cfg, nil
}

// read reads the state file. If a relay uses the state, it reads a copy from that relay.
func (a *stateAccess) read(cmd *cobra.Command) (file *state.File, cfg *config.Config, err error) {
	dir, cfg, err := a.open()
	if err != nil {
		return nil, nil, err
	}
	path := local.Path(dir)
	var inUse atomic.Bool
	whileWaiting(cmd, func() string {
		if inUse.Load() {
			return fmt.Sprintf("reading a copy of %s from the relay that uses it", path)
		}
		return "reading " + path
	}, func() {
		if file, err = local.ReadFile(path); errors.Is(err, state.ErrInUse) {
			inUse.Store(true)
			file, err = a.readFromRelay(cmd.Context(), path, cfg)
		}
	})
	return file, cfg, err
}

// readFromRelay reads a copy of the state at path from the relay that uses it.
func (a *stateAccess) readFromRelay(ctx context.Context, path string, cfg *config.Config) (*state.File, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	socket := a.socket
	switch {
	case socket != "":
	case cfg != nil:
		socket = cfg.AdminSocket()
	default:
		socket = filepath.Join(filepath.Dir(path), "admin.sock")
	}
	file, err := readCopy(ctx, admin.Client{Socket: socket})
	if err != nil {
		return nil, fmt.Errorf("%s is in use by a relay, and reading a copy from it failed: %w", path, err)
	}
	file.Path = path
	return file, nil
}

// readCopy reads a copy of the state from a running relay.
func readCopy(ctx context.Context, c admin.Client) (*state.File, error) {
	r, w := io.Pipe()
	defer r.Close() // ends c.Backup
	go func() { w.CloseWithError(c.Backup(ctx, w)) }()
	return local.ReadBackup(r)
}

func newStateInspect() *cobra.Command {
	var access stateAccess
	var out output
	var upstream string
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "List the upstreams in a state",
		Long: `List the upstreams in a state. With --upstream, list also the kinds and newest revisions of one. If
a relay uses the state, the command reads a copy over the relay's Unix socket.`,
		Example: `  relay state inspect -c relay.yaml
  relay state inspect --dir /var/lib/relay --upstream east
  relay state inspect --dir /var/lib/relay -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, _, err := access.read(cmd)
			if err != nil {
				return err
			}
			all, err := stateio.Inspect(file, upstream)
			if err == nil {
				err = out.print(cmd, nil, all, cliview.State(all, upstream != "", time.Now()))
			}
			return errors.Join(err, stateio.Damage(file))
		},
	}
	access.readFlags(cmd)
	cmd.Flags().StringVar(&upstream, "upstream", "", "show more of this `upstream`")
	out.flag(cmd, "table", "json")
	return cmd
}

func newStateExport() *cobra.Command {
	var access stateAccess
	var upstream, dir string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a state as YAML that a file upstream reads",
		Long: `Write a state as Kubernetes YAML, after import and rewrite rules. With -o, write a directory for
each upstream, and a relay.yaml that serves the same merged resources from them. The config file, if
given, decides the order of the upstreams, the merge rules, views and listeners; without one the
order is alphabetical. Without -o, write one upstream to standard output.

The command reads the directory back and compares. It names resources that would change, such
as those of kinds that are not well known, and then exits with 1. If a relay uses the state, the
command reads a copy over the relay's Unix socket.`,
		Example: `  relay state export -c relay.yaml -o export
  relay serve -c export/relay.yaml
  relay state export --dir /var/lib/relay --upstream east >east.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, cfg, err := access.read(cmd)
			if err != nil {
				return err
			}
			e := &stateio.Export{File: file, Config: cfg, ConfigPath: access.file, Upstream: upstream}
			switch {
			case dir != "":
				var upstreams, resources int
				whileWaiting(cmd, func() string { return "writing " + dir + ", and reading it back" }, func() { upstreams, resources, err = e.Directory(dir) })
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s\n", dir, view.Count(upstreams, "upstream"), view.Count(resources, "resource"))
				}
			case upstream != "" && onTerminal(cmd): // the output itself shows the progress
				err = e.Stream(cmd.OutOrStdout())
			case upstream != "":
				whileWaiting(cmd, func() string { return "writing upstream " + upstream }, func() { err = e.Stream(cmd.OutOrStdout()) })
			default:
				err = errors.New("missing destination: use -o DIR, or --upstream NAME for standard output")
			}
			if err != nil {
				return errors.Join(err, stateio.Damage(file))
			}
			return errors.Join(e.Problems()...)
		},
	}
	access.readFlags(cmd)
	cmd.Flags().StringVar(&upstream, "upstream", "", "export this `upstream` only")
	cmd.Flags().StringVarP(&dir, "output", "o", "", "`directory` to write to, empty or new")
	return cmd
}

func newStateImport() *cobra.Command {
	var access stateAccess
	var i stateio.Import
	cmd := &cobra.Command{
		Use:   "import --upstream NAME -f PATH",
		Short: "Replace the state of an upstream by YAML",
		Long: `Replace the last known good resources of an upstream by those in a file or directory of Kubernetes
YAML, which is read as by a file upstream. The next start serves them until the upstream has synced.
They become a revision of the history. No relay may use the state.

The YAML has the resources as the upstream would send them: the next start applies import and
rewrite rules. With --held, it was written by "relay state export", and the rules were applied
already.`,
		Example: `  relay state import -c relay.yaml --upstream east -f backup/
  relay state import --dir /var/lib/relay --upstream east -f export/01-east --held`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			switch {
			case i.Upstream == "":
				return errors.New("missing upstream: use --upstream NAME")
			case i.Path == "":
				return errors.New("missing YAML: use -f PATH")
			}
			i.ConfigPath = access.file
			if i.Dir, i.Config, err = access.open(); err != nil {
				return err
			}
			var written, replaced int
			whileWaiting(cmd, func() string {
				return fmt.Sprintf("reading %s, and replacing upstream %s in %s", i.Path, i.Upstream, i.Dir)
			}, func() { written, replaced, err = i.Run() })
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "upstream %s: %s imported, %d replaced\n", i.Upstream, view.Count(written, "resource"), replaced)
			return err
		},
	}
	access.flags(cmd)
	cmd.Flags().StringVar(&i.Upstream, "upstream", "", "the `upstream` (required)")
	cmd.Flags().StringVarP(&i.Path, "filename", "f", "", "`path` of a file or directory of YAML (required)")
	cmd.Flags().BoolVar(&i.Held, "held", false, "the YAML is an export: do not apply rules again")
	return cmd
}
