package intake

import (
	"errors"
	"fmt"
	"strings"

	"meshrelay/mirror"
)

// overLimit begins what is told of what is refused by limits.
const overLimit = "over the limit: "

func isOverLimit(reason string) bool { return strings.HasPrefix(reason, overLimit) }

var (
	// errFull tells that there is no room for what is new.
	errFull = errors.New("the upstream has more than")
	// errHeldFull tells why what is new is refused while deletions are held.
	errHeldFull = fmt.Errorf("%w limits.maxResources or limits.maxBytes, twice, with the deletions that its guard holds", errFull)
)

// room returns an error when an element is larger than the limits allow, or there is no room for
// it. What is held already stays. rec is nil for a new name.
func (in *Intake) room(sc *scope, rec *record, name []byte, size int) error {
	l := in.limits
	if len(name) > maxKeptName {
		return fmt.Errorf("the name has %d characters: want %d at most", len(name), maxKeptName)
	}
	if in.tooLarge(size) {
		return fmt.Errorf(overLimit+"%d bytes, and limits.maxResourceBytes of the upstream is %d", size, l.MaxResourceBytes)
	}
	held := 0
	if rec != nil {
		held = rec.size()
	}
	if held == 0 && l.MaxResources > 0 && in.resources >= l.MaxResources {
		return fmt.Errorf(overLimit+"%w limits.maxResources, which is %d", errFull, l.MaxResources)
	}
	if l.MaxBytes > 0 && size > held && in.bytes+size-held > l.MaxBytes {
		return fmt.Errorf(overLimit+"%w limits.maxBytes, which is %d", errFull, l.MaxBytes)
	}
	if held == 0 && len(in.leaving) > 0 {
		return in.roomBesideHeld(sc.Kind, string(name), size)
	}
	return nil
}

// tooLarge reports whether an element of so many bytes is over the limit, also where it is held already.
func (in *Intake) tooLarge(size int) bool {
	return in.limits.MaxResourceBytes > 0 && size > in.limits.MaxResourceBytes
}

// roomBesideHeld returns an error when a source has so much that with the deletions that wait it
// would be more than twice its limits. Else a source whose names come and go would have the relay
// hold them without end.
func (in *Intake) roomBesideHeld(kind mirror.Kind, name string, size int) error {
	original, ok := keyOf(kind, name)
	if !ok {
		return nil
	}
	if _, returns := in.leaving[in.rules.keyOf(original)]; returns {
		return nil
	}
	l := in.limits
	if l.MaxResources > 0 && in.resources+len(in.leaving) >= 2*l.MaxResources || l.MaxBytes > 0 && in.bytes+size+in.leavingBytes > 2*l.MaxBytes {
		return fmt.Errorf(overLimit+"%w: see \"relay held %s\"", errHeldFull, in.name)
	}
	return nil
}
