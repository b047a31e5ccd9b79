package intake

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/events"
	"meshrelay/mirror"
)

// Scope is a part of a source that is answered as a whole: a type URL of an xDS server, or a kind
// of the files below a path. If several scopes of a kind have a resource, that of the lowest rank
// is served.
type Scope struct {
	Kind mirror.Kind
	// Name is unique in a source: a type URL, or Kind.String(). Messages name a resource as "Name
	// namespace/name".
	Name string
	Rank int
}

// Element is one resource of a source: encoded (Raw), decoded (Resource), or in a form that only
// the source reads (Decode). Its bytes are valid until the next element.
type Element struct {
	// Raw is an encoded google.protobuf.Any, nil if it is larger than the limit. Head then has the
	// short fields of the message, and Size the length of the whole.
	Raw, Head     []byte
	Size          int
	Name, Version []byte           // from the protocol, in addition to Raw, if it has them
	Resource      *mirror.Resource // without a stamp, instead of Raw
	// Mark is the mark of Raw: see Update.Marks.
	Mark uint64
	// Decode is set instead of Raw, for a source with its own encoding. It returns the resource without a
	// stamp, or a LeftOutError. The intake calls it if Digest differs from that of the accepted content. It
	// also calls it once for each new source if lacks was set: lacks means that fields of the content are
	// left out. With Decode, Name is the name, and Size about the size of the resource.
	Decode func() (r *mirror.Resource, lacks bool, err error)
	Digest xxh3.Uint128
}

// Update is the content, or the changes, of one scope.
type Update struct {
	Scope Scope
	// Complete: Elements are all resources of the scope. Other names are gone.
	Complete bool
	// Part: more of the same answer follows. Until the last part, the scope is not answered, and no
	// name is gone.
	Part bool
	// Elements returns the resources in an order that never changes, except known ones. It may return
	// resources of more than limit bytes without content; 0 is no limit. It is nil if there are no resources.
	Elements func(limit int, known Known) iter.Seq[Element]
	Room     int // about the number of elements
	// Marks is set for a complete update without versions, by a source that repeats everything. It returns a
	// mark and the size of each element. Equal content has equal marks. Different content has different
	// marks, except by an unlikely chance; nobody can choose content with a given mark. A mark of zero is
	// unknown.
	Marks iter.Seq2[uint64, int]
	// Removed has the removed names of an incomplete update, as "namespace/name". It may be nil.
	Removed iter.Seq[[]byte]
}

// Known reports whether a resource with this mark and size is known. A nil Known knows none.
type Known func(mark uint64, size int) bool

// LeftOutError is the error of Element.Decode for a resource that the source leaves out. Without a Reason, its workload is
// unhealthy.
type LeftOutError struct{ Reason, Detail string }

// Error implements error.
func (o *LeftOutError) Error() string { return o.Detail }

// Resources returns decoded resources as Update.Elements.
func Resources(all ...*mirror.Resource) func(int, Known) iter.Seq[Element] {
	return Elements(all, func(r *mirror.Resource) Element { return Element{Resource: r} })
}

// Elements returns what element makes of each of all as Update.Elements.
func Elements[T any](all []T, element func(T) Element) func(int, Known) iter.Seq[Element] {
	return func(int, Known) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for _, one := range all {
				if !yield(element(one)) {
					return
				}
			}
		}
	}
}

// Received is the event that a source has sent updates. They are applied together.
type Received struct {
	Updates []Update
	// Live: the source has sent everything that it has, and will send its changes. A source that feeds Opened
	// leaves Live false: the intake then waits for the answers of all scopes.
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
	Scopes []Scope
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

// Repeated is the event that the source has repeated all that it has, after Output.Repeat.
type Repeated struct{}

// Tick is the event that time has passed.
type Tick struct{}

// Result has the effects of an event.
type Result struct {
	// Changed counts resources that are new or changed for clients. Gone counts those that the source has
	// deleted, and Deleted those that are no longer served.
	Changed, Gone, Deleted int
	Unread                 bool // some elements have no readable name
	// Relist: there may now be room for elements of earlier parts of a complete answer. The source
	// should send everything again.
	Relist bool
	// Refused has the refused resources, at most maxNamed. RefusedTotal counts all.
	Refused      []Refusal
	RefusedTotal int
	// Clusters are those whose endpoints are needed, nil if they are the same as before.
	Clusters map[string]struct{}
	// Awaited are the scopes of a Silent that are awaited all the same.
	Awaited []string
}

// Refusal is a resource or file whose newest content is refused.
type Refusal struct {
	// Resource is "group/Kind namespace/name" if known, or a file with its line.
	Resource string `json:"resource"`
	// Reason is the mistake.
	Reason string `json:"reason"`
}

// maxNamed is how many refused resources a Result names.
const maxNamed = 20

// Refuse adds a refused resource.
func (r *Result) Refuse(resource string, err error) {
	if r.RefusedTotal++; len(r.Refused) < maxNamed {
		r.Refused = append(r.Refused, Refusal{Resource: resource, Reason: err.Error()})
	}
}

// Err returns all refusals as one error, or nil.
func (r *Result) Err() error {
	var errs []error
	for _, one := range r.Refused {
		errs = append(errs, fmt.Errorf("%s: %s", one.Resource, one.Reason))
	}
	if more := r.RefusedTotal - len(r.Refused); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// Event is an event for Intake.Step.
type Event interface {
	step(in *Intake, out *Output)
}

// Output is the result of a step.
type Output struct {
	Result
	Effect Effect    // of an order
	Wake   time.Time // time of the next Tick
	// Repeat asks the source to repeat everything. Again is set if the source has not done so after the last
	// request.
	Repeat, Again bool
	Notes         []Note
	Events        []events.Event // for the journal, without the name of the upstream
	err           error          // why an order is refused
}

// Note is one line for the log.
type Note struct {
	Level   slog.Level
	Message string
	Args    []any
}
