package local

import (
	"bytes"
	"fmt"
	"io"

	"meshrelay/state"
)

// WriteCopy writes the content of an upstream as a log without history, for another replica.
func WriteCopy(to io.Writer, name string, saved state.Saved) error {
	b := state.Batch{Meta: saved.Meta}
	for i := range saved.Records {
		b.Changes = append(b.Changes, state.Change{Key: saved.Records[i].Resource.Key(), Record: &saved.Records[i]})
	}
	if _, err := to.Write(encodeHead(0)); err != nil {
		return err
	}
	w := newWriter(newUpstream(name, nil), inOrder{to})
	if _, err := w.batch(&b); err != nil {
		return err
	}
	return w.flush()
}

// inOrder is an io.WriterAt for a writer that writes one part after the other.
type inOrder struct{ io.Writer }

func (w inOrder) WriteAt(p []byte, _ int64) (int, error) { return w.Write(p) }

// ReadCopy reads what WriteCopy has written. It refuses a copy that is damaged or cut off, that has more than most
// resources, or resources of another upstream. Resources that do not decode are in Unusable, as those of Load.
func ReadCopy(b []byte, name string, most int) (state.Saved, error) {
	r := &reader{from: bytes.NewReader(b), size: int64(len(b))}
	for at, n := int64(headLen), 0; at < r.size; n++ { // before anything is kept of it
		f, err := r.frame(at)
		if err != nil {
			return state.Saved{}, err
		}
		if n > most {
			return state.Saved{}, fmt.Errorf("it has more than %d resources, the limit of the upstream (limits.maxResources)", most)
		}
		at += int64(f.size)
	}
	u := readUpstream(name, r.from, r.size)
	switch {
	case u.damage != nil:
		return state.Saved{}, u.damage
	case u.end != r.size || u.end == headLen:
		return state.Saved{}, corruptf("it is cut off")
	}
	saved, err := u.load(u.inOrder())
	if err != nil {
		return state.Saved{}, err
	}
	for _, record := range saved.Records {
		if record.Resource.Source() != name || record.Original != nil && record.Original.Source() != name {
			return state.Saved{}, corruptf("%s is of upstream %.63q", record.Resource.Key(), record.Resource.Source())
		}
	}
	saved.Revision = 0
	return saved, nil
}
