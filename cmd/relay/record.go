package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/recording"
	"meshrelay/relay"
)

// errRecorded ends a recording whose time is over.
var errRecorded = errors.New("the time is over")

// recordOptions are the flags of "relay record".
type recordOptions struct {
	file           configFile
	upstream, path string
	lasts          time.Duration
	redact         bool
	mebibytes      int64
}

func newRecord() *cobra.Command {
	var o recordOptions
	cmd := &cobra.Command{
		Use:   "record [-c FILE] --upstream NAME [-o FILE]",
		Short: "Record what an upstream sends, for a bug report or a test",
		Long: `Connect to an upstream with the settings of a config file, as a relay does, and write what it
sends into a file, with times. "relay replay" serves the file as the upstream would. A relay that runs
is not touched: this is a client of its own. It records until Ctrl-C, the end of --for, or until the
file is full.

The file has all resources as they are sent, secrets in them too. With --redact, values whose name is
that of a secret are hidden, as are tokens, keys, passwords and the paths of URLs in texts; bytes and
messages of unknown types are emptied. A secret that looks like any other word stays: look at it
before you send it, with "relay replay" and "relay get -o yaml".`,
		Example: `  relay record -c relay.yaml --upstream east -o east.rec
  relay record --upstream east -o east.rec --for 60s --redact`,
		RunE: func(cmd *cobra.Command, _ []string) error { return record(cmd, o) },
	}
	o.file.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.upstream, "upstream", "", "record this `upstream` (required)")
	f.StringVarP(&o.path, "output", "o", "", "`file` to write, which must not exist (default: UPSTREAM-TIME.rec)")
	f.DurationVar(&o.lasts, "for", 0, "how long to record (default: until Ctrl-C)")
	f.BoolVar(&o.redact, "redact", false, "leave out what could be a secret")
	f.Int64Var(&o.mebibytes, "max-size", 1024, "end when the file has as many `MiB`, 1 to 65536")
	return cmd
}

func record(cmd *cobra.Command, o recordOptions) error {
	switch {
	case o.upstream == "":
		return errors.New("--upstream is missing: name the upstream to record")
	case o.lasts < 0:
		return fmt.Errorf("--for is %v: want more than 0", o.lasts)
	case o.mebibytes < 1 || o.mebibytes > 65536:
		return fmt.Errorf("--max-size is %d: want 1 to 65536 MiB", o.mebibytes)
	}
	path, err := o.file.find()
	if err != nil {
		return err
	}
	cfg, err := config.Check(path, relay.Sources()...)
	if err != nil {
		return err
	}
	header, err := relay.RecordingHeader(cfg, o.upstream)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	header.Started, header.Relay, header.Redacted = time.Now().UTC(), buildinfo.Read(version).Version, o.redact
	if o.path == "" {
		o.path = o.upstream + "-" + header.Started.Format("20060102-150405") + ".rec"
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if o.lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.lasts, errRecorded)
		defer cancel()
	}
	size, r, err := recordTo(ctx, cmd.ErrOrStderr(), cfg, header, o)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s: %s of %s in %s, %s\n", o.path, view.Count(r.responses, "response"), view.Count(len(r.types), "type"),
		r.lasted.Round(time.Millisecond), view.Bytes(size))
	if r.leftOut > 0 {
		fmt.Fprintf(out, "Left out, because they do not decode and so can not be redacted: %s\n", view.Count(r.leftOut, "message"))
	}
	if !o.redact {
		fmt.Fprintln(out, "It has all resources as they are, secrets in them too: --redact leaves out what could be one.")
	}
	fmt.Fprintf(out, "To serve it: relay replay %s\n", o.path)
	return nil
}

// recordTo writes the recording. A file without a response is removed.
func recordTo(ctx context.Context, notices io.Writer, cfg *config.Config, header recording.Header, o recordOptions) (size int64, r *recorder, err error) {
	f, err := os.OpenFile(filepath.Clean(o.path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return 0, nil, fmt.Errorf("%s exists: name another file with -o", o.path)
	}
	if err != nil {
		return 0, nil, err
	}
	r = &recorder{start: time.Now(), notices: notices, redact: o.redact, types: map[string]struct{}{}}
	if r.out, err = recording.NewWriter(f, header, o.mebibytes<<20); err == nil {
		err = relay.Record(ctx, cfg, o.upstream, r.take)
		r.note("recording ends: %s", r.ending(ctx, err, o))
		if errors.Is(err, recording.ErrFull) {
			err = nil
		}
		if err == nil {
			r.lasted = time.Since(r.start)
			err = r.out.Add(recording.Record{Kind: recording.End, At: r.lasted, Data: []byte("ended")})
		}
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if r.responses == 0 {
		if r.reason == "" {
			r.reason = "the server has not answered"
		}
		return 0, r, errors.Join(err, fmt.Errorf("nothing came from upstream %s, so there is no recording: %s", o.upstream, r.reason), os.Remove(o.path))
	}
	if err != nil {
		return 0, r, fmt.Errorf("%s has what came until now, and can be replayed: %w", o.path, err)
	}
	return r.out.Size(), r, nil
}

// recorder writes records and tells how it goes. Its methods are called one at a time.
type recorder struct {
	out     *recording.Writer
	start   time.Time
	notices io.Writer
	redact  bool

	address, reason    string // of the present stream, and why the last one ended
	responses, leftOut int
	types              map[string]struct{}
	lasted             time.Duration
}

// maxTypes bounds the types that are counted: a server could name types without end.
const maxTypes = 10_000

// take stamps a record and writes it.
func (r *recorder) take(rec recording.Record) error {
	rec.At = time.Since(r.start)
	typeURL := ""
	switch rec.Kind {
	case recording.Opened:
		r.address = string(rec.Data)
	case recording.Closed:
		if reason := string(rec.Data); reason != r.reason {
			r.reason = reason
			r.note("no stream: %s", reason)
		}
	case recording.Response:
		typeURL = recording.TypeURL(rec)
	}
	if r.redact {
		redacted, err := recording.Redact(rec)
		if err != nil {
			r.leftOut++ // it is told at the end
			return nil  //nolint:nilerr // what can not be redacted is not written
		}
		rec = redacted
	}
	if err := r.out.Add(rec); err != nil {
		return err
	}
	if rec.Kind != recording.Response {
		return nil
	}
	if r.address != "" {
		protocol := adsclient.SotW
		if rec.Delta {
			protocol = adsclient.Delta
		}
		r.note("recording from %s, %s; Ctrl-C ends it", r.address, protocol)
		r.address, r.reason = "", ""
	}
	if r.responses++; len(r.types) < maxTypes {
		r.types[typeURL] = struct{}{}
	}
	return nil
}

func (r *recorder) note(format string, args ...any) { fmt.Fprintf(r.notices, format+"\n", args...) }

// ending returns why a recording ends.
func (r *recorder) ending(ctx context.Context, err error, o recordOptions) string {
	switch {
	case errors.Is(err, recording.ErrFull):
		return fmt.Sprintf("the next response has no room in %d MiB, see --max-size", o.mebibytes)
	case err != nil:
		return err.Error()
	case errors.Is(context.Cause(ctx), errRecorded):
		return fmt.Sprintf("%v are over", o.lasts)
	}
	return "interrupted"
}
