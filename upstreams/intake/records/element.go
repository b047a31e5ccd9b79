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

// Element is what a source says of one resource. It is one of five:
//   - bytes: Raw, or Head alone if they are more than the limit;
//   - a resource;
//   - left out: Err is a LeftOutError;
//   - refused: Err is any other error, also a panic of what has decoded it;
//   - unchanged: Records.Holds is true of it. If its content is gone by now, Result.Relist is set.
//
// Its bytes are valid until the next element.
type Element struct {
	// Raw is an encoded google.protobuf.Any. Head has the short fields of one that is too large.
	Raw, Head []byte
	Mark      uint64 // of Raw: see Update.Marks

	Resource *mirror.Resource // without a stamp
	Way      mirror.Way       // of Resource, if its author may have copied it from a relay
	Lacks    bool             // fields of the content are not in Resource: the next source decodes it again
	Err      error

	// Name and Version are those of the protocol; with Raw, it need not have them.
	Name, Version []byte
	// Size is the length of Raw, or about that of the resource.
	Size int
	// Digest is that of the content in the source's own encoding; zero for bytes.
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

// LeftOutError is the error of a resource that the source leaves out. Without a Reason, its workload is unhealthy.
type LeftOutError struct{ Reason, Detail string }

// Error implements error.
func (o *LeftOutError) Error() string { return o.Detail }

// Resources returns decoded resources as Update.Elements.
func Resources(all ...*mirror.Resource) func(int, Known) iter.Seq[Element] {
	var text []byte
	return Elements(all, func(r *mirror.Resource) Element {
		text = append(append(text[:0], r.FullName()...), r.SourceVersion()...)
		n := len(r.FullName())
		return Element{Resource: r, Name: text[:n], Version: text[n:], Size: len(r.DeltaEntry()), Digest: hashOf(r.Digest())}
	})
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
	// Relist: the source should send everything again. There may now be room for elements of earlier parts of a
	// complete answer, or the content of an unchanged element is gone.
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

func (el *Element) isBytes() bool { return el.Digest == xxh3.Uint128{} }

func (el *Element) peek() []byte {
	if el.Head != nil {
		return el.Head
	}
	return el.Raw
}

func (el *Element) hash() xxh3.Uint128 {
	if el.isBytes() {
		return xxh3.Hash128(el.Raw)
	}
	return el.Digest
}

func (el *Element) size() int { return max(el.Size, len(el.Raw)) }

// peekName returns the name of an element. An empty name is an error: it may be the rest of any.
func peekName(kind mirror.Kind, el *Element) ([]byte, error) {
	if !el.isBytes() {
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
