package decisions

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// MaxBytes bounds the texts of a Log.
	MaxBytes    = 256 << 10
	maxRecords  = 500
	maxProblems = 10
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

// Append returns the Log with one more record, which gets the next sequence number. A record that the Log has already
// changes nothing. The error wraps ErrRefused if the record does not fit.
func (l Log) Append(r Record) (Log, error) {
	if l.Has(r.ID) {
		return l, nil
	}
	if err := r.check(); err != nil {
		return l, fmt.Errorf("upstream %.64s: %.32s is %w: %w", r.Upstream, r.Kind, ErrRefused, err)
	}
	if err := l.state.Refuses(r); err != nil {
		return l, err
	}
	if r.Sequence = l.state.Sequence + 1; r.Sequence > maxSequence {
		return l, fmt.Errorf("the log of decisions is at its last sequence number: delete it while no replica runs, and decide again")
	}
	next := Log{l.base, append(slices.Clone(l.records), r), l.state.With(r)}
	return next, next.bound()
}

// With returns the Log with those records of another one that it does not have. They get new sequence numbers.
func (l Log) With(other Log) Log {
	for _, r := range other.records {
		if next, err := l.Append(r); err == nil {
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
		state, records := l.Encode()
		switch {
		case len(state)+len(records) <= MaxBytes:
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

// Encode returns the texts of a Log: the fold of the older records, and a line for each newer record.
func (l Log) Encode() (state, records string) {
	b, _ := json.Marshal(l.base) // it has only texts and numbers
	var lines strings.Builder
	enc := json.NewEncoder(&lines)
	for _, r := range l.records {
		_ = enc.Encode(r) // likewise
	}
	return string(b), lines.String()
}

// Decode parses the texts of a Log, which anybody may have edited. It passes over records that it can not use, keeps
// those of unknown kinds without an effect, and returns a line for each, at most ten. The error is about the whole Log.
func Decode(state, records string) (l Log, problems []string, err error) {
	if n := len(state) + len(records); n > MaxBytes {
		return l, nil, fmt.Errorf("the log of decisions has %d bytes: want %d at most", n, MaxBytes)
	}
	problem := func(format string, args ...any) {
		if len(problems) < maxProblems {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	if state != "" {
		if err := json.Unmarshal([]byte(state), &l.base); err != nil {
			return Log{}, nil, fmt.Errorf("the state of the log of decisions: %.300v", err)
		}
	}
	if l.base.Sequence > maxSequence {
		return Log{}, nil, fmt.Errorf("the state of the log of decisions has the sequence number %d: want %d at most", l.base.Sequence, uint64(maxSequence))
	}
	l.base.mend(problem)
	last, seen := l.base.Sequence, map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(records))
	lines.Buffer(nil, MaxBytes+1)
	for n := 1; lines.Scan(); n++ {
		var r Record
		err := json.Unmarshal(lines.Bytes(), &r)
		if err == nil {
			err = r.check()
		}
		switch {
		case len(strings.TrimSpace(lines.Text())) == 0:
		case err != nil:
			problem("line %d of the log of decisions is passed over: %.300v", n, err)
		case r.Sequence <= last || r.Sequence > maxSequence || seen[r.ID]:
			problem("line %d of the log of decisions is passed over: its sequence number %d or its ID is no new one", n, r.Sequence)
		default:
			if !slices.Contains(Kinds(), r.Kind) {
				problem("line %d of the log of decisions has no effect here: the kind %.32q is unknown: a newer release may have appended it", n, r.Kind)
			}
			last, seen[r.ID] = r.Sequence, true
			l.records = append(l.records, r)
		}
	}
	l.state = l.base
	l.state.Upstreams = maps.Clone(l.base.Upstreams)
	for _, r := range l.records {
		l.state.fold(r)
	}
	return l, problems, nil
}

// mend removes what no replica has written.
func (s *State) mend(problem func(string, ...any)) {
	for name, u := range s.Upstreams {
		for _, p := range []struct {
			part  **Record
			kinds []Kind
		}{{&u.Frozen, []Kind{Freeze, Rollback}}, {&u.Without, []Kind{ServeWithout}}, {&u.Hold, []Kind{Hold}}} {
			r := *p.part
			if r == nil {
				continue
			}
			err := r.check()
			if err == nil && (r.Upstream != name || !slices.Contains(p.kinds, r.Kind) || r.Sequence > s.Sequence) {
				err = fmt.Errorf("it is a record %s of upstream %.64q with the sequence number %d", r.Kind, r.Upstream, r.Sequence)
			}
			if err != nil {
				problem("a decision about upstream %.64q in the state of the log of decisions is passed over: %v", name, err)
				*p.part = nil
			}
		}
		u.Released = slices.DeleteFunc(u.Released, func(one Released) bool {
			r := Record{ID: "-", Kind: one.Kind, Upstream: name, Who: one.Who, Reason: one.Reason, Content: one.Content, Number: one.Number, Parts: one.Parts, Ends: "-"}
			return r.check() != nil || one.Sequence > s.Sequence || one.Content == ""
		})
		u.Released = u.Released[max(0, len(u.Released)-maxReleased):]
		if s.Upstreams[name] = u; u.isEmpty() {
			delete(s.Upstreams, name)
		}
	}
}
