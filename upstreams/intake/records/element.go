package records

import (
	"bytes"
	"errors"
	"fmt"
	"iter"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/wire"
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

func (el Element) peek() []byte {
	if el.Head != nil {
		return el.Head
	}
	return el.Raw
}

func (el Element) hash() xxh3.Uint128 {
	switch {
	case el.Resource != nil:
		return hashOf(el.Resource.Digest())
	case el.Decode != nil:
		return el.Digest
	}
	return xxh3.Hash128(el.Raw)
}

func (el Element) size() int {
	if el.Resource != nil {
		return len(el.Resource.DeltaEntry())
	}
	return max(el.Size, len(el.Raw))
}

func (el Element) version() []byte {
	if el.Resource != nil {
		return []byte(el.Resource.SourceVersion())
	}
	return el.Version
}

// peekName returns the name of an element. An empty name is an error: it may be the rest of any.
func (rs *Records) peekName(kind mirror.Kind, el Element) ([]byte, error) {
	if el.Resource != nil {
		rs.nameBuffer = append(rs.nameBuffer[:0], el.Resource.FullName()...)
		return rs.nameBuffer, nil
	}
	if el.Decode != nil {
		return el.Name, nil
	}
	name, err := mirror.PeekName(kind, el.peek())
	if err == nil && len(name) == 0 {
		err = errNoName
	}
	return name, err
}

// IsMCP reports whether an element has the type whose name mirror.PeekName reads: each has but a MeshConfig.
func IsMCP(element []byte) bool {
	return bytes.HasSuffix(wire.Last(element, 1), []byte("/istio.mcp.v1alpha1.Resource"))
}
