package main

import (
	"encoding/binary"
	"hash/fnv"
	"time"
)

const (
	// meshConfig is the type that the first upstream of the scenario "silence" never answers.
	meshConfig = "core/v1alpha1/MeshConfig"
	// firstSilence is for how long upstreams are silent about some types when the stage starts. After 10 s a
	// relay takes these for types that are not offered, where xds.partial is set.
	firstSilence = 13 * time.Second
)

// silence is the types that an upstream gives no answer for: about half of all, which follow from its number.
// Zero is none.
type silence uint64

func (s silence) covers(typeURL string) bool {
	if s == 0 {
		return false
	}
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(s))) // which never fails
	h.Write([]byte(typeURL))                                  // nor does this
	return h.Sum64()>>32&1 == 0
}

// silenceFaults are streams that are not answered for some types. At the end the same stream is answered, or the
// next one.
func silenceFaults() map[string]faultKind {
	begin := func(st *stage, u *upstream, f *fault, kind, until string) error {
		st.journal.fault(kind, "upstream %s: restarts and is silent about some types, for %v, until %s", u.name, f.lasts.Round(time.Millisecond), until)
		u.restart(func(m *mood) { m.silent = silence(1 + f.dice[0]) })
		return nil
	}
	speak := func(m *mood) { m.silent = 0 }
	late := onUpstream(0, func(st *stage, u *upstream, f *fault) error {
		return begin(st, u, f, "late", "it answers them, too")
	}, func(_ *stage, u *upstream, _ *fault) error { u.feel(speak); return nil })
	never := onUpstream(0, func(st *stage, u *upstream, f *fault) error {
		return begin(st, u, f, "silence", "its next stream")
	}, func(_ *stage, u *upstream, _ *fault) error { u.restart(speak); return nil })
	// After 10 s silence may count.
	late.most, never.least, never.most = 15*time.Second, 11*time.Second, 15*time.Second
	return map[string]faultKind{"late": late, "silence": never}
}

// beSilent makes the upstreams silent about some types from the start: the first, which is not partial, about
// MeshConfig alone and for ever.
func (st *stage) beSilent(dice uint64) {
	for n, u := range st.upstreams {
		if n == 0 {
			u.never = meshConfig
		} else {
			u.mood.silent = silence(dice + uint64(n))
		}
	}
}

// speak has all upstreams answer everything, except what one never answers.
func (st *stage) speak() {
	for _, u := range st.upstreams {
		u.feel(func(m *mood) { m.silent = 0 })
	}
}
