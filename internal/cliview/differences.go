package cliview

import "meshrelay/internal/kube"

// maxDifferences bounds the differences that a command prints, in bytes, unless all are wanted. There is a
// table beside them, and a terminal takes 100 KB.
const maxDifferences = 60_000

// Diffs is which differences are printed.
type Diffs int

// The choices.
const (
	NoDiffs   Diffs = iota
	SomeDiffs       // as many as a person reads
	AllDiffs
)

// differences are texts of differences, one below the other.
type differences struct {
	page
	wanted Diffs
	left   int
}

// add adds the difference of two objects, either of which may be nil, if there is room.
func (d *differences) add(oldName string, old *kube.Object, newName string, cur *kube.Object) {
	switch {
	case d.wanted == NoDiffs:
		return
	case d.left > 0:
		d.left++
		return
	}
	text := difference(oldName, old, newName, cur)
	if d.wanted == SomeDiffs && d.Len()+len(text) > maxDifferences {
		d.left++
		return
	}
	d.WriteString(text)
}

// rest tells what was left out, and how to see it.
func (d *differences) rest() string {
	if d.left == 0 {
		return ""
	}
	return "\nleft out: " + Count(d.left, "more difference") + "; --limit 0 prints all\n"
}
