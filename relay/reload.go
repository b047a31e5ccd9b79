package relay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/text"
	"meshrelay/state"
)

// apply implements config.Apply. It checks first all that can fail, so that it replaces either
// all settings or none. The config watcher calls it, one call at a time.
func (r *Relay) apply(ctx context.Context, cfg *config.Config) (needsRestart []string, err error) {
	r.applying.Lock()
	defer r.applying.Unlock()
	started, now := r.options.Config, r.config.Load()
	next, err := r.effective(cfg)
	if err != nil {
		return nil, err
	}
	for _, line := range next.Warnings() {
		r.log.Warn("config has a likely mistake", "warning", line)
	}
	// The listeners of the start get the new views, despite those in the file.
	if err := config.CheckListeners(started.Downstream.Listeners, cfg.Views); err != nil {
		return nil, fmt.Errorf("listeners need a restart, and the views do not fit the present ones: %w", err)
	}
	policies, others, err := MergePolicies(cfg.Merge)
	if err != nil {
		return nil, err
	}
	views, err := viewsOf(cfg.Views)
	if err != nil {
		return nil, err
	}
	limits := limitsOf(cfg.Downstream)
	if err := r.server.CheckReload(views, limits); err != nil {
		return nil, err
	}
	err = r.server.Reload(ctx, views, limits, func(held context.Context) error {
		if err := r.manager.Apply(next); err != nil {
			return err
		}
		r.aggregate.SetPolicies(policies, others)
		if err := r.aggregate.CaughtUp(held); err != nil && ctx.Err() == nil {
			r.log.Warn("merge not finished in time after reload", "err", err)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if err := r.pusher.SetOptions(pushOptions(cfg.Push)); err != nil {
		return nil, err
	}
	if r.keeper != nil {
		r.keeper.SetOptions(keeperOptions(cfg.State))
	}
	r.guard.SetPercent(cfg.Downstream.ShedAtMemoryPercent)
	if next.Log.Level != now.Log.Level { // else the level of an operator stays
		if err := r.options.LogLevel.UnmarshalText([]byte(next.Log.Level)); err != nil {
			return nil, err // never: cfg is valid
		}
	}
	r.config.Store(next)
	r.file = cfg
	r.finder.Adopt(cfg)
	restart := *next
	restart.Node, restart.Provenance = cfg.Node, cfg.Provenance
	return config.Diff(started, &restart), nil
}

// notes returns the problems that do not make the relay unready, a line each.
func (r *Relay) notes() []string {
	notes := r.finder.Problems()
	if r.keeper != nil {
		notes = append(stateNotes(r.keeper.Status()), notes...)
	}
	return notes
}

// stateNotes returns the problems of the state on disk, a line each.
func stateNotes(st state.Status) (notes []string) {
	if st.LastError != "" {
		notes = append(notes, fmt.Sprintf("state: not written since %s, so that a restart would go back to then: %s",
			st.ErrorSince.UTC().Format(time.RFC3339), st.LastError))
	}
	if st.JournalError != "" {
		notes = append(notes, "state: the journal of events is not written, so that a restart forgets what came since: "+st.JournalError)
	}
	if st.Note != "" {
		notes = append(notes, "state: "+st.Note)
	}
	for _, path := range st.SetAside {
		notes = append(notes, fmt.Sprintf("state: %s is unusable and was set aside: look at it, or delete it", path))
	}
	return notes
}

// recordReload puts the result of a load of the config file into the journal.
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
