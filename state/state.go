// Package state keeps on disk what each upstream gave: the last known good content, with
// versions and times, the changes that led to it, and what operators have decided.
//
// The package owns the file and its format. It must not know what an upstream is, nor how
// content is merged or served.
package state

import (
	"time"

	"meshrelay/mirror"
)

// Record is one resource in force of a source.
type Record struct {
	// Resource is as it is held and served.
	Resource *mirror.Resource
	// Original is as the source has it; nil when nothing was reshaped.
	Original *mirror.Resource
	// TypeURL is the type under which the source gave it, empty for a file.
	TypeURL string
	// Version is the one that the source's protocol gave, empty when it gave none.
	Version string
	// Hash is of the element as received, zero when unknown.
	Hash [16]byte
	// At is when the content came, in whole seconds.
	At time.Time
}

// Meta is what is known of a source besides its resources.
type Meta struct {
	// Synced says that the records were, at one time, all that the source had.
	Synced bool
	// LastContact is when the source was last known to say all that it has.
	LastContact time.Time
	// Whole says that the changes that come with this are all that the source has: what is
	// kept besides goes. It is not kept itself.
	Whole bool
	// By says what has led to the changes that come with this, besides the source's own word;
	// empty when that alone has. It is kept with the revision.
	By string
	// HeldSince is since when deletions of the source are held back, zero when none are.
	HeldSince time.Time
	// Held is how many of them there are.
	Held int
	// HeldRan is for how much of that time the source was in contact, so that the guard's
	// holdFor ran.
	HeldRan time.Duration
	// Frozen is set while an operator holds the source as it is.
	Frozen *Frozen
	// ServeWithout is since when clients do not wait for the source because an operator ended
	// that, zero when nobody did. It ends when the source has synced.
	ServeWithout time.Time
	// Fingerprint is of the settings that the records depend on: when those change, the
	// records are to be made anew.
	Fingerprint string
}

// Frozen says since when a source is held as it is, and in which state.
type Frozen struct {
	Since time.Time `json:"since"`
	// Revision is what the source was rolled back to, 0 when it was frozen as it was.
	Revision uint64 `json:"revision,omitempty"`
	// Until is when the source is to be followed again, zero for when somebody asks for it.
	Until time.Time `json:"until,omitzero"`
	// Reason is the operator's, empty when none was given.
	Reason string `json:"reason,omitempty"`
}

// Change is one key of a source, and its record, nil when the key is gone.
type Change struct {
	Key    mirror.Key
	Record *Record
}

// Source is what a Keeper follows. Its methods are called by one goroutine at a time, those
// of Run and Flush.
//
// A Source that also has a method MarkAll() is asked by it to have everything that it has
// among the next changes: that is how a file that was lost while the Keeper ran is made
// anew.
type Source interface {
	// TakeChanges returns what has changed since the last call, all as of one instant,
	// and the present Meta. Each key comes once. The first call returns what has changed
	// against what Load gave for the source, or everything when Load was not asked.
	TakeChanges() ([]Change, Meta)
	// GiveBack says that changes could not be written: their keys are to be among the
	// next.
	GiveBack([]Change)
}

// Saved is what is kept of a source.
type Saved struct {
	Meta    Meta
	Records []Record
	// Revision is the newest one, 0 when there is none.
	Revision uint64
}

// Revision is a state that a source was in, and how it differs from the one before.
type Revision struct {
	ID   uint64    `json:"id"`
	Time time.Time `json:"time"`
	// Added, Changed and Removed count resources; Resources is how many there were then.
	Added     int `json:"added"`
	Changed   int `json:"changed"`
	Removed   int `json:"removed"`
	Resources int `json:"resources"`
	// By says what has made the difference, if not the source's own word alone: "rollback to
	// 17", "release".
	By string `json:"by,omitempty"`
	// Keys names some of them, as "group/Kind namespace/name", with +, ~ or - before it.
	Keys []string `json:"keys,omitempty"`
}
