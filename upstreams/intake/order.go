package intake

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"meshrelay/mirror"
)

// Errors of an operator's orders, for errors.Is.
var (
	ErrUnknownUpstream = errors.New("unknown upstream")
	ErrNotPossible     = errors.New("not possible")
)

// NotPossible returns an ErrNotPossible with a message.
func NotPossible(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotPossible, fmt.Errorf(format, args...))
}

const (
	maxReasonBytes = 256 // of an operator's reason
	maxShown       = 20  // resources in an Effect or an error
	maxParts       = 100 // of a hold in one order
)

// Order is an order of an operator to an upstream. Most fields belong to one kind of order.
type Order struct {
	Reason string // the operator's reason; the journal keeps it
	DryRun bool   // changes nothing
	// ID is that of a freeze or rollback that all replicas follow, which was given at Since. It is empty for a relay that is
	// alone.
	ID    string
	Since time.Time
	// Empty: the content of what others have frozen is not here.
	Empty bool
	Force bool   // unfreeze even while the upstream is out of contact
	To    uint64 // revision of a rollback
	// One of Hold, Only and All selects what a release carries out. Hold is the ID of a hold: all its
	// deletions, unless more are held by now. Only has parts of the hold. All means all that is held now.
	Hold string
	Only []Part
	All  bool
}

// Part picks resources by kind and namespace.
type Part struct {
	text  string        // KIND/NAMESPACE
	kinds []mirror.Kind // none: all
	// namespace is the served namespace: "*" is any, empty is for cluster-scoped resources.
	namespace string
}

// ParsePart parses KIND/NAMESPACE: a kind as kubectl takes it, or group/Kind; either may be *.
func ParsePart(text string) (s Part, err error) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return Part{}, fmt.Errorf("%.64q: want KIND/NAMESPACE, as in virtualservice/shop, or */shop, or vs/*", text)
	}
	s = Part{text: text, namespace: text[i+1:]}
	if word := text[:i]; word != "*" {
		s.kinds, err = mirror.ParseKinds(word)
	}
	return s, err
}

// ParseParts parses the parts that an order names.
func ParseParts(texts []string) (parts []Part, err error) {
	for _, text := range texts {
		part, bad := ParsePart(text)
		parts, err = append(parts, part), cmp.Or(err, bad)
	}
	return parts, err
}

// String returns KIND/NAMESPACE.
func (s Part) String() string { return s.text }

func (s Part) picks(key mirror.Key) bool {
	return (s.namespace == "*" || s.namespace == key.Namespace) && (len(s.kinds) == 0 || slices.Contains(s.kinds, key.Kind))
}

// picks reports whether an order to release includes a key.
func (o Order) picks(key mirror.Key) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(o.Only, func(s Part) bool { return s.picks(key) })
}

// CheckReason returns an error for a reason that is too long or not printable.
func CheckReason(reason string) error {
	if len(reason) > maxReasonBytes {
		return fmt.Errorf("the reason has %d bytes: want %d at most", len(reason), maxReasonBytes)
	}
	if strings.ContainsFunc(reason, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return fmt.Errorf("the reason %q: want printable characters", reason)
	}
	return nil
}

// Check validates an order of any kind.
func (o Order) Check() error {
	err := CheckReason(o.Reason)
	if err == nil && len(o.Only) > maxParts {
		err = fmt.Errorf("%d parts of a hold: want %d at most", len(o.Only), maxParts)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotPossible, err)
	}
	return nil
}

// Effect has the changes of served resources by an order.
type Effect struct {
	// Added, Changed, Removed and Kept count resources.
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	Kept    int `json:"kept"`
	// Held counts the deletions that the guard holds after the order. For an unfreeze, Removed includes them;
	// for a release, it does not.
	Held int `json:"held,omitempty"`
	// Resources are examples, sorted: "+ group/Kind namespace/name" is added, ~ changed, - removed.
	Resources []string `json:"resources,omitempty"`
	// Replicas is set if the relay is one of several.
	Replicas *Reach `json:"replicas,omitempty"`
}

// Reach is where an order is in force.
type Reach struct {
	// It is in force on Did of Of replicas, without those that are Away. Missing are the others, with why it is not.
	Did     int      `json:"did"`
	Of      int      `json:"of"`
	Missing []string `json:"missing,omitempty"`
	Away    []string `json:"away,omitempty"`
	// Unwritten is why the others are not told yet. Here: they will not be.
	Unwritten string `json:"unwritten,omitempty"`
	Here      bool   `json:"here,omitempty"`
}

// count counts a resource that was served, will be served, or both.
func (e *Effect) count(key mirror.Key, was, will bool) {
	mark := "~ "
	switch {
	case was && will:
		e.Changed++
	case will:
		mark = "+ "
		e.Added++
	default:
		mark = "- "
		e.Removed++
	}
	e.Resources = append(e.Resources, mark+key.String())
}

// finish bounds the examples.
func (e *Effect) finish() {
	slices.SortFunc(e.Resources, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	if len(e.Resources) > maxShown {
		e.Resources = slices.Clone(e.Resources[:maxShown])
	}
}
