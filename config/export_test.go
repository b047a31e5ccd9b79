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
	Poll           = fswatch.Poll
	Quiet          = fswatch.Quiet
	Writing        = writing
)

var (
	Brief       = brief
	Join        = join
	RestartOnly = restartOnly
	YAMLName    = yamlName
)

// SetDefaults sets the defaults of an empty config.
func (c *Config) SetDefaults() { setDefaults(reflect.ValueOf(c).Elem()) }

// Follow has another watcher follow the file, at the latest after the usual time.
func (w *Watcher) Follow(o fswatch.Options) {
	o.Longest = longest
	w.files = fswatch.New(o)
}
