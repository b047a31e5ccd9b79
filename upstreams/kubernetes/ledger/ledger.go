// Package ledger tells the intake what the collections of an API server bring.
//
// It owns which collections the intake waits for, in which namespaces objects are mirrored, and when what is
// made of other objects is complete. It does no I/O and starts no goroutine.
//
// The package must not know how objects are read, nor what is made of Ingresses.
package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/object"
)

// Ledger makes one stream of the intake of the streams of all collections. The intake has one scope for each
// kind, and judges together what is gone with the answers of one stream. A stream of the intake begins
// whenever a collection is listed that was listed before. Collections whose watches go on have answered at
// once, and so has a kind that the server does not serve, or does not let the relay read: nothing of that is
// gone.
//
// What a Deriver makes has scopes of its own, which are answered when all its inputs are. Objects in
// namespaces that are not selected are not told to the intake.
//
// Its methods may be called from any goroutine.
type Ledger struct {
	kinds     []mirror.Kind // mirrored ones
	feed      upstreams.Feed
	selection *Selection // nil: all namespaces
	deriver   Deriver    // nil: nothing is derived

	mu sync.Mutex // guards all below, and the fields of entries; held while the feed is called
	// entries are those of each kind, awaited those that have not answered in the present stream.
	entries map[mirror.Kind][]*Entry
	awaited map[*Entry]struct{}
	begun   bool // all entries are known
	open    bool // the intake has a stream
	// closed is what the intake was last told while it has no stream, nil for nothing.
	closed *intake.Closed
}

// Entry is a collection: the objects of one kind, in one namespace or in all.
type Entry struct {
	Kind      mirror.Kind
	Namespace string // empty: all
	// Relist has all objects of the collection listed anew. It may not wait, nor call the ledger.
	Relist func()
	// Cramped: the intake has refused objects of the newest list, or newer ones, for want of room.
	Cramped atomic.Bool

	// The ledger guards these.
	listed bool // the intake was told all objects
	ok     bool // and changes follow
	quiet  bool // the server does not serve the collection, or does not let the relay read it
	lostAt time.Time
}

// Deriver makes resources of objects that are not mirrored themselves. The ledger calls it with its lock.
type Deriver interface {
	// Takes reports whether objects of a kind are inputs.
	Takes(mirror.Kind) bool
	// Outputs returns the kinds that are made.
	Outputs() []mirror.Kind
	// Set takes a new or changed input. An error is what is wrong with it.
	Set(mirror.Kind, *object.Object) error
	// Delete takes a deleted input.
	Delete(mirror.Kind, *object.Object)
	// Replace takes all inputs of a kind in a namespace, or in all, and returns the refused ones.
	Replace(kind mirror.Kind, namespace string, all []*object.Object) []intake.Refusal
	// Synced notes that all inputs of a kind are known.
	Synced(mirror.Kind)
	// Leave drops the inputs in namespaces that are not mirrored any more.
	Leave(namespaces []string)
	// Changes returns what has changed of the outputs. part: more inputs are awaited.
	Changes(part bool) []intake.Update
	// Answer returns updates of the scopes of all outputs, once all inputs have come.
	Answer() []intake.Update
}

// New returns a ledger of mirrored kinds. selection and deriver may be nil.
func New(kinds []mirror.Kind, feed upstreams.Feed, selection *Selection, deriver Deriver) *Ledger {
	return &Ledger{
		kinds: kinds, feed: feed, selection: selection, deriver: deriver,
		entries: map[mirror.Kind][]*Entry{}, awaited: map[*Entry]struct{}{},
	}
}

// Do calls f with the lock that guards the Deriver.
func (l *Ledger) Do(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// Announce begins a stream before the entries are known.
func (l *Ledger) Announce() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.feed.Tell(intake.Opened{Scopes: l.scopes()})
}

func (l *Ledger) scopes() (all []intake.Scope) {
	for _, k := range l.kinds {
		all = append(all, intake.KindScope(k))
	}
	if l.deriver != nil {
		for _, k := range l.deriver.Outputs() {
			all = append(all, intake.DerivedScope(k))
		}
	}
	return all
}

// derives reports whether objects of a kind are inputs of the Deriver.
func (l *Ledger) derives(kind mirror.Kind) bool { return l.deriver != nil && l.deriver.Takes(kind) }

// Mirrors reports whether objects of a kind are mirrored as they are.
func (l *Ledger) Mirrors(kind mirror.Kind) bool {
	return slices.Contains(l.kinds, kind) && !l.derives(kind)
}

// Set replaces the entries of a kind. The objects of the former entries stay.
func (l *Ledger) Set(kind mirror.Kind, entries []*Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries[kind] {
		l.selection.forget(e)
		delete(l.awaited, e)
	}
	l.entries[kind] = entries
	for _, e := range entries {
		e.lostAt = time.Now()
	}
}

// Begin begins the first stream, in which all entries that do not follow have to answer.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	l.begin(nil)
}

