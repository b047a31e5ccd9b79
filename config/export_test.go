package config

import (
	"reflect"

	"meshrelay/internal/fswatch"
)

// These are what tests see of the package from outside: only from there can they have the
// sections of upstreams.
const (
	LastApplied    = lastApplied
	MaxSocketPath  = maxSocketPath
	MaxReasonBytes = maxReasonBytes
	Poll           = poll
	Quiet          = quiet
)

var (
	Brief       = brief
	Join        = join
	RestartOnly = restartOnly
	YAMLName    = yamlName
)

// SetDefaults sets the defaults of an empty config.
func (c *Config) SetDefaults() { setDefaults(reflect.ValueOf(c).Elem()) }

// Follow has another watcher follow the file, with the usual times.
func (w *Watcher) Follow(o fswatch.Options) {
	o.Quiet, o.Longest, o.Rescan, o.Poll = quiet, longest, rescan, poll
	w.files = fswatch.New(o)
}
