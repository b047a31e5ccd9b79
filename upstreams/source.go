package upstreams

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/zeebo/xxh3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Source reads one upstream. The intake behind its feed decides which resources are served. All methods but Run may be
// called at any time, from any goroutine.
type Source interface {
	// Run feeds the content of the upstream, and then its changes, until ctx ends. Then it returns nil. It is
	// called once. After a panic or an error, another source of the same config takes its place. Goroutines that
	// Run starts have ended when it returns, and make their panics its own: see Contain.
	Run(ctx context.Context, feed Feed) error
	// Describe sets the fields of a status that only the source knows: State, Since, Address, LastError and the like.
	Describe(st *Status)
	// Repeat asks for the whole content once more, and does not wait. It has no effect while the source is out of contact. A
	// source that does not feed intake.Opened feeds intake.Repeated at the end. repeats is false if its deletions are final.
	Repeat() (repeats bool)
	// Resync reads everything again for an operator, and does not wait.
	Resync()
	// Limit sets the limits for what the source reads from now on. If there is more room than before, the
	// source reads what it refused again.
	Limit(config.Limits)
	// Report writes a condition into the status of an object, unless the object has it, or status True for its content. It
	// sets the type, the time and the generation. told is false if the object has another content than the relay.
	Report(ctx context.Context, key mirror.Key, c metav1.Condition) (told bool, err error)
}

// Plain is for embedding in a Source that has nothing to describe, repeat, bound or report.
type Plain struct{}

// Describe implements Source.
func (Plain) Describe(*Status) {}

// Repeat implements Source.
func (Plain) Repeat() bool { return false }

// Resync implements Source.
func (Plain) Resync() {}

// Limit implements Source.
func (Plain) Limit(config.Limits) {}

// Report implements Source.
func (Plain) Report(context.Context, mirror.Key, metav1.Condition) (told bool, err error) {
	return false, nil
}

// Feed takes the events of a source. Its methods may be called from any goroutine.
type Feed interface {
	// Tell passes an event to the intake: Opened, Received, Endpoints, Closed, Repeated, Identified or
	// Panicked. The driver adds Closed at the end of Run.
	Tell(intake.Event) records.Result
	// Synced reports whether the source has fed its whole content at least once.
	Synced() bool
	// Versions returns the names of a scope, with the versions that the source gave them. A stream resumes
	// with them. The version is empty for a name that the source must send again.
	Versions(scope records.Scope) map[string]string
	// Holds reports whether the intake has accepted an element of this name, digest and size. The source need not decode
	// it again, and tells it as unchanged.
	Holds(scope records.Scope, name string, digest xxh3.Uint128, size int) bool
	// Keep adds n, which may be negative, to the bytes that the source itself keeps. It reports whether all that is
	// kept of the upstream fits limits.maxBytes. A new source begins with 0.
	Keep(n int) (fits bool)
	// Identity returns the identity of the last Identified, which may be older than the process. It is empty
	// for none.
	Identity() string
}

// Content counts the resources of an upstream that is read without a connection, and lists its problems.
type Content struct {
	Resources int
	Problems  []error
	// Objections are about resources that are served, and that Kubernetes would refuse.
	Objections doctor.Objections
	// Files is the number of files that were read to the end, of All files. About estimates the resources of
	// all files from those that were read.
	Files, All, About int
}

// Kind is a kind of sources.
type Kind struct {
	// Config is an empty section of the kind, for package config.
	Config config.Source
	// New returns a source that does not run, and needs no cleanup.
	New func(config.Upstream, Env) (Source, error)
	// Check, unless nil, returns an error that keeps a source from running now, for example about the file of
	// a certificate. A reload fails with it. At the start of the relay, the source tries again.
	Check func(config.Upstream) error
	// Read, unless nil, reads an upstream without a connection, until ctx ends. It does not repeat problems
	// that config.Check reports.
	Read func(ctx context.Context, u config.Upstream) Content
	// Lives, unless nil, returns how long the client certificate and the token of an upstream are valid. It reads
	// files, and opens no connection. A life is empty without a certificate or token, or without an end.
	Lives func(config.Upstream) (certificate, token doctor.Life, err error)
	// Probe, unless nil, returns checks of the way to an upstream. They open connections of their own, and
	// change nothing.
	Probe func(config.Upstream, Env) []doctor.Check
}

// Env has what a source needs in addition to the config of its upstream.
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
