// Package state keeps the resources of each upstream beyond the process: the last known good content
// with versions and times, its history, and the decisions of operators.
//
// The package owns the times of writes (Keeper) and the contract of a place to write to (Store). It must
// not know what an upstream is, how content is merged or served, nor the format of a Store: package
// state/local is the store on the local disk.
package state

import (
	"errors"
	"io"
	"regexp"
	"time"

	"meshrelay/internal/owner"
	"meshrelay/mirror"
)

// Errors of a Store and a Keeper, to be checked with errors.Is.
var (
	ErrInUse           = owner.ErrLocked
	ErrNotInUse        = errors.New("the state can not be read now")
	ErrUnknownRevision = errors.New("no such revision is kept")
	ErrLaterFormat     = errors.New("a later release of the relay wrote this file")
)

// Record is one resource of a source.
type Record struct {
	// Resource is in the form that the relay serves. Original is in the form of the source, nil when both
	// are the same.
	Resource, Original *mirror.Resource
	// TypeURL is the type of the resource in the source's protocol, empty for a file. Version is its version
	// there, or empty.
	TypeURL, Version string
	// Hash is the hash of the received element, zero when unknown.
	Hash [16]byte
	// At is the time at which the content came, to the second.
	At time.Time
}

// Meta describes a source, without its resources.
type Meta struct {
	// Synced is set when the records were, at one time, all that the source had.
	Synced bool
	// LastContact is the last time at which the source was connected and complete. InContact is set when
	// the contact went on after that time.
	LastContact time.Time
	InContact   bool
	// Whole is set when the changes of the batch are all that the source has: the store removes
	// everything else. A store does not keep it.
	Whole bool
	// By names the cause of the changes of the batch, empty for the source. A store keeps it with the
	// revision.
	By string
	// HeldSince is the beginning of the hold of deletions, zero without one. Held is their number, and
	// HeldRan the part of that time in which the source was in contact.
	HeldSince time.Time
	Held      int
	HeldRan   time.Duration
	// Frozen is set while an operator holds the source as it is.
	Frozen *Frozen
	// ServeWithout is the time of the operator's order that clients do not wait for the source, or zero.
	// The order ends when the source has synced.
	ServeWithout time.Time
	// Identity identifies the cluster whose API server the source is, or is empty.
	Identity string
	// RootNamespace is that of the last MeshConfig of the source, empty if unknown.
	RootNamespace string
	// Server has the identities that the server of the source had proven when the records came, or is empty.
	Server []string
	// Fingerprint is a hash of the settings on which the records depend. When it changes, the relay imports
	// the records again.
	Fingerprint string
}

// Frozen is the freeze of a source.
type Frozen struct {
	Since time.Time `json:"since"`
	// Revision is the target of a rollback, 0 for a freeze of the present content.
	Revision uint64 `json:"revision,omitempty"`
	// Reason is the operator's, empty when none was given.
	Reason string `json:"reason,omitempty"`
	// Order identifies the order of all replicas, empty for a relay that is alone.
	Order string `json:"-"`
	// Empty: nothing was known of the source when it was frozen.
	Empty bool `json:"empty,omitempty"`
}

// Change is one key of a source, and its record, nil when the key is gone.
type Change struct {
	Key    mirror.Key
	Record *Record
	// Endpoints: a stored resource differs in its endpoints only. That is no change for the history.
	Endpoints bool
}

// Source is a source that a Keeper follows. The goroutine of Run or Flush calls its methods, one at a time.
type Source interface {
	// TakeChanges returns the changes since the last call, as of one instant, and the present Meta. It
	// returns each key once. The first call returns the differences from the result of Load, or everything if
	// Load was not called.
	TakeChanges() ([]Change, Meta)
	// GiveBack takes changes back that could not be written. The next TakeChanges returns their keys, too.
	GiveBack([]Change)
	// MarkAll has the next TakeChanges return everything that the source has, because the store has other
	// content than the source believes.
	MarkAll()
}

// Saved is the stored state of a source.
type Saved struct {
	Meta    Meta
	Records []Record
	// Revision is the newest one, 0 when there is none.
	Revision uint64
	// Unusable are the errors of stored resources that did not decode. The next whole batch removes these.
	Unusable []error
}

