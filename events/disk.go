package events

import "encoding/json"

// line is one line of the journal on disk: an event, or its later stages.
type line struct {
	Event  *Event  `json:"event,omitempty"`
	Of     uint64  `json:"of,omitempty"`
	Stages *Stages `json:"stages,omitempty"`
}

// taken is the state before Take, until Done.
type taken struct {
	saved uint64
	late  []*Event
}

// Load adds the lines of a disk, the oldest first. Call it before any Record. It returns the number
// of lines that it could not read.
func (j *Journal) Load(lines [][]byte) (bad int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.book
	newest := uint64(0)
	for _, text := range lines {
		var l line
		if json.Unmarshal(text, &l) != nil {
			bad++
			continue
		}
		switch e := l.Event; {
		case e != nil && e.Seq > newest: // else it was written twice
			newest = e.Seq
			b.put(e)
		case e == nil && l.Stages != nil:
			if i := b.after(l.Of - 1); l.Of > 0 && i < b.n && b.at(i).Seq == l.Of {
				b.at(i).Stages = l.Stages
			}
		}
	}
	b.last = max(b.last, newest)
	b.saved = b.last
	return bad
}

// maxTaken is about how many bytes Take returns at most. Take blocks Record while it runs.
const maxTaken = 256 << 10

// Take returns the oldest lines that are not on disk, each with a line feed, or nothing. Call Done
// after it.
func (j *Journal) Take() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.book
	j.taken = taken{b.saved, b.late}
	saved := b.last
	var out []byte
	add := func(l line) {
		text, err := json.Marshal(l)
		if err == nil { // always: no field fails
			out = append(append(out, text...), '\n')
		}
	}
	for i := b.after(b.saved); i < b.n; i++ {
		if len(out) >= maxTaken {
			saved = b.at(i).Seq - 1
			break
		}
		add(line{Event: b.at(i)})
	}
	for _, e := range b.late {
		add(line{Of: e.Seq, Stages: e.Stages})
	}
	b.saved, b.late = saved, nil
	return out
}

// Done reports whether the disk has what Take returned. Otherwise Take returns it again.
func (j *Journal) Done(kept bool) {
	if kept {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.book
	b.saved = j.taken.saved
	for _, e := range j.taken.late {
		if len(b.late) < maxSettled {
			b.late = append(b.late, e)
		}
	}
}
