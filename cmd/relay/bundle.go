package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
)

// bundlePatience is how long a bundle may take in addition to its CPU profile.
const bundlePatience = time.Minute

func newSupportBundle(access *access) *cobra.Command {
	var path string
	var o admin.BundleOptions
	cmd := access.overSocket(&cobra.Command{
		Use:   "support-bundle [-o FILE]",
		Short: "Write an archive for a bug report, without secrets",
		Long: `Write an archive that describes a running relay: version, effective config, readiness, upstreams,
clients, conflicts, held deletions, the newest events and revisions, metrics twice, profiles, and
the last 5,000 lines of the log, including level debug. MANIFEST.txt describes each file, and
tells how much of a file over 8 MiB is left out. All files but the profiles are plain text: read them
before you send them.

The archive contains no tokens, keys, passwords or paths of URLs. It contains the names of upstreams,
clients and resources; --with-resources adds the resources. Uncompressed, it is 64 MiB at most.`,
		Example: `  relay support-bundle
  relay support-bundle -o bundle.tar.gz --seconds 30
  kubectl exec meshrelay-0 -- relay support-bundle -o - >bundle.tar.gz`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		if path == "" {
			path = "relay-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		ctx, stop := interruptible(cmd.Context()) // an interrupted command deletes its file
		defer stop()
		if path == "-" {
			return c.SupportBundle(ctx, os.Stdout, o)
		}
		if onTerminal(cmd.ErrOrStderr()) && o.Seconds > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "profiling the CPU for %s...\n", time.Duration(o.Seconds)*time.Second)
		}
		size, err := writeNew(path, func(w io.Writer) error { return c.SupportBundle(ctx, w, o) })
		if ctx.Err() != nil && cmd.Context().Err() == nil {
			return errors.New("interrupted")
		}
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s. Read it before you send it: tar -xzf %s\n", path, view.Bytes(size), path)
		}
		return err
	})
	cmd.Flags().StringVarP(&path, "output", "o", "", "`file` to write, - for standard output (default: relay-support-TIME.tar.gz)")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 10, "how many `seconds` to profile the CPU, 0 to 60")
	cmd.Flags().BoolVar(&o.Resources, "with-resources", false, "add the merged resources")
	limited := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Seconds < 0 || o.Seconds > 60 {
			return fmt.Errorf("--seconds is %d: want 0 to 60", o.Seconds)
		}
		if !cmd.Flags().Changed("timeout") {
			access.timeout = time.Duration(o.Seconds)*time.Second + bundlePatience
		}
		return limited(cmd, args)
	}
	return cmd
}

// writeNew writes a new file that only its owner can read, and returns its size. After an error it deletes
// the file.
func writeNew(path string, write func(io.Writer) error) (size int64, err error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return 0, fmt.Errorf("%s exists: name another file with --output", path)
	}
	if err != nil {
		return 0, err
	}
	err = write(f)
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err != nil {
		return 0, errors.Join(err, os.Remove(path))
	}
	return info.Size(), nil
}
