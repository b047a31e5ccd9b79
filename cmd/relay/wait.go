package main

import (
	"cmp"
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
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// distributed is the condition of a resource.
const distributed = "distributed"

// waitEvery is how often "relay wait" checks its condition, lookEvery how often that of a resource, which costs more.
const waitEvery, lookEvery = 200 * time.Millisecond, time.Second

// oneLook bounds the one check of "--timeout 0".
const oneLook = time.Minute

// condition returns nil if it is met, otherwise the reason. A neverError ends the wait.
type condition func(ctx context.Context, c admin.Client) error

// neverError is the reason why a condition will never be met.
type neverError struct{ error }

func newWait(access *access) *cobra.Command {
	var goal, namespace string
	var timeout time.Duration
	cmd := asks(&cobra.Command{
		Use:   "wait --for CONDITION | wait KIND [NAMESPACE/]NAME --for CONDITION",
		Short: "Wait until a running relay meets a condition",
		Long: `Wait until a condition is met, then exit with 0. After --timeout, exit with 1; with
--timeout 0, check once. The command also waits for a relay that does not answer yet. The conditions:

  ready            clients are served
  healthy          clients are served, and there are no problems
  synced           every upstream is synced; with "clusters" in the config, all places of clusters
                   have been read, and there is at least one upstream
  synced=UPSTREAM  that upstream is synced
  client=NAME      that client is connected and has acknowledged everything
  not-held         no guard holds deletions now; this is also true right after an accident, until
                   the relay has noticed the deletions

  distributed      all clients that see the resource have acknowledged its present content: that which
                   the relay has read`,
		Example: `  relay wait --for ready --timeout 60s
  relay wait --for=synced=east
  relay wait virtualservice shop -n shop --for distributed`,
		Args: func(cmd *cobra.Command, args []string) error {
			if _, _, ok := kindAndName(args); ok || len(args) == 0 {
				return nil
			}
			return wanted(0, "KIND", "NAME")(cmd, args)
		},
		ValidArgsFunction: completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			met, err := conditionOf(goal)
			every := waitEvery
			switch {
			case len(args) > 0:
				every = lookEvery
				met, err = arrived(cmd, args, namespace, goal)
			case err == nil && cmd.Flags().Changed("namespace"):
				err = errors.New("-n needs a resource: relay wait KIND NAME --for distributed")
			}
			if err != nil {
				return err
			}
			if timeout == 0 {
				timeout, every = oneLook, 0
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return waitFor(ctx, access.client(), goal, every, met)
		},
	})
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait; 0 checks once")
	cmd.Flags().StringVar(&goal, "for", "", "`condition` to wait for (required)")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of the resource")
	fixedCompletions(cmd, "for", "ready", "healthy", "synced", "not-held", distributed)
	return cmd
}

// waitFor checks a condition regularly until it is met. If every is 0, it checks once.
func waitFor(ctx context.Context, c admin.Client, wanted string, every time.Duration, met condition) error {
	var last error
	for {
		err := met(ctx, c)
		_, never := errors.AsType[*neverError](err)
		switch {
		case err == nil || never:
			return err
		case ctx.Err() == nil || last == nil: // otherwise err is only the timeout
			last = err
		}
		if every == 0 || !mirror.Sleep(ctx, every) {
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
			return cmp.Or(err, cliview.ClientSynced(all, of))
		}, nil
	case word == "not-held" && !named:
		return isNotHeld, nil
	}
	if text == distributed {
		return nil, fmt.Errorf("--for %s: name the resource: relay wait KIND NAME --for %[1]s", text)
	}
	return nil, fmt.Errorf("--for %q: want ready, healthy, synced, synced=UPSTREAM, client=NAME or not-held", text)
}

// arrived returns a condition of the resource that args name.
func arrived(cmd *cobra.Command, args []string, namespace, goal string) (condition, error) {
	if goal != distributed {
		return nil, fmt.Errorf("--for %q: want distributed for a resource", goal)
	}
	kind, namespace, name, err := resourceOf(cmd, args, namespace)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, c admin.Client) error {
		e, err := c.Explain(ctx, kind, namespace, name)
		if refused := (*admin.StatusError)(nil); errors.As(err, &refused) && refused.Code == http.StatusBadRequest {
			return &neverError{refusal(err)}
		}
		if why := admin.Undistributed(e.Distribution); err == nil && why != "" {
			err = fmt.Errorf("%s: %s", cliview.Clean(e.String()), cliview.Clean(why))
		}
		return err
	}, nil
}

// isReady returns nil when clients are served and, with healthy, nothing is wrong.
func isReady(ctx context.Context, c admin.Client, healthy bool) error {
	r, err := c.Ready(ctx)
	if err == nil && (!r.Ready || healthy && len(r.Reasons) > 0) {
		text := "not ready"
		if len(r.Reasons) > 0 {
			text = cliview.Clean(view.OneLine(r.Reasons[0]))
		}
		if more := len(r.Reasons) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more, see \"relay status\")", more)
		}
		err = errors.New(text)
	}
	return err
}

func isSynced(ctx context.Context, c admin.Client, name string) error {
	parts, err := c.Clusters(ctx) // read this first: upstreams are made from clusters
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
			return missing // the relay may still find it
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

// allFound returns an error if the relay may still find clusters, so that upstreams are missing.
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
