// Package state keeps what each upstream gave, so that it outlives the process: the last known
// good content, with versions and times, the changes that led to it, and what operators have
// decided.
//
// The package owns when something is written (Keeper), and what a place to write to must do
// (Store). It must not know what an upstream is, how content is merged or served, nor how a
// Store keeps what it is given: package state/local is the store on the local disk.
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
	// Resource is as the relay holds and serves it. Original is as the source gave it, nil when
	// the relay has not reshaped it.
	Resource, Original *mirror.Resource
	// TypeURL is the type under which the source gave it, empty for a file. Version is that of
	// the source's protocol, empty when it has none.
	TypeURL, Version string
	// Hash is of the element as received, zero when unknown.
	Hash [16]byte
	// At is when the content came, in whole seconds.
	At time.Time
}

// Meta is what is known of a source, except for its resources.
type Meta struct {
	// Synced tells that the records were, at one time, all that the source had.
	Synced bool
	// LastContact is when the source was last connected and complete. With InContact it still was
	// when this was written, so that the contact has ended later.
	LastContact time.Time
	InContact   bool
	// Whole tells that the changes that come with this are all that the source has: the store
	// removes everything else. A store does not keep it.
	Whole bool
	// By names the cause of the changes that come with this, empty when it is the source. A store
	// keeps it with the revision.
	By string
	// HeldSince is since when the guard holds deletions back, zero when it holds none, Held how
	// many, and HeldRan for how much of that time the source was in contact.
	HeldSince time.Time
	Held      int
	HeldRan   time.Duration
	// Frozen is set while an operator holds the source as it is.
	Frozen *Frozen
	// ServeWithout is since when clients do not wait for the source because an operator ended
	// that, zero when nobody did. It ends when the source has synced.
	ServeWithout time.Time
	// Identity is that of the cluster whose API server the source is, empty where nobody knows it.
	Identity string
	// Fingerprint is of the settings that the records depend on. When those change, the relay
	// imports the records again.
	Fingerprint string
}

// Frozen tells since when a source is frozen, and in which state.
type Frozen struct {
	Since time.Time `json:"since"`
	// Revision is what the source was rolled back to, 0 when it was frozen as it was.
	Revision uint64 `json:"revision,omitempty"`
	// Until is when the freeze ends by itself, zero when only an operator ends it.
	Until time.Time `json:"until,omitzero"`
	// Reason is the operator's, empty when none was given.
	Reason string `json:"reason,omitempty"`
}

// Change is one key of a source, and its record, nil when the key is gone.
type Change struct {
	Key    mirror.Key
	Record *Record
}

// Source is what a Keeper follows. One goroutine at a time calls its methods, that of Run or
// Flush.
type Source interface {
	// TakeChanges returns what has changed since the last call, all as of one instant,
	// and the present Meta. Each key comes once. The first call returns what has changed
	// against what Load gave for the source, or everything when Load was not asked.
	TakeChanges() ([]Change, Meta)
	// GiveBack returns changes that could not be written: the next ones have their keys, too.
	GiveBack([]Change)
	// MarkAll makes the next changes everything that the source has, because the store does not
	// have what the source believes.
	MarkAll()
}

// Saved is what is kept of a source.
type Saved struct {
	Meta    Meta
	Records []Record
	// Revision is the newest one, 0 when there is none.
	Revision uint64
	// Unusable are the errors of stored resources that did not decode. The next whole batch removes these.
	Unusable []error
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
	// By names the cause, empty when it is the source: "rollback to 17", "release".
	By string `json:"by,omitempty"`
	// Keys names some of them, as "group/Kind namespace/name", with +, ~ or - before it.
	Keys []string `json:"keys,omitempty"`
}

// Contents is what a directory of state has of one source.
type Contents struct {
	Name string
	Saved
	// Bytes is what the resources take on the disk.
	Bytes int64
	// Revisions are the newest first.
	Revisions []Revision
}

