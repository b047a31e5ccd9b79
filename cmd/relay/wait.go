package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// waitEvery is how often "relay wait" asks.
const waitEvery = 200 * time.Millisecond

// condition returns nil when it holds, else why not. A neverError ends the wait.
type condition func(ctx context.Context, c admin.Client) error

// neverError is why a condition never holds.
type neverError struct{ error }

func newWait() *cobra.Command {
	var access access
	var wanted string
	cmd := &cobra.Command{
		Use:   "wait --for CONDITION",
		Short: "Wait until a running relay is in a state",
		Long: `Wait until a condition holds, and exit with 0; with 1 after --timeout. A relay that does not
answer yet is waited for. The conditions:

  ready            clients are served
  healthy          clients are served, and nothing is wrong
  synced           every upstream is in sync; with "clusters" in the config it has also been
                   read which there are, and there is at least one upstream
  synced=UPSTREAM  that upstream is in sync
  client=NAME      that client is connected and has acknowledged everything
  not-held         no guard holds deletions now; right after an accident it is met at once, as the
                   relay has yet to notice what is gone`,
		Example: `  relay wait --for ready --timeout 60s
  relay wait --for=synced=east`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			met, err := conditionOf(wanted)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), access.timeout)
			defer cancel()
			return await(ctx, admin.Client{Address: access.address}, wanted, met)
		},
	}
	access.flags(cmd, time.Minute)
	cmd.Flags().StringVar(&wanted, "for", "", "`condition` to wait for (required)")
	fixedCompletions(cmd, "for", "ready", "healthy", "synced", "not-held")
	return cmd
}

// await asks until a condition holds.
func await(ctx context.Context, c admin.Client, wanted string, met condition) error {
	var last error
	for {
		err := met(ctx, c)
		never := (*neverError)(nil)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &never):
			return err
		case ctx.Err() == nil || last == nil: // else it is the timeout of the question
			last = err
		}
		if !sleep(ctx, waitEvery) {
			return fmt.Errorf("not %s in time: %w", wanted, hinted(last))
		}
	}
}

// conditionOf parses a condition.
func conditionOf(text string) (condition, error) {
	word, of, named := strings.Cut(text, "=")
	switch {
	case word == "ready" && !named:
		return func(ctx context.Context, c admin.Client) error { return isReady(ctx, c, false) }, nil
	case word == "healthy" && !named:
		return func(ctx context.Context, c admin.Client) error { return isReady(ctx, c, true) }, nil
	case word == "synced" && (!named || of != ""):
		return func(ctx context.Context, c admin.Client) error { return isSynced(ctx, c, of) }, nil
	case word == "client" && of != "":
		return func(ctx context.Context, c admin.Client) error {
			all, err := c.Clients(ctx)
			if err != nil {
				return err
			}
			return cliview.ClientSynced(all, of)
		}, nil
	case word == "not-held" && !named:
		return isNotHeld, nil
	}
	return nil, fmt.Errorf("--for %q: want ready, healthy, synced, synced=UPSTREAM, client=NAME or not-held", text)
}

// isReady returns nil when clients are served and, with healthy, nothing is wrong.
func isReady(ctx context.Context, c admin.Client, healthy bool) error {
	r, err := c.Ready(ctx)
	if err == nil && (!r.Ready || healthy && len(r.Reasons) > 0) {
		err = errors.New(reasonOf(r))
	}
	return err
}

// reasonOf returns the first reason of a relay that is not as it should be.
func reasonOf(r admin.Readiness) string {
	if len(r.Reasons) == 0 {
		return "not ready"
	}
	text := cliview.Clean(strings.Join(strings.Fields(r.Reasons[0]), " "))
	if more := len(r.Reasons) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more, see \"relay status\")", more)
	}
	return text
}

func isSynced(ctx context.Context, c admin.Client, name string) error {
	parts, err := foundClusters(ctx, c) // before the upstreams, which come of them
	if err != nil {
		return err
	}
	all, err := c.Upstreams(ctx)
	if err != nil {
		return err
	}
	if name != "" && !slices.ContainsFunc(all, func(u upstreams.Status) bool { return u.Name == name }) {
		missing := fmt.Errorf("no upstream %q: see \"relay upstreams\"", name)
		if len(parts) > 0 {
			return missing // it may be found yet
		}
		return &neverError{missing}
	}
	if name == "" {
		if err := allFound(parts, all); err != nil {
			return err
		}
	}
	for _, u := range all {
		if (name == "" || u.Name == name) && (u.State != upstreams.StateSynced || !u.Synced) {
			text := fmt.Sprintf("upstream %s is %s", u.Name, u.State)
			if u.LastError != "" {
				text += ": " + cliview.Clean(u.LastError)
			}
			return errors.New(text)
		}
	}
	return nil
}

// foundClusters returns how the clusters of the config fare. A relay of an earlier release finds none.
func foundClusters(ctx context.Context, c admin.Client) ([]clusters.Status, error) {
	parts, err := c.Clusters(ctx)
	if refused, ok := errors.AsType[*admin.StatusError](err); ok && refused.Code == http.StatusNotFound {
		return nil, nil
	}
	return parts, err
}

// allFound returns which clusters may be found yet, so that the upstreams are not all that there will be.
func allFound(parts []clusters.Status, all []upstreams.Status) error {
	for _, part := range parts {
		if part.ReadAt.IsZero() {
			text := fmt.Sprintf("clusters %s: %s not read yet", part.Name, part.From)
			if part.Error != "" {
				text += ": " + cliview.Clean(part.Error)
			}
			return errors.New(text)
		}
		for _, one := range part.Clusters {
			if !slices.ContainsFunc(all, func(u upstreams.Status) bool { return u.Name == one.Name }) {
				return fmt.Errorf("clusters %s: cluster %s is found, and its upstream does not run yet", part.Name, cliview.Clean(one.ID))
			}
		}
	}
	if len(parts) > 0 && len(all) == 0 {
		return fmt.Errorf("clusters %s: none found in %s yet, and there is no other upstream", parts[0].Name, parts[0].From)
	}
	return nil
}

func isNotHeld(ctx context.Context, c admin.Client) error {
	all, err := c.Upstreams(ctx)
	for _, u := range all {
		if u.Held != nil {
			return fmt.Errorf("upstream %s: %s held", u.Name, view.Count(u.Held.Removals, "deletion"))
		}
	}
	return err
}
