package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/console"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/config"
	"meshrelay/internal/memory"
	"meshrelay/relay"
)

func newUI() *cobra.Command {
	var access access
	var port uint16
	cmd := access.overSocket(&cobra.Command{
		Use:   "ui",
		Short: "Serve the web page of a running relay, with buttons",
		Long: `Serve the web page of a running relay to a browser on this host, with buttons that release, freeze,
unfreeze and roll back. The command prints a link that works once, and serves the page on 127.0.0.1
until it is interrupted. It acts through the relay's Unix socket, as other commands do: who may open
the socket may press the buttons.

The same page without buttons is at /ui/ of the admin address.`,
		Example: `  relay ui
  relay ui --port 8080

  # From another machine: forward the port, then open the link there
  ssh -L 8080:127.0.0.1:8080 HOST relay ui --port 8080`,
	}, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		if _, err := c.Version(cmd.Context()); err != nil { // fail before the link is printed
			return err
		}
		return serveUI(cmd, c, port)
	})
	cmd.Flags().Uint16Var(&port, "port", 0, "`port` of 127.0.0.1 (default: any free port)")
	return cmd
}

// serveUI serves the page until the command is interrupted.
func serveUI(cmd *cobra.Command, c admin.Client, port uint16) error {
	lis, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	one, err := console.New(c, lis.Addr().String(), c.Address, func(ctx context.Context, file []byte) (string, error) {
		cfg, err := config.Parse("config", file, relay.Sources()...)
		if err != nil {
			return "", err
		}
		cfg.FitMemory(memory.SetLimit())
		changes, err := plan(ctx, c, cfg, nil)
		if err != nil {
			return "", err
		}
		rows := rowLimit{most: usualRows}
		text := cliview.Plan(changes, view.SomeDiffs, cut(&rows, changes.Changes))
		if rows.left > 0 {
			text += fmt.Sprintf("left out: %s; \"relay plan --limit 0\" prints all\n", view.Count(rows.left, "more row"))
		}
		return text, nil
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: one, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	// The context of the command ends after --timeout.
	ctx, end := interruptible(cmd.Root().Context())
	defer end()
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	fmt.Fprintf(cmd.OutOrStdout(), "Open this link, which works once (Ctrl-C ends it):\n\n  %s\n\n", one.Link())
	if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
