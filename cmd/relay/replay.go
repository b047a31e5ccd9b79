package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/internal/loopback"
	"meshrelay/internal/recording"
	"meshrelay/internal/replay"
)

func newReplay() *cobra.Command {
	var address string
	var speed float64
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Serve a recording as the upstream that was recorded would",
		Long: `Serve a recording of "relay record" over xDS, plaintext, to any relay or istiod: SotW and delta. Time
begins with the first request of a client. Each type gets its first answer, and then its changes, when
they came to the recorder; types that were not recorded are answered with nothing. The last state stays
served until Ctrl-C. Every client sees every change: the slowest sets the pace.

Streams that ended are not ended again, and what a client asks for by name is answered in full.`,
		Example: `  relay replay east.rec
  relay replay east.rec --listen 127.0.0.1:15110 --speed 10
  relay get se,vs -A --server 127.0.0.1:15110     # what the upstream served`,
		Args: wanted(0, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(speed >= 0.001 && speed <= 1e6) { // NaN is out of the range, too
				return fmt.Errorf("--speed is %v: want 0.001 to 1000000", speed)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if err := serveRecording(ctx, cmd, filepath.Clean(args[0]), address, speed); err != nil {
				return recordingError(args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:15110", "`address` to serve on, host:port, without TLS")
	cmd.Flags().Float64Var(&speed, "speed", 1, "how many `times` as fast as it was")
	return cmd
}

// recordingError tells where a recording is damaged.
func recordingError(path string, err error) error {
	if bad := (*recording.BadError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("%s %w", path, bad)
	}
	return err
}

func serveRecording(ctx context.Context, cmd *cobra.Command, path, address string, speed float64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := recording.NewReader(f)
	if err != nil {
		return err
	}
	summary, err := replay.Inspect(r)
	if bad := (*recording.BadError)(nil); err != nil && !errors.As(err, &bad) {
		return fmt.Errorf("%s: %w", path, err)
	} else if err != nil {
		return err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	if r, err = recording.NewReader(f); err != nil {
		return err
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	printSummary(cmd, path, summary)
	if !loopback.Is(lis.Addr()) {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: whoever reaches this address can read all resources of the recording: there is no TLS")
	}
	fmt.Fprintf(out, "serving on %s, %s; time begins with the first client\n", lis.Addr(), speedWords(speed))
	var mu sync.Mutex
	return replay.New(summary, speed, func(text string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, text)
	}).Serve(ctx, lis, r)
}

func printSummary(cmd *cobra.Command, path string, s replay.Summary) {
	out := cmd.OutOrStdout()
	protocol := "sotw"
	if s.Delta {
		protocol = "delta"
	}
	redacted := ""
	if s.Header.Redacted {
		redacted = ", redacted"
	}
	fmt.Fprintf(out, "%s: upstream %s at %s (%s), recorded %s%s\n", path, s.Header.Upstream, s.Address, protocol, s.Header.Started.UTC().Format(time.RFC3339), redacted)
	fmt.Fprintf(out, "%s on %s over %s; %s at the end\n", view.Count(s.Responses, "response"), view.Count(s.Streams, "stream"),
		(s.Last - s.First).Round(time.Millisecond), view.Count(s.Resources(), "resource"))
	if s.Torn != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v; what is before it is served\n", s.Torn)
	}
}

func speedWords(speed float64) string {
	if speed == 1 {
		return "as fast as it was"
	}
	return fmt.Sprintf("%g times as fast as it was", speed)
}
