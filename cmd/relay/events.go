package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/events"
	"meshrelay/mirror"
)

const (
	usualEvents = 50
	maxEvents   = 100_000
	// followRetry is the pause before the next attempt when the relay does not answer.
	followRetry = time.Second
)

// eventFlags are the flags of a command that lists events.
type eventFlags struct {
	since, until, types, upstream, client, kind, namespace, text string
	limit                                                        int
	follow, orders, tools                                        bool
}

func newEvents(access *access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List events: changes, holds, orders, clients",
		Long: `List the newest events of a running relay, the oldest first: changes of upstreams, held deletions,
orders of operators, and clients that connected, disconnected or rejected a response. All times are
UTC. A relay that keeps state (state.dir) keeps events over a restart. Connections of commands such
as "relay get" are listed only with --tools or --client.

With --orders, list the orders of operators only, and the refused ones, with the user, the reason,
and what the order has changed. With --follow, go on with new events until interrupted. -o wide adds how long it took until half of
the clients, and all clients, had acknowledged a change.`,
		Example: `  relay events
  relay events --since 03:00 --upstream east
  relay events --since 2h --type held,released,expired
  relay events --kind virtualservice -n shop -o wide
  relay events --orders --since 24h
  relay events --follow --client istiod-7d9`,
	}
	var f eventFlags
	var out output
	access.overAdmin(cmd, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		_, err := f.list(cmd, c, &out)
		return err
	})
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !f.follow {
			return once(cmd, args)
		}
		return f.followOn(cmd, access.client(), access.timeout, &out)
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "list events from this `time` on: 03:12 or 2026-11-22T03:12:00Z (UTC), or 2h for two hours ago")
	flags.StringVar(&f.until, "until", "", "list events before this `time`, written as for --since")
	flags.StringVar(&f.upstream, "upstream", "", "list events of this `upstream`")
	flags.IntVar(&f.limit, "limit", usualEvents, "list at most this `number` of events, the newest")
	flags.StringVar(&f.text, "search", "", "list events with this `text` in any name, reason or sentence")
	if err := cmd.RegisterFlagCompletionFunc("upstream", access.completeUpstreams); err != nil {
		panic(err) // the flag does not exist
	}
	flags.StringVar(&f.types, "type", "", "list events of these `types`, such as held,released")
	flags.StringVar(&f.client, "client", "", "list events of clients with this `text` in their names")
	flags.StringVar(&f.kind, "kind", "", "list events about resources of this `kind`, such as se or virtualservice")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "list events about resources in this `namespace`")
	flags.BoolVar(&f.orders, "orders", false, "list orders of operators only")
	flags.BoolVar(&f.tools, "tools", false, "also list connections of commands such as \"relay get\"")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with new events, until interrupted")
	var words []string
	for _, t := range events.Types() {
		words = append(words, string(t))
	}
	fixedCompletions(cmd, "type", words...)
	out.flag(cmd, "table", "wide", "json")
	return cmd
}

// query returns the flags as parameters of /debug/events.
func (f *eventFlags) query(now time.Time) (url.Values, error) {
	q := url.Values{"type": {f.types}, "upstream": {f.upstream}, "client": {f.client}, "kind": {f.kind}, "namespace": {f.namespace}, "q": {f.text}}
	for name, text := range map[string]string{"since": f.since, "until": f.until} {
		at, err := clockTime(text, now)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		if !at.IsZero() {
			q.Set(name, at.Format(time.RFC3339))
		}
	}
	if f.orders {
		q.Set("orders", "true")
	}
	if f.tools {
		q.Set("tools", "true")
	}
	if f.limit < 1 || f.limit > maxEvents {
		return nil, fmt.Errorf("--limit: %d: want a number from 1 to %d", f.limit, maxEvents)
	}
	return q, nil
}

// clockTime parses the time of a flag: a clock time in the last 24 hours, a date and time, or a duration
// before now.
func clockTime(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.UTC().Add(-d.Abs()), nil
	}
	at, err := view.ClockTime(text, now)
	if err != nil {
		return at, fmt.Errorf("%w, or 2h for two hours ago", err)
	}
	return at, nil
}

// list prints the newest events, and returns the sequence number of the last.
func (f *eventFlags) list(cmd *cobra.Command, c admin.Client, out *output) (last uint64, err error) {
	q, err := f.query(time.Now())
	if err != nil {
		return 0, err
	}
	all := []events.Event{}
	more, tools := true, 0
	for more && len(all) < f.limit {
		q.Set("limit", strconv.Itoa(min(f.limit-len(all), events.MaxPage)))
		page, err := c.Events(cmd.Context(), q)
		if err != nil {
			return 0, err
		}
		if len(all) == 0 {
			last = page.Newest
		}
		all, more, tools = append(slices.Clone(page.Events), all...), page.More, tools+page.Tools
		if len(page.Events) > 0 {
			q.Set("before", strconv.FormatUint(page.Events[0].Seq, 10))
		}
	}
	if f.follow && out.format == "json" {
		return last, printEvents(cmd.OutOrStdout(), all)
	}
	if tools > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "left out: %s of relay commands; --tools shows them\n", view.Count(tools, "event"))
	}
	view := cliview.NewEvents(cmd.OutOrStdout(), out.format == "wide")
	if len(all) == 0 && !f.follow && out.format != "json" {
		_, err := io.WriteString(cmd.OutOrStdout(), "No events.\n")
		return last, err
	}
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "Older events are left out: --limit shows more than %d.\n", f.limit)
	}
	if out.format == "json" {
		return last, out.print(cmd, nil, all, "")
	}
	return last, view.Print(all)
}

// printEvents prints each event as a line of JSON.
func printEvents(w io.Writer, all []events.Event) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for i := range all {
		if err := enc.Encode(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// followOn lists events, then new events until the user interrupts it. While the relay does not answer, it
// tries again.
func (f *eventFlags) followOn(cmd *cobra.Command, c admin.Client, timeout time.Duration, out *output) error {
	if f.until != "" {
		return errors.New("--until can not be combined with --follow")
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	first, cancel := context.WithTimeout(ctx, timeout)
	cmd.SetContext(first)
	last, err := f.list(cmd, c, out)
	cancel()
	if err != nil {
		return hinted(err)
	}
	q, err := f.query(time.Now())
	if err != nil {
		return err
	}
	view := cliview.NewEvents(cmd.OutOrStdout(), out.format == "wide")
	view.Untitled()
	for complained := false; ; {
		err := c.FollowEvents(ctx, q, last, func(what string, e events.Event) error {
			complained = false
			if what == admin.StreamMissed {
				fmt.Fprintln(cmd.ErrOrStderr(), "Some events were missed: the relay does not keep them any more.")
				return nil
			}
			last = max(last, e.Seq)
			switch {
			case out.format == "json":
				return printEvents(cmd.OutOrStdout(), []events.Event{e})
			case what == admin.StreamStages:
				return view.PrintStages(e)
			}
			return view.Print([]events.Event{e})
		})
		_, refused := errors.AsType[*admin.StatusError](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case refused:
			return hinted(err)
		case !complained:
			complained = true
			fmt.Fprintf(cmd.ErrOrStderr(), "The relay does not answer, waiting for it: %s\n", strings.TrimSpace(fmt.Sprint(err)))
		}
		if !mirror.Sleep(ctx, followRetry) {
			return nil
		}
	}
}
