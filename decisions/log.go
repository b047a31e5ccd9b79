package decisions

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// MaxBytes bounds the text of a Log.
	MaxBytes   = 256 << 10
	maxRecords = 500
)

// Log is the newest records, and the fold of all before them. It is immutable.
type Log struct {
	base    State // without the records
	records []Record
	state   State // with the records
}

// State returns the fold of all records.
func (l Log) State() State { return l.state }

// Records returns the newest records, oldest first. The slice is read-only.
func (l Log) Records() []Record { return l.records }

// Has reports whether a record with this ID is one of the newest.
func (l Log) Has(id string) bool {
	return slices.ContainsFunc(l.records, func(r Record) bool { return r.ID == id })
}

// Since returns the records after a sequence number. ok is false if some of them are folded already.
func (l Log) Since(sequence uint64) (records []Record, ok bool) {
	i := slices.IndexFunc(l.records, func(r Record) bool { return r.Sequence > sequence })
	if i < 0 {
		i = len(l.records)
	}
	return l.records[i:], l.base.Sequence <= sequence
}

// Append returns the Log with one more record, which gets the next sequence number. A record without ID, or
// that the Log has already, changes nothing. The error wraps ErrRefused if the record does not fit.
func (l Log) Append(r Record) (Log, error) {
	if r.ID == "" || l.Has(r.ID) {
		return l, nil
	}
	if err := r.check(); err != nil {
		return l, fmt.Errorf("upstream %.64s: %.32s is %w: %w", r.Upstream, r.Kind, ErrRefused, err)
	}
	if err := l.state.Refuses(r); err != nil {
		return l, err
	}
	return l.add(r)
}

func (l Log) add(r Record) (Log, error) {
	if r.Sequence = l.state.Sequence + 1; r.Sequence > maxSequence {
		return l, fmt.Errorf("the log of decisions is at its last sequence number: delete it while no replica runs, and decide again")
	}
	next := Log{l.base, append(slices.Clone(l.records), r), l.state.With(r)}
	return next, next.bound()
}

// Follows reports whether the Log has all of a former one. One that was restored, or begun anew, has not.
func (l Log) Follows(former Log) bool {
	n := len(former.records)
	return l.base.Sequence >= former.state.Sequence || n > 0 && l.Has(former.records[n-1].ID)
}

// With returns the Log with those records of another one that it does not have. They get new sequence numbers. One that
// does not fit any more has no effect, and is there, so that the Log follows both. Those before the first one that both
// have are not new if they are folded here.
func (l Log) With(other Log) Log {
	first, folded := slices.IndexFunc(other.records, func(r Record) bool { return l.Has(r.ID) }), l.base.Sequence
	for i, r := range other.records {
		isNew := !l.Has(r.ID) && (i >= first || r.Sequence > folded)
		if next, err := l.add(r); err == nil && isNew {
			l = next
		}
	}
	return l
}

// bound folds the oldest records until the rest is small enough.
func (l *Log) bound() error {
	for n := len(l.records) - maxRecords; ; n = (len(l.records) + 7) / 8 {
		if n > 0 {
			l.base.Upstreams = maps.Clone(l.base.Upstreams)
			for _, r := range l.records[:n] {
				l.base.fold(r)
			}
			l.records = l.records[n:]
		}
		switch {
		case len(l.Encode()) <= MaxBytes:
			return nil
		case len(l.records) > 0:
		case l.base.forget():
			l.state = l.base
		default:
			return fmt.Errorf("the log of decisions is full with the decisions about %d upstreams: unfreeze some, or release what is held", len(l.base.Upstreams))
		}
	}
}

// forget drops what was released, and reports whether there was any.
func (s *State) forget() (any bool) {
	for name, u := range s.Upstreams {
		any = any || len(u.Released) > 0
		if u.Released = nil; u.isEmpty() {
			delete(s.Upstreams, name)
			continue
		}
		s.Upstreams[name] = u
	}
	return any
}

// Encode returns the text of a Log: a line for the fold of the older records, and one for each newer record.
func (l Log) Encode() string {
	var lines strings.Builder
	enc := json.NewEncoder(&lines)
	_ = enc.Encode(l.base) // it has only texts and numbers
	for _, r := range l.records {
		_ = enc.Encode(r) // likewise
	}
	return lines.String()
}

// ErrNoLog is wrapped by the errors of Decode.
var ErrNoLog = errors.New("it has no log of decisions")

// Decode parses the text of a Log, which anybody may have edited. Records of unknown kinds stay, without an effect: a newer
// release may have appended them. An empty text is a Log without records.
func Decode(text string) (l Log, err error) {
	if len(text) > MaxBytes {
		return Log{}, fmt.Errorf("%w: %d bytes: want %d at most", ErrNoLog, len(text), MaxBytes)
	}
	if text == "" {
		return Log{}, nil
	}
	lines := json.NewDecoder(strings.NewReader(text))
	if err = lines.Decode(&l.base); err == nil {
		err = l.base.check()
	}
	last := l.base.Sequence
	for err == nil && lines.More() {
		var r Record
		if err = lines.Decode(&r); err == nil {
			err = r.check()
		}
		if err == nil && (r.Sequence <= last || r.Sequence > maxSequence || l.Has(r.ID)) {
			err = fmt.Errorf("its sequence number %d or its ID is no new one", r.Sequence)
		}
		last = r.Sequence
		l.records = append(l.records, r)
	}
	if err != nil {
		return Log{}, fmt.Errorf("%w: line %d: %.300s", ErrNoLog, len(l.records)+1, err.Error())
	}
	l.state = l.base
	l.state.Upstreams = maps.Clone(l.base.Upstreams)
	for _, r := range l.records {
		l.state.fold(r)
	}
	return l, nil
}

// check returns an error for a State that no replica writes.
func (s *State) check() error {
	if s.Sequence > maxSequence {
		return fmt.Errorf("the sequence number is %d: want %d at most", s.Sequence, uint64(maxSequence))
	}
	for name, u := range s.Upstreams {
		parts := []*Record{u.Frozen, u.Without, u.Hold}
		for i := range u.Released {
			parts = append(parts, &u.Released[i])
		}
		for _, r := range parts {
			if r == nil {
				continue
			}
			switch err := r.check(); {
			case err != nil:
				return fmt.Errorf("upstream %.64q: %w", name, err)
			case r.Upstream != name || r.Sequence > s.Sequence:
				return fmt.Errorf("upstream %.64q has a decision %d about %.64q", name, r.Sequence, r.Upstream)
			}
		}
	}
	return nil
}
