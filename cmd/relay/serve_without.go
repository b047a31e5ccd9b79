package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/printer"
)

func newServeWithout() *cobra.Command {
	return control(&cobra.Command{
		Use:   "serve-without UPSTREAM",
		Short: "Have clients of a starting relay wait for an upstream no longer",
		Long: `Have clients of a running relay wait for an upstream no longer. A relay that starts and
knows nothing of an upstream holds its clients, so that they do not delete what they have
of it: "relay status" says for which upstreams they wait, and why. Without the upstream,
they do delete that.

It is remembered on disk until the upstream has synced, where the relay keeps state, so
that a restart does not wait for it either. Whether clients wait for an upstream at all is
upstreams[].firstSync in the config file.`,
		Example: `  relay serve-without west
  relay serve-without west --socket /var/lib/relay/admin.sock`,
	}, func(ctx context.Context, c admin.Client, upstream string) (string, error) {
		w, err := c.ServeWithout(ctx, upstream)
		if err != nil {
			return "", err
		}
		return describeWithout(upstream, w), nil
	})
}

func describeWithout(upstream string, w admin.Waiting) string {
	text := fmt.Sprintf("clients do not wait for upstream %s any more", upstream)
	if !w.KeepsState {
		text += ", until the relay ends: it keeps no state (state.dir)"
	}
	if n := len(w.For); n > 0 {
		text += fmt.Sprintf("; they are held until %s %s synced", strings.Join(w.For, ", "), printer.Agree(n, "has", "have"))
	}
	return text
}