// begin begins a stream in which e, unless nil, and all entries that do not follow have to answer. It does
// nothing before Begin, when kinds without entries would count as answered.
func (l *Ledger) begin(e *Entry) {
	if !l.begun {
		return
	}
	l.open, l.closed = true, nil
	clear(l.awaited)
	for _, all := range l.entries {
		for _, other := range all {
			if other == e || !other.ok && !other.quiet {
				l.awaited[other] = struct{}{}
			}
		}
	}
	l.feed.Tell(intake.Opened{Scopes: l.scopes()})
	var answered []intake.Update
	for _, k := range l.kinds {
		if !l.awaits(k) {
			answered = append(answered, unchanged(k))
		}
	}
	if l.deriver != nil && !l.awaitsInputs() {
		answered = append(answered, l.derive(l.deriver.Answer)...)
	}
	l.feed.Tell(intake.Received{Updates: answered})
}

// awaits reports whether an entry of a kind has not answered yet.
func (l *Ledger) awaits(kind mirror.Kind) bool {
	return slices.ContainsFunc(l.entries[kind], func(e *Entry) bool { _, waits := l.awaited[e]; return waits })
}

// awaitsInputs reports whether an input of the Deriver has not answered yet.
func (l *Ledger) awaitsInputs() bool {
	for kind := range l.entries {
		if l.derives(kind) && l.awaits(kind) {
			return true
		}
	}
	return false
}

// Resumed notes that the changes of an entry follow again.
func (l *Ledger) Resumed(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.quiet = false; !e.listed {
		return
	}
	if e.ok = true; !l.open {
		l.begin(nil)
		return
	}
	l.answer(e)
}

// answer notes that an entry has answered in the present stream, with no change.
func (l *Ledger) answer(e *Entry) {
	if _, waits := l.awaited[e]; !waits {
		return
	}
	switch delete(l.awaited, e); {
	case e.Kind == Namespaces:
	case !l.derives(e.Kind):
		if !l.awaits(e.Kind) {
			l.tell([]intake.Update{unchanged(e.Kind)})
		}
	case !l.awaitsInputs():
		l.tell(l.derive(l.deriver.Answer))
	}
}

// Lost notes that the changes of an entry do not follow any more.
func (l *Ledger) Lost(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.lost()
}

func (e *Entry) lost() {
	if e.ok {
		e.ok, e.lostAt = false, time.Now()
	}
}

// Follows reports whether the changes of an entry follow.
func (l *Ledger) Follows(e *Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.ok
}

// OutOfTouch reports whether the changes of an entry that was listed have not followed for longer than grace.
func (l *Ledger) OutOfTouch(e *Entry, now time.Time, grace time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.listed && !e.ok && now.Sub(e.lostAt) > grace
}

// Hush notes that an entry can not be read: its objects stay, and the other kinds do not wait for it. The last
// entry that can be read is not hushed, whether or not namespaces can be.
func (l *Ledger) Hush(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others := false
	for kind, all := range l.entries {
		others = others || kind != Namespaces && slices.ContainsFunc(all, func(other *Entry) bool { return other != e && !other.quiet })
	}
	e.lost()
	if !others || e.quiet {
		return
	}
	e.quiet = true
	l.answer(e)
}

// Drop tells the intake that all objects of a kind are gone.
func (l *Ledger) Drop(kind mirror.Kind) intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := unchanged(kind)
	u.Complete = true
	return l.feed.Tell(intake.Received{Updates: []intake.Update{u}})
}

// Check ends the stream of the intake when an entry has not followed for longer than grace, and begins one
// when all entries follow. It reports whether they do. why returns why the server is out of contact, and may
// not call the ledger.
func (l *Ledger) Check(now time.Time, grace time.Duration, why func() intake.Closed) (follows bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	follows = l.begun
	for kind, all := range l.entries {
		for _, e := range all {
			if e.ok || e.quiet {
				continue
			}
			follows = false
			if l.open && now.Sub(e.lostAt) > grace {
				l.open = false
				l.close(why(), fmt.Sprintf("%s is not followed since %s", kind, e.lostAt.UTC().Format(time.RFC3339)))
			}
		}
	}
	switch {
	case follows && !l.open:
		l.begin(nil) // the last entry that did not follow was hushed or replaced
	case !follows && !l.open:
		l.close(why(), "")
	}
	return follows
}

// close tells the intake why the server is out of contact, unless it was told so before. fallback is the
// reason where c has none.
func (l *Ledger) close(c intake.Closed, fallback string) {
	if c.Reason = cmp.Or(c.Reason, fallback); c.Reason == "" || l.closed != nil && l.closed.Denied == c.Denied && l.closed.Failed == c.Failed {
		return
	}
	l.closed = &c
	l.feed.Tell(c)
}

// Answered reports whether the present stream has been answered by all entries.
func (l *Ledger) Answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun && l.open && len(l.awaited) == 0
}
