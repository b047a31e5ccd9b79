// Package decisions has the decisions on which the replicas of a relay agree: orders of people about upstreams, and the
// holds of guards with their ends. They are records of a log, and every replica folds the same log to the same State.
//
// The package must not do I/O, start goroutines or read clocks. It must not know how a log is kept, or what an upstream
// has.
package decisions

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Kind is the kind of a Record.
type Kind string

// Kinds of records. Those of people are first.
const (
	Freeze       Kind = "freeze"
	Unfreeze     Kind = "unfreeze" // also the end of a freeze whose time is over
	Release      Kind = "release"
	Rollback     Kind = "rollback"
	ServeWithout Kind = "serve-without"
	Synced       Kind = "synced" // the end of serve-without
	Hold         Kind = "hold"
	Returned     Kind = "returned" // the upstream has the held resources again
	Over         Kind = "over"     // the time of the hold is over, and the upstream has repeated the deletions
)

// Freezes reports whether the record begins or ends a freeze.
func (k Kind) Freezes() bool { return k == Freeze || k == Unfreeze || k == Rollback }

// Record is one decision about an upstream. It is immutable.
type Record struct {
	// Sequence is set by Log.Append. It grows by one.
	Sequence uint64 `json:"seq"`
	// ID is random. An append whose answer was lost finds its record by it.
	ID       string `json:"id"`
	Kind     Kind   `json:"kind"`
	Upstream string `json:"upstream"`
	// Who is the person, empty for a guard. Replica has appended the record.
	Who     string `json:"who,omitempty"`
	Replica string `json:"replica"`
	Reason  string `json:"reason,omitempty"`
	// When is for people. Nothing compares it.
	When time.Time `json:"when,omitzero"`
	// Ends is the ID of the record that this one ends: a hold, a freeze, or the order to serve without.
	Ends string `json:"ends,omitempty"`
	// Content identifies what is held, let go, frozen, or rolled back to. Number counts its deletions or resources.
	Content string `json:"content,omitempty"`
	Number  int    `json:"number,omitempty"`
	// Parts are those parts of Content that a release is about, as KIND/NAMESPACE. Empty: all.
	Parts []string `json:"parts,omitempty"`
	// Seconds is the duration of a freeze, 0 without an end.
	Seconds int64 `json:"seconds,omitempty"`
}

const (
	maxID       = 64
	maxName     = 253
	maxReason   = 256 // bytes, as intake.CheckReason
	maxParts    = 100
	maxRecord   = 8 << 10 // bytes of a record
	maxNumber   = 1 << 40
	maxSequence = 1 << 53 // other programs read numbers of JSON as floats
)

// check returns an error for a record that no replica appends. A newer release may append other kinds.
func (r *Record) check() error {
	size := 0
	for _, text := range append([]string{r.ID, r.Upstream, r.Who, r.Replica, r.Reason, r.Ends, r.Content, string(r.Kind)}, r.Parts...) {
		size += len(text)
		if strings.ContainsFunc(text, func(c rune) bool { return c == unicode.ReplacementChar || !unicode.IsPrint(c) }) {
			return fmt.Errorf("%.64q is not printable", text)
		}
	}
	needsEnds := r.Kind == Returned || r.Kind == Over || r.Kind == Synced
	needsContent := r.Kind == Hold || r.Kind == Rollback || r.Kind == Over
	switch {
	case r.Kind == "" || len(r.Kind) > maxID:
		return fmt.Errorf("the kind has %d bytes: want 1 to %d", len(r.Kind), maxID)
	case r.ID == "" || len(r.ID) > maxID:
		return fmt.Errorf("the ID has %d bytes: want 1 to %d", len(r.ID), maxID)
	case r.Upstream == "" || len(r.Upstream) > maxName || len(r.Replica) > maxName || len(r.Who) > maxName:
		return fmt.Errorf("a name is empty or has more than %d bytes", maxName)
	case len(r.Reason) > maxReason || len(r.Content) > maxID || len(r.Ends) > maxID || len(r.Parts) > maxParts || size > maxRecord/2:
		return fmt.Errorf("it is too long: %d bytes and %d parts", size, len(r.Parts))
	case r.Number < 0 || r.Number > maxNumber || r.Seconds < 0 || r.Seconds > int64(366*24*time.Hour/time.Second):
		return fmt.Errorf("number %d or seconds %d is out of range", r.Number, r.Seconds)
	case needsEnds && r.Ends == "":
		return fmt.Errorf("ends is missing: a record %s names what it ends", r.Kind)
	case needsContent && r.Content == "":
		return fmt.Errorf("content is missing: a record %s needs it", r.Kind)
	}
	return nil
}
