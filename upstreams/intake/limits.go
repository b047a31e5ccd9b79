package intake

import (
	"errors"
	"fmt"
	"strings"

	"meshrelay/mirror"
)

// overLimit begins the reason of a refusal by the limits.
const overLimit = "over the limit: "

func isOverLimit(reason string) bool { return strings.HasPrefix(reason, overLimit) }

var (
	// errFull is the error of a new resource without room.
	errFull = errors.New("the upstream has more than")
	// errHeldFull is the same while deletions are held.
	errHeldFull = fmt.Errorf("%w twice limits.maxResources or limits.maxBytes, with the deletions that its guard holds", errFull)
)

// room returns an error when an element exceeds the limits. What is held stays. rec is nil for a
// new name.
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

// tooLarge reports whether an element of this size is over the limit, which also counts for held
// content.
func (in *Intake) tooLarge(size int) bool {
	return in.limits.MaxResourceBytes > 0 && size > in.limits.MaxResourceBytes
}

// roomBesideHeld returns an error when the records and the waiting deletions together are more than
// twice the limits: names that come and go must not fill the memory.
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
