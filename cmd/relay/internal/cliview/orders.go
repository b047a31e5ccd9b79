package cliview

import (
	"fmt"
	"strings"

	"meshrelay/admin"
	"meshrelay/admin/view"
)

// Without describes the result of serve-without: for which upstreams clients still wait.
func Without(upstream string, w admin.Waiting) string {
	text := fmt.Sprintf("clients no longer wait for upstream %s", upstream)
	if !w.KeepsState {
		text += view.NoState
	}
	if len(w.For) > 0 {
		text += "; they still wait for " + strings.Join(w.For, ", ")
	}
	return text
}

// Reloaded describes the config after a reload.
func Reloaded(s admin.ReloadStatus) string {
	text := "config file loaded: nothing has changed"
	if len(s.Changed) > 0 {
		text = "config file loaded; changed: " + Clean(strings.Join(s.Changed, ", "))
	}
	if len(s.NeedsRestart) > 0 {
		text += "; restart needed for " + strings.Join(s.NeedsRestart, ", ")
	}
	return text
}