// Revision describes a state of a source and its difference from the one before.
type Revision struct {
	ID   uint64    `json:"id"`
	Time time.Time `json:"time"`
	// Added, Changed and Removed count changed resources, and Resources all of the revision.
	Added     int `json:"added"`
	Changed   int `json:"changed"`
	Removed   int `json:"removed"`
	Resources int `json:"resources"`
	// By names the cause, such as "rollback to 17" or "release". It is empty for the source.
	By string `json:"by,omitempty"`
	// Keys are some of the changed keys: +, ~ or -, then "group/Kind namespace/name".
	Keys []string `json:"keys,omitempty"`
}

// Contents is the content of one source in a File.
type Contents struct {
	Name string
	Saved
	// Bytes is the size of the resources on the disk.
	Bytes int64
	// Revisions is the number of those that are kept.
	Revisions int
}

// File is the content of a directory of state.
type File struct {
	// Sources are sorted by name, without damaged ones.
	Sources []Contents
	// Damage describes the first damage, empty without any.
	Damage string
}

// Extra is a file of another package that a backup has. Its name ends with ".json".
type Extra struct {
	Name string
	Text []byte
}

// MaxJournalLine bounds the lines of a Journal, in bytes. LoadJournal leaves out longer ones.
const MaxJournalLine = 256 << 10

// Journal is a log of events. A Keeper keeps it in addition to the sources.
type Journal interface {
	// Take returns the oldest lines that are not stored yet, each with its newline, or nothing. The
	// caller then calls Done. Unless kept is set, the next Take returns the lines again.
	Take() []byte
	Done(kept bool)
}

// Store is a place where state is kept. One goroutine at a time calls Open, Apply, Forget,
// SetServed, LoadJournal, AppendJournal and Close; any may call the other methods at any time.
type Store interface {
	// Open opens the store, and fails with ErrInUse if another process uses it. Later calls check that the
	// store still has what Apply wrote, and repair it. Open returns the content, or nil if it is what Apply
	// wrote. With an error, Open may return content that can be loaded but not written.
	Open() (*Found, error)
	// Load returns the state of a source, or zero.
	Load(source string) (Saved, error)
	// Apply makes a batch durable, as a whole or not at all. The batch is one revision if it changes
	// content other than endpoints (Change.Endpoints). A batch without changes writes nothing. After an error, the batch may be durable or not
	// until the next Open.
	Apply(source string, b Batch) (Kept, error)
	// Forget removes the state of a source.
	Forget(source string) error
	// SetServed notes durably that clients were served with this state.
	SetServed() error
	// History returns the revisions of a source, the newest first. A source that is not stored has none.
	History(source string) ([]Revision, error)
	// At returns all resources of a source as of a revision. It fails with ErrUnknownRevision when the
	// store does not have the revision.
	At(source string, revision uint64) ([]Record, error)
	// AppendJournal makes lines durable, each with its newline. The store bounds the journal: it removes
	// the oldest lines. LoadJournal returns the stored lines without newlines, the oldest first. After an
	// AppendJournal that failed, the last line may be cut off.
	AppendJournal(lines []byte) error
	LoadJournal() [][]byte
	// Backup writes a copy of everything but the journal, as of one instant, and other files with it.
	Backup(w io.Writer, others ...Extra) error
	// Info returns the state of the store. It does not wait for a disk.
	Info() Info
	// Close closes the store.
	Close() error
}

// Batch is a set of changes of a source, with its new Meta.
type Batch struct {
	Meta    Meta
	Changes []Change
	// Now is the time of the revision. The ages of older revisions are relative to it.
	Now     time.Time
	History History
}

// History bounds the history of each source. The newest revision stays, unless Revisions is 0.
type History struct {
	Revisions int
	MaxBytes  int // 0: any
}

// Found is the content of a Store.
type Found struct {
	Sources map[string]Kept
	// Served is set when clients were ever served with this state and no part of it is lost: a lost
	// source would be taken for a new one.
	Served bool
}

// Kept summarizes the state of a source in a Store: the number of resources, and a sum of their checksums.
type Kept struct {
	Meta    Meta
	Records int
	Sum     uint64
}

// Info is the state of a Store.
type Info struct {
	Path string
	// InUse is set while the store is open for writing.
	InUse bool
	Size  int64 // bytes
	// Note is a warning about the directory, or empty.
	Note string
	// SetAside are the paths of damaged files that the store has renamed.
	SetAside []string
}

// nameShape matches names of upstreams. They become names of files.
var nameShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// IsName reports whether a text can be the name of an upstream.
func IsName(s string) bool { return nameShape.MatchString(s) }
