package state

import (
	"errors"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// servedKey is where a file tells whether clients were ever served with it. Files of earlier
// builds do not have it, and those builds pass over it.
const servedKey = "served"

const servedField = 1

// servedMark is what a file tells under servedKey.
type servedMark struct {
	// known is false of a file that does not have the key.
	known, served bool
}

func appendServed(b []byte, served bool) []byte {
	return appendNumber(b, servedField, numberOf(served))
}

func parseServed(b []byte) (m servedMark, err error) {
	m.known = true
	err = fields(b, skip, func(num protowire.Number, v uint64) {
		if num == servedField {
			m.served = v != 0
		}
	})
	return m, err
}

// putServed writes the mark.
func putServed(tx *bbolt.Tx, served bool) error {
	top := tx.Bucket([]byte(topBucket))
	if top == nil {
		return errors.New("it says nothing of its format")
	}
	value := appendServed(make([]byte, sumLen), served)
	seal([]byte(servedKey), value)
	return top.Put([]byte(servedKey), value)
}

// hasServed reports whether clients were served with a file. Of a file without the mark, a
// synced source shows it: builds that do not write the mark served as soon as one had synced.
func (c *contents) hasServed() bool {
	if c.mark.known {
		return c.mark.served
	}
	for _, s := range c.sources {
		if s.meta.Synced {
			return true
		}
	}
	return false
}

// stillServed is hasServed for what could be saved of a damaged file: true only when no
// source is lost. What is lost would otherwise be taken for a source that is new.
func (c *contents) stillServed() bool {
	var whole roster
	for name := range c.sources {
		whole.add([]byte(name))
	}
	return len(c.sources) > 0 && whole == c.written && c.hasServed()
}

// Served reports whether clients were ever served with this state: by this process, or by a
// former one.
func (k *Keeper) Served() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.served
}

// MarkServed notes that clients are served. The next flush writes it.
func (k *Keeper) MarkServed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served = true
}

// markDue reports whether the file has yet to be told whether clients were served, and what
// it is to be told.
func (k *Keeper) markDue() (due, served bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mark != servedMark{true, k.served}, k.served
}
