package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/top"
)

const (
	topEvery  = time.Second
	topEvents = "8"
)

func newTop() *cobra.Command {
	var access access
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running relay on one screen",
		Long: `Show on one screen whether a running relay is ready, its upstreams, its clients and the newest
events, every second, until the key q. Clients with problems come first. The keys s, n, b and r sort
them by state, name, bytes and rejections, and enter shows one.

With --once, print one screen and end. This needs no terminal.`,
		Example: `  relay top
  relay top --once
  kubectl exec -it meshrelay-0 -- relay top`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := admin.Client{Address: access.address}
			fetch := func(ctx context.Context) top.Snapshot {
				ctx, cancel := context.WithTimeout(ctx, access.timeout)
				defer cancel()
				return snapshotOf(ctx, client)
			}
			if once {
				s := fetch(cmd.Context())
				if s.Err != nil {
					return s.Err
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), top.Once(s, 0))
				return err
			}
			screen, ok := cmd.OutOrStdout().(screen)
			if !ok || !screen.terminal || !isTerminal(os.Stdin) {
				return errors.New("this is not a terminal: use --once, or relay status --watch")
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return top.Run(ctx, top.Options{In: os.Stdin, Out: os.Stdout, Every: topEvery, Colors: screen.colored, Fetch: fetch})
		},
	}
	access.flags(cmd, 10*time.Second)
	cmd.Flags().BoolVar(&once, "once", false, "print one screen and end")
	return cmd
}

// snapshotOf reads from a relay the data for one screen.
func snapshotOf(ctx context.Context, c admin.Client) (s top.Snapshot) {
	s.At = time.Now()
	var all overview
	s.Err = hinted(all.ask(ctx, c))
	s.Version, s.Ready, s.Upstreams, s.Clients = all.Version, all.Readiness, all.Upstreams, all.Clients
	if s.Err != nil {
		return s
	}
	page, err := c.Events(ctx, url.Values{"limit": {topEvents}})
	s.Events, s.Err = page.Events, err
	return s
}
