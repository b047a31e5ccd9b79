package intake

import (
	"log/slog"
	"time"

	"meshrelay/events"
	"meshrelay/upstreams/intake/records"
)

// Received is the event that a source has sent updates. They are applied together.
type Received struct {
	Updates []records.Update
	// Live: Updates are everything that the source has, and it will send its changes. A scope without an update is
	// empty. A source that feeds Opened leaves Live false: the intake then waits for the answers of all scopes.
	Live bool
	// Unsure: the source may have more than it could read. Restored resources stay even if a
	// complete update does not have them.
	Unsure bool
	// Believe: the peer is a relay, whose path of a resource is trusted.
	Believe bool
	// Server has the identities that the peer has proven, which import.requireVia is about.
	Server []string
	// More: the source will send more soon. Deletions wait for that, but for ten seconds at most.
	More bool
}

// Opened is the event that the source begins a new stream. Deletions wait until the stream has answered every
// scope in Scopes. Other scopes are then dropped.
type Opened struct {
	Scopes []records.Scope
	// Address is where the source is read from, empty if there is only one place.
	Address string
}

// Closed is the event that the source is out of contact.
type Closed struct {
	// Reason is empty if unknown.
	Reason string
	// Denied: the source refuses the relay's identity. Failed: it can not be used as configured.
	Denied, Failed bool
	// Planned: the relay has ended the contact.
	Planned bool
}

// Repeated is the event that the source has repeated all that it has, after Output.Repeat. A source that feeds Opened need not
// feed it: it has repeated all when it has answered all that it was opened with.
type Repeated struct{}

// Tick is the event that time has passed.
type Tick struct{}

// Silent is the event that the open stream gives no answer for some scopes. The source does not offer them,
// except those in Result.Awaited.
type Silent struct{ Scopes []records.Scope }

// Endpoints is the event that the endpoints of some clusters have changed, by cluster. The source sends them for each cluster
// that Result.Clusters has anew, once they are known.
type Endpoints map[string]records.Assignment

// Rooted is the event that the MeshConfig that is served names a root namespace.
type Rooted struct{ Namespace string }

// Event is an event for Intake.Step.
type Event interface {
	step(in *Intake)
}

// Output is the result of a step.
type Output struct {
	records.Result
	Effect Effect    // of an order
	Wake   time.Time // time of the next Tick
	Repeat bool      // asks the source to repeat everything
	Notes  []Note
	Events []events.Event // for the journal, without the name of the upstream
	err    error          // why an order is refused
}

// Note is one line for the log.
type Note struct {
	Level   slog.Level
	Message string
	Args    []any
}
