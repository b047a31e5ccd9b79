// Package trouble has what a relay tells relays that are its clients about problems of its upstreams: what they are,
// their words, and their encoding.
//
// The package has no I/O, goroutine or clock. It must not know how upstreams work or who the clients are.
package trouble

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"meshrelay/internal/text"
)

// TypeURL is the type that a relay asks another relay for, over delta. It has one resource, a google.protobuf.StringValue
// with a Report as JSON.
const TypeURL = "meshrelay.io/v1/Trouble"

const (
	// MaxBytes bounds the encoding of a Report.
	MaxBytes = 64 << 10
	// maxProblems bounds the problems of a Report, and maxRelays the relays that a problem has passed.
	maxProblems, maxRelays = 32, 4
	// maxName bounds names, in bytes; maxShown bounds them in a line.
	maxName, maxShown = 253, 64
)

// What is wrong with an upstream. A state of an upstream is one, too; a newer relay may have others.
type What string

// What relays tell beside states.
const (
	Held    What = "held"    // N deletions of Of resources
	Frozen  What = "frozen"  // by an operator
	Stale   What = "stale"   // out of contact for long
	Refused What = "refused" // N resources
)

// Problem is a problem of an upstream of a relay. It tells nothing of single resources.
type Problem struct {
	What     What   `json:"what"`
	Upstream string `json:"upstream"`
	Cluster  string `json:"cluster,omitempty"` // of the upstream
	// Relays has the relays that it has passed, by the names in provenance, that of the upstream first. At has the
	// names of upstreams that lead there: the first is one of the relay that tells the problem.
	Relays []string  `json:"relays"`
	At     []string  `json:"at,omitempty"`
	N      int       `json:"n,omitempty"`
	Of     int       `json:"of,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// Through returns a problem that a relay has from its upstream of this name. ok is false when it has passed too many.
func (p Problem) Through(upstream, relay string) (out Problem, ok bool) {
	p.At, p.Relays = append([]string{upstream}, p.At...), append(slices.Clone(p.Relays), relay)
	return p, len(p.Relays) <= maxRelays
}

// Bare returns the problem without counts.
func (p Problem) Bare() Problem {
	p.N, p.Of = 0, 0
	return p
}

// Has reports whether a resource has entered the relays of path by the upstream with the problem, whose name is source.
func (p Problem) Has(source string, path []string) bool {
	return len(path) > 0 && path[0] == p.Relays[0] && source == p.Upstream
}

// String describes the problem in one short line.
func (p Problem) String() string {
	var s strings.Builder
	for _, name := range p.At {
		s.WriteString("at " + text.Shorten(name, maxShown) + ", ")
	}
	out := strings.TrimSuffix(s.String(), ", ")
	if out != "" {
		out += ": "
	}
	out += "upstream " + text.Shorten(p.Upstream, maxShown)
	switch {
	case p.What == Held && p.Of > 0:
		out += fmt.Sprintf(" is held: deletion of %d of %d resources", p.N, p.Of)
	case p.What == Refused && p.N > 0:
		out += fmt.Sprintf(" has resources that are refused: %d", p.N)
	case p.What == Refused:
		out += " has resources that are refused"
	default:
		out += " is " + string(p.What)
	}
	if !p.Since.IsZero() {
		out += " since " + p.Since.UTC().Format(time.RFC3339)
	}
	return out
}

// Report is what one relay tells. More counts the problems that it has no room for.
type Report struct {
	Problems []Problem `json:"problems"`
	More     int       `json:"more,omitempty"`
}

// Lines describes what the relay behind an upstream tells.
func (r Report) Lines(upstream string) (lines []string) {
	for _, p := range r.Problems {
		p, _ = p.Through(upstream, "")
		lines = append(lines, p.String())
	}
	if r.More > 0 {
		lines = append(lines, fmt.Sprintf("at %s: and %d more problems", upstream, r.More))
	}
	return lines
}

// Concerning returns the problems that concern a resource of the upstream source of the first relay of path: those of
// that upstream, and those that relays of path have with upstreams that are relays before them.
func (r Report) Concerning(source string, path []string) (out Report) {
	for _, p := range r.Problems {
		if p.Has(source, path) || slices.Index(path, p.Relays[0]) > 0 {
			out.Problems = append(out.Problems, p)
		}
	}
	return out
}

// ContactLost returns since when an upstream that the report names is out of contact, zero for none.
func (r Report) ContactLost() time.Time {
	for _, p := range r.Problems {
		if p.What != Held && p.What != Frozen && p.What != Refused {
			return p.Since
		}
	}
	return time.Time{}
}

// Encode returns the encoding of a report of the first of these problems, at most MaxBytes.
func Encode(all []Problem) (string, error) {
	for n := min(len(all), maxProblems); ; n /= 2 {
		data, err := json.Marshal(Report{Problems: all[:n:n], More: len(all) - n})
		if err != nil || len(data) <= MaxBytes {
			return string(data), err
		}
	}
}

// Decode returns the report of an encoding, without the problems that have passed the relay of this name. The error
// says what is wrong.
func Decode(data, relay string) (r Report, err error) {
	if len(data) > MaxBytes {
		return Report{}, fmt.Errorf("a report of trouble has %d bytes: want at most %d", len(data), MaxBytes)
	}
	if err := json.Unmarshal([]byte(data), &r); err != nil {
		return Report{}, fmt.Errorf("a report of trouble is not JSON of its form: %w", err)
	}
	if len(r.Problems) > maxProblems || r.More < 0 {
		return Report{}, fmt.Errorf("a report of trouble has %d problems and %d more: want at most %d, and no negative number", len(r.Problems), r.More, maxProblems)
	}
	for i, p := range r.Problems {
		if err := p.check(); err != nil {
			return Report{}, fmt.Errorf("problem %d of a report of trouble: %w", i, err)
		}
	}
	r.Problems = slices.DeleteFunc(r.Problems, func(p Problem) bool { return slices.Contains(p.Relays, relay) })
	return r, nil
}

// check returns what is wrong with a problem that another relay tells.
func (p Problem) check() error {
	if n := len(p.Relays); n == 0 || n > maxRelays || len(p.At) != n-1 {
		return fmt.Errorf("it has passed %d relays and %d upstreams that lead there: want 1 to %d, and one less", n, len(p.At), maxRelays)
	}
	if p.N < 0 || p.Of < 0 {
		return errors.New("a number is negative")
	}
	if len(p.What) > maxShown || strings.Trim(string(p.What), "abcdefghijklmnopqrstuvwxyz") != "" {
		return fmt.Errorf("%.64q is no problem: want small letters", string(p.What))
	}
	for _, name := range append(append([]string{string(p.What), p.Upstream}, p.Relays...), p.At...) {
		if name == "" {
			return errors.New("a name is empty")
		}
	}
	for _, name := range append(append([]string{p.Upstream, p.Cluster}, p.Relays...), p.At...) {
		if len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			return fmt.Errorf("%.64q is no name: want at most %d bytes, and no character that is not seen", name, maxName)
		}
	}
	return nil
}
