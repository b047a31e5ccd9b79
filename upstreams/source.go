package upstreams

import (
	"context"
	"fmt"
	"log/slog"

	"meshrelay/config"
	"meshrelay/upstreams/intake"
)

// Source brings what one upstream has. It only brings: what is served of it is decided by the
// intake behind its feed.
//
// A Source that is a Describer tells more of itself in the status, and one that is a Repeater
// can be asked for all that it has once more.
type Source interface {
	// Run feeds what the upstream has, and its changes, until ctx ends, and then returns nil.
	// It is called once.
	Run(ctx context.Context, feed Feed) error
}

// Describer is a Source that knows more than it feeds.
type Describer interface {
	// Describe fills in the fields of a status that only the source knows: State, Since,
	// Address, Protocol, LastError and the like. It may be called at any time, from any
	// goroutine, also before Run.
	Describe(st *Status)
}

// Repeater is a Source that can tell all that it has once more.
type Repeater interface {
	// Repeat asks for that. It does not wait. When all has been told, the source tells
	// intake.Repeated. again reports whether it was asked before: what it has told since counts.
	// Out of contact it has no effect.
	Repeat(again bool)
}

// Feed takes what a source has to tell. Its methods may be called from any goroutine.
type Feed interface {
	// Tell has one of the events of a source take effect: Opened, Received, Endpoints, Closed,
	// Repeated or Panicked of package intake. The driver tells Closed at the end of Run.
	Tell(intake.Event) intake.Result
	// Synced reports whether all that the source has was told at least once since the source
	// began.
	Synced() bool
	// Versions returns the names that the intake has of a scope, each with the version that
	// the source gave it: what a stream resumes with. A name without a usable version has an
	// empty one.
	Versions(scope string) map[string]string
}

// Kind is a kind of sources.
type Kind struct {
	// Config is an empty section of the kind, for package config.
	Config config.Source
	// New returns a source that is not running, and holds nothing that has to be freed.
	New func(config.Upstream, Env) (Source, error)
	// Check returns what keeps a source from running now, for example the file of a
	// certificate that can not be read. It may be nil. Without a state, such a source tries
	// again; a reload refuses it.
	Check func(config.Upstream) error
	// Read returns how many resources an upstream has, and what is wrong with them, where that
	// needs no connection. It leaves out what config.Check reports. It may be nil.
	Read func(config.Upstream) (resources int, problems []error)
}

// Env is what a source needs in addition to the config of its upstream.
type Env struct {
	Node config.Node
	// Relay is this relay's name.
	Relay string
	// Log names the upstream.
	Log *slog.Logger
}

// kindOf returns the one of kinds that the source of an upstream has.
func kindOf(kinds []Kind, u config.Upstream) (Kind, error) {
	for _, k := range kinds {
		if u.Source != nil && u.Source.Kind() == k.Config.Kind() {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("upstream %s: it has no section that is a kind of source", u.Name)
}
