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

// Scope is a part of a source that the source answers as a whole: a type URL of an xDS server, or a
// kind of the files below a path. Of several scopes of one kind that have the same resource, it is
// served from the one of the lowest rank.
type Scope struct {
	Kind mirror.Kind
	// Name tells the scopes of one source apart: a type URL, or Kind.String(). Texts name a
	// resource of the scope as "Name namespace/name".
	Name string
	Rank int
}

// Element is one resource as a source has it: encoded (Raw), decoded (Resource), or in a form that
// only the source reads (Decode). Its bytes are valid until the next element.
type Element struct {
	// Raw is an encoded google.protobuf.Any, nil when that is larger than the limit. Head stands
	// for it then: it has the short fields of the message. Size is the length of the whole.
	Raw, Head     []byte
	Size          int
	Name, Version []byte           // that the protocol gives beside Raw, if it does
	Resource      *mirror.Resource // without a stamp, in place of Raw
	// Mark is the mark of Raw: see Update.Marks.
	Mark uint64
	// Decode, in place of Raw, returns the resource without a stamp, or an LeftOutError. It is called
	// when the content differs from the last that was accepted: Digest tells them apart. Name has
	// the name, and Size is about that of the resource. lacks reports whether fields of the content
	// are left out. Each new source decodes such content once, so that it can tell of them.
	Decode func() (r *mirror.Resource, lacks bool, err error)
	Digest xxh3.Uint128
}

// Update is what a source tells of one scope.
type Update struct {
	Scope Scope
	// Complete: Elements are all that the scope has. Other names are gone.
	Complete bool
	// Part: more of the same answer follows. Until its last part has come, the scope counts as not
	// answered, and nothing is gone for not being in a complete answer.
	Part bool
	// Elements returns the resources, always in the same order, but for those that are known. Resources
	// of more than limit bytes may come without content; 0 is no limit. It is nil where there are none.
	Elements func(limit int, known Known) iter.Seq[Element]
	Room     int // about how many of them there are
	// Marks returns, in a complete update without versions, a mark of the content of each element, and
	// its size. Equal content has the same mark, and other content has another one but by chance,
	// also if somebody wants it. Zero is no mark. It is nil where a source does not repeat what it has.
	Marks iter.Seq2[uint64, int]
	// Removed, in an update that is not complete, names resources that are gone, as
	// "namespace/name". It may be nil.
	Removed iter.Seq[[]byte]
}

// Known reports whether a resource of that mark and size is known. A nil Known knows none.
type Known func(mark uint64, size int) bool

// LeftOutError is the error of Element.Decode for a resource that its source leaves out, because the
// workload of it is unhealthy.
type LeftOutError struct{ Detail string }

// Error implements error.
func (o *LeftOutError) Error() string { return o.Detail }

// Resources returns elements of resources that a source reads itself.
func Resources(all ...*mirror.Resource) func(int, Known) iter.Seq[Element] {
	return func(int, Known) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for _, r := range all {
				if !yield(Element{Resource: r}) {
					return
				}
			}
		}
	}
}

// Received is the event that a source has told something. All its updates take effect at once.
type Received struct {
	Updates []Update
	// Live: the source has told all that it has, and goes on to tell its changes. A source that
	// announces its scopes by Opened leaves it false: its answers tell that.
	Live bool
	// Unsure: the source may have more than it could read. Resources of the disk stay that a
	// complete update does not have.
	Unsure bool
	// Believe: the peer is a relay, whose word on the way of a resource counts.
	Believe bool
	// More: the source is about to tell more. Deletions wait for that, for ten seconds at most.
	More bool
}

// Opened is the event that a new stream of the source begins. Deletions wait until it has answered
// every scope; scopes that it does not name are dropped then.
type Opened struct {
	Scopes []Scope
	// Address is where the source is read from, empty where there is only one place.
	Address string
}

// Closed is the event that the source is out of contact.
type Closed struct {
	// Reason is why, empty when nobody knows.
	Reason string
	// Denied: it refuses our identity. Failed: it can not be used as configured.
	Denied, Failed bool
	// Planned: the relay has ended the contact.
	Planned bool
}

// Repeated is the event that the source has repeated all that it has, as Output.Repeat asks for.
type Repeated struct{}

// Tick is the event that time has passed.
type Tick struct{}

// Result is what became of an event.
type Result struct {
	// Changed counts resources that are new or changed for clients, Gone those that the source
	// does not have any more, and Deleted those that are not served any more.
	Changed, Gone, Deleted int
	Unread                 bool // the names of some elements can not be read
	// Relist: there may be room now for elements that earlier parts of a complete answer brought. The
	// source should tell everything once more.
	Relist bool
	// Refused names what is not accepted, at most maxNamed; RefusedTotal counts all.
	Refused      []Refusal
	RefusedTotal int
	// Clusters are those whose endpoints are wanted, nil when they are the same as before.
	Clusters map[string]struct{}
}

// Refusal is a resource or file whose newest content is not accepted.
type Refusal struct {
	// Resource is "group/Kind namespace/name" where known, or a file with its line.
	Resource string `json:"resource"`
	// Reason tells what is wrong with it.
	Reason string `json:"reason"`
}

// maxNamed bounds the resources that a Result names.
const maxNamed = 20

// Refuse notes that a resource is not accepted.
func (r *Result) Refuse(resource string, err error) {
	if r.RefusedTotal++; len(r.Refused) < maxNamed {
		r.Refused = append(r.Refused, Refusal{Resource: resource, Reason: err.Error()})
	}
}

// Err returns all that is refused as one error, nil when nothing is.
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

// Event is one of the events that an Intake steps over.
type Event interface {
	step(in *Intake, out *Output)
}

// Output is what a step leads to, in addition to what it serves.
type Output struct {
	Result
	Effect Effect    // of an operator's order
	Wake   time.Time // when the next Tick is due
	// Repeat asks for Repeated. Again: it was asked for before, and has not come.
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
