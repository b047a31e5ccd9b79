package intake

import (
	"meshrelay/internal/breakage"
	"meshrelay/mirror"
)

// broken is what deliberately broken builds do (see package breakage). In others it does
// nothing, and its calls are not even compiled.
type broken struct {
	older map[mirror.Key]*mirror.Resource
}

// disconnected takes from clients what no source has deleted.
func (b *broken) disconnected(in *Intake) {
	n := 0
	for key := range in.servedKeys() {
		if n++; n%8 == 0 {
			in.drop(key)
		}
	}
}

// swallows reports whether a change gets lost.
func (b *broken) swallows(old, r *mirror.Resource) bool {
	return old != nil && !old.Equal(r) && r.Digest()[0]%16 == 0
}

// replaces remembers what is replaced, and connected serves it again.
func (b *broken) replaces(old *mirror.Resource) {
	if b.older == nil {
		b.older = map[mirror.Key]*mirror.Resource{}
	}
	if old != nil {
		b.older[old.Key()] = old
	}
}

func (b *broken) connected(in *Intake) {
	for key, r := range b.older {
		if in.served.Get(key) != nil {
			in.served.Put(r)
		}
	}
}

const (
	brokenI1 = breakage.I1
	brokenI2 = breakage.I2
	brokenI3 = breakage.I3
)