// File is what a directory of state, or a backup of one, holds.
type File struct {
	Path   string
	Size   int64 // bytes
	Format int   // version
	// Sources are sorted by name. Those that are damaged are not among them.
	Sources []Contents
	// Damage tells what is wrong, empty when nothing is.
	Damage string
}

// Extra is a file that somebody else keeps beside the state. Its name ends with ".json".
type Extra struct {
	Name string
	Text []byte
}

// MaxJournalLine bounds the lines of a Journal, in bytes. Longer ones are not read again.
const MaxJournalLine = 256 << 10

// Journal is a log of events that a Keeper keeps beside the sources.
type Journal interface {
	// Take returns the oldest lines that were not returned before, each with its end; nothing when
	// there are none. Done is called after it, and tells whether they are kept; otherwise they are
	// returned again.
	Take() []byte
	Done(kept bool)
}

// Store is a place where state is kept. One goroutine at a time calls Open, Apply, Forget,
// SetServed, LoadJournal, AppendJournal and Close; any may call the other methods at any time.
type Store interface {
	// Open takes the store into use. It fails with ErrInUse when another process has it. Once
	// the store is in use, Open checks that it still is what Apply has written, and repairs it.
	// Open returns what it has found, nil when that is what Apply has written. It may find
	// something and fail: what can be read and not written can be loaded.
	Open() (*Found, error)
	// Load returns what is kept of a source, zero when nothing is.
	Load(source string) (Saved, error)
	// Apply makes a batch durable, as a whole or not at all, and makes one revision of it when
	// content has changed. It writes nothing when nothing has changed. After an error nobody
	// knows whether the batch is durable until Open was called.
	Apply(source string, b Batch) (Kept, error)
	// Forget removes all that is kept of a source.
	Forget(source string) error
	// SetServed notes durably that clients were served with this state.
	SetServed() error
	// History returns the revisions of a source, the newest first. There are none of a source
	// that is not kept.
	History(source string) ([]Revision, error)
	// At returns all that a source had as of a revision. It fails with ErrUnknownRevision when
	// there is no such revision, or none any more.
	At(source string, revision uint64) ([]Record, error)
	// AppendJournal makes lines durable, each with its end. The store forgets the oldest lines
	// when there is no room. LoadJournal returns the lines that there are, the oldest first,
	// without their ends. The last of an AppendJournal that failed may be cut off.
	AppendJournal(lines []byte) error
	LoadJournal() [][]byte
	// Backup writes a copy of everything but the journal, as of one instant, and other files with it.
	Backup(w io.Writer, others ...Extra) error
	// Info tells how the store fares. It does not wait for a disk.
	Info() Info
	// Close gives the store up.
	Close() error
}

// Batch is what a source has become.
type Batch struct {
	Meta    Meta
	Changes []Change
	// Now is the time of the revision, and of the bounds of the history.
	Now     time.Time
	History History
}

// History bounds the history of each source. The newest revision stays, unless Revisions is 0.
type History struct {
	Revisions int
	MaxAge    time.Duration // 0: any
	MaxBytes  int           // 0: any
}

// Found is what a Store has when it was opened.
type Found struct {
	Sources map[string]Kept
	// Served tells that clients were ever served with this state. It is false when part of
	// the state was lost: a lost source would be taken for a new one.
	Served bool
}

// Kept describes what a Store has of a source: how many resources, a sum that tells them from
// others, and how many revisions.
type Kept struct {
	Meta      Meta
	Records   int
	Sum       uint64
	Revisions int
	// Wrote tells that Apply has written something.
	Wrote bool
}

// Info tells how a Store fares.
type Info struct {
	Path string
	// InUse tells that the store is open.
	InUse bool
	Size  int64 // bytes
	// Note tells what is wrong with the place, which is still used.
	Note string
	// SetAside are the files that could not be used and are there still.
	SetAside []string
}

// nameShape is what names of upstreams are like. They become names of files.
var nameShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// IsName reports whether a text can be the name of an upstream.
func IsName(s string) bool { return nameShape.MatchString(s) }
