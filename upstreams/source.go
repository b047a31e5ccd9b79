package upstreams

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/upstreams/intake"
)

// Source brings what one upstream has. The intake behind its feed decides what is served. A Source may
// also be a Describer, a Repeater and Limited.
type Source interface {
	// Run feeds what the upstream has, and its changes, until ctx ends, and then returns nil.
	// It is called once.
	Run(ctx context.Context, feed Feed) error
}

// Describer is a Source that knows more than it feeds.
type Describer interface {
	// Describe sets the fields of a status that only the source knows: State, Since, Address,
	// LastError and the like. It may be called at any time, from any goroutine.
	Describe(st *Status)
}

// Repeater is a Source that can tell all that it has once more.
type Repeater interface {
	// Repeat asks for that, and does not wait: the source tells intake.Repeated at the end. again
	// reports whether it was asked before: what it has told since counts. Out of contact it has no
	// effect.
	Repeat(again bool)
}

// Limited is a Source that bounds by itself what it takes in memory, before the intake does.
type Limited interface {
	// Limit has other limits count for what is read from now on. What was refused for want of room
	// is asked for once more where there is more now. It may be called at any time, from any goroutine.
	Limit(config.Limits)
}

// Feed takes what a source has to tell. Its methods may be called from any goroutine.
type Feed interface {
	// Tell steps the intake over Opened, Received, Endpoints, Closed, Repeated, Identified or Panicked. The
	// driver tells Closed at the end of Run.
	Tell(intake.Event) intake.Result
	// Synced reports whether the source has told all that it has at least once.
	Synced() bool
	// Versions returns what a stream resumes with: the names of a scope, each with the version that
	// the source gave it, empty when that is of no use.
	Versions(scope string) map[string]string
	// Holds reports whether what was accepted last of a name of a scope is an element with Decode of that
	// digest and size, so that it would not be decoded.
	Holds(scope, name string, digest xxh3.Uint128, size int) bool
	// Identity returns the identity that was told last, also before a restart of the relay, empty for
	// none.
	Identity() string
}

// Content is what an upstream has, as far as it was read without a connection.
type Content struct {
	Resources int
	Problems  []error
	// Files is how many of All files were read to the end. About is how many resources all have if the
	// rest is like what was read.
	Files, All, About int
}

// Kind is a kind of sources.
type Kind struct {
	// Config is an empty section of the kind, for package config.
	Config config.Source
	// New returns a source that is not running, and holds nothing that has to be freed.
	New func(config.Upstream, Env) (Source, error)
	// Check, unless nil, returns what keeps a source from running now, for example the file of a
	// certificate. A reload refuses such a source; at the start it tries again.
	Check func(config.Upstream) error
	// Read returns what an upstream has, and what is wrong with that, where it needs no connection. It
	// leaves out what config.Check reports, and the rest when ctx ends. It may be nil.
	Read func(ctx context.Context, u config.Upstream) Content
	// Probe, unless nil, returns checks of the way to an upstream. They connect for themselves, and
	// change nothing.
	Probe func(config.Upstream, Env) []doctor.Check
	// Metrics are what only upstreams of this kind have.
	Metrics []Metric
}

// Env is what a source needs in addition to the config of its upstream.
type Env struct {
	Node  config.Node
	Relay string
	Log   *slog.Logger
}

// KindOf returns the kind of an upstream's source.
func KindOf(kinds []Kind, u config.Upstream) (Kind, error) {
	for _, k := range kinds {
		if u.Source != nil && u.Source.Kind() == k.Config.Kind() {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("upstream %s: it has no section of a kind of source", u.Name)
}
