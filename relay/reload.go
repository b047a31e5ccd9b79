package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/text"
	"meshrelay/state"
)

// apply implements config.Apply. It first checks everything that can fail, so that it replaces all
// settings or none. The config watcher calls it, one call at a time.
func (r *Relay) apply(ctx context.Context, cfg *config.Config) (needsRestart []string, err error) {
	r.applying.Lock()
	defer r.applying.Unlock()
	started, now := r.options.Config, r.config.Load()
	next, err := r.effective(cfg)
	if err != nil {
		return nil, err
	}
	specs, err := sinksOf(next)
	if err != nil {
		return nil, err
	}
	for _, line := range append(next.Warnings(), SinkWarnings(next)...) {
		r.log.Warn("config has a likely mistake", "warning", line)
	}
	// The running listeners get the new views. Changed listeners in the file need a restart.
	if err := cfg.CheckListeners(started.Downstream.Listeners); err != nil {
		return nil, fmt.Errorf("the views do not fit the running listeners, and new listeners need a restart: %w", err)
	}
	merge, err := merging(cfg)
	if err != nil {
		return nil, err
	}
	views, err := viewsOf(cfg.Views)
	if err != nil {
		return nil, err
	}
	err = r.server.Reload(ctx, views, limitsOf(cfg.Downstream), func(held context.Context) error {
		if err := r.manager.Apply(next); err != nil {
			return err
		}
		merge(r.aggregate)
		if err := r.aggregate.CaughtUp(held); err != nil && ctx.Err() == nil {
			r.log.Warn("merge not finished in time after reload", "err", err)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if r.keeper != nil {
		r.keeper.SetOptions(keeperOptions(cfg.State))
	}
	if next.Log.Level != now.Log.Level { // otherwise a level that an operator has set stays
		if err := r.options.LogLevel.UnmarshalText([]byte(next.Log.Level)); err != nil {
			return nil, err // never: cfg is valid
		}
	}
	r.config.Store(next)
	r.file = cfg
	r.finder.Adopt(cfg)
	r.sinks.Apply(specs)
	restart := *next
	restart.Node, restart.Provenance = cfg.Node, cfg.Provenance
	return config.Diff(started, &restart), nil
}

// notes returns one line for each problem that does not make the relay unready.
func (r *Relay) notes() []string {
	var own []string
	if r.keeper != nil {
		own = stateNotes(r.keeper.Status())
	}
	return slices.Concat(own, r.finder.Problems(), r.expiries.problems(time.Now()), r.manager.OrderProblems(), r.aggregate.NotAllocated(), r.sinks.Problems())
}

// stateNotes returns one line for each problem of the state on disk.
func stateNotes(st state.Status) (notes []string) {
	if st.LastError != "" {
		notes = append(notes, fmt.Sprintf("state: not written since %s, and a restart would go back to that time: %s; make room on the disk of state.dir, or mend what the error names: the relay tries again by itself",
			st.ErrorSince.UTC().Format(time.RFC3339), st.LastError))
	}
	if st.JournalError != "" {
		notes = append(notes, "state: the journal is not written, and a restart loses the newest events: "+st.JournalError)
	}
	if st.Note != "" {
		notes = append(notes, "state: "+st.Note)
	}
	for _, path := range st.SetAside {
		notes = append(notes, fmt.Sprintf("state: %s is unusable and was set aside: inspect or delete it", path))
	}
	return notes
}

// recordReload records the result of a load of the config file in the journal.
func (r *Relay) recordReload(st config.ReloadStatus) {
	e := events.Event{Type: events.Config, By: events.ByConfig, Text: "config loaded, nothing changed"}
	switch {
	case st.Error != "":
		e.Type, e.Text, e.Reason, e.Command = events.ConfigRefused, "config not loaded, the previous one stays", st.Error, "relay validate -c "+text.Word(r.options.Watcher.Path())
	case len(st.Changed) > 0:
		e.Text = "config loaded: " + strings.Join(st.Changed, ", ")
	}
	if st.Error == "" && len(st.NeedsRestart) > 0 {
		e.Reason = "needs a restart: " + strings.Join(st.NeedsRestart, ", ")
	}
	r.events.Record(e)
}
