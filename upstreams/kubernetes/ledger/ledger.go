// Package ledger feeds the objects of an API server to the intake.
//
// It decides for which collections the intake waits, in which namespaces objects are mirrored, and when the
// derived resources are complete. It does no I/O and starts no goroutine.
//
// The package must not know how objects are read, or how Ingresses are converted.
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
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/object"
)

// Ledger makes one stream for the intake from the streams of all collections. The intake has one scope for
// each kind. The guard judges all deletions of one stream of the intake together. A new stream of the intake
// begins whenever a collection is listed again. Collections whose watches go on have answered at once. So has
// a kind that the server does not serve or does not let the relay read, because none of its objects count as
// deleted.
//
// The resources of a Deriver have their own scopes. These are answered when all its inputs have answered. The
// Ledger does not feed objects in namespaces that are not selected.
//
// Any goroutine may call its methods.
type Ledger struct {
	kinds     []mirror.Kind // mirrored ones
	feed      upstreams.Feed
	selection *Selection // nil: all namespaces
	derivers  []Deriver

	mu      sync.Mutex // guards all fields below, and the fields of entries; held during calls of the feed
	entries map[mirror.Kind][]*Entry
	begun   bool // all entries are known
	open    bool // the intake has a stream
	// closed is the last event Closed while no stream is open, nil for none.
	closed *intake.Closed
}

// Entry is the state of a collection: the objects of one kind, in one namespace or in all.
type Entry struct {
	Kind      mirror.Kind
	Namespace string // empty: all
	// Relist makes the collection list all objects again. It must not wait, and must not call the ledger.
	Relist func()
	// Cramped is set if the intake refused objects since the newest list because of a limit.
	Cramped atomic.Bool

	// The ledger guards these.
	listed  bool // the intake has all objects
	ok      bool // the watch of the collection works
	quiet   bool // the server does not serve the collection, or does not let the relay read it
	awaited bool // it has not answered on the present stream
	lostAt  time.Time
}

// Deriver makes resources from other objects. The ledger calls it while it holds its lock.
type Deriver interface {
	// Takes reports whether objects of a kind are inputs. also: they are mirrored as well, if they are of a mirrored kind.
	Takes(mirror.Kind) (is, also bool)
	// Outputs returns the kinds of the derived resources.
	Outputs() []mirror.Kind
	// Set adds or changes an input. The error is a mistake in the input.
	Set(mirror.Kind, *object.Object) error
	// Delete removes an input.
	Delete(mirror.Kind, *object.Object)
	// Replace sets all inputs of a kind, in one namespace or in all. The result has the refused ones.
	Replace(kind mirror.Kind, namespace string, all []*object.Object) records.Result
	// Synced notes that all inputs of a kind are known.
	Synced(mirror.Kind)
	// Leave removes the inputs in namespaces that are no longer selected.
	Leave(namespaces []string)
	// Changes returns the changes of the outputs. part is set while inputs are awaited, and the outputs of the inputs that
	// have answered are not all.
	Changes(part bool) []records.Update
	// Answer returns updates for the scopes of all outputs, once all inputs have answered, or can not be read.
	Answer() []records.Update
}

// New returns a Ledger for the mirrored kinds. selection may be nil.
func New(kinds []mirror.Kind, feed upstreams.Feed, selection *Selection, derivers ...Deriver) *Ledger {
	return &Ledger{kinds: kinds, feed: feed, selection: selection, derivers: derivers, entries: map[mirror.Kind][]*Entry{}}
}

// Do calls f while it holds the lock that guards the Deriver.
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

func (l *Ledger) scopes() (all []records.Scope) {
	for _, k := range l.kinds {
		all = append(all, records.KindScope(k))
	}
	for _, d := range l.derivers {
		for _, k := range d.Outputs() {
			all = append(all, records.DerivedScope(k))
		}
	}
	return all
}

// taking returns the Derivers whose inputs are the objects of a kind.
func (l *Ledger) taking(kind mirror.Kind) (all []Deriver) {
	for _, d := range l.derivers {
		if is, _ := d.Takes(kind); is {
			all = append(all, d)
		}
	}
	return all
}

// Mirrors reports whether objects of a kind are mirrored themselves.
func (l *Ledger) Mirrors(kind mirror.Kind) bool {
	return slices.Contains(l.kinds, kind) && !slices.ContainsFunc(l.derivers, func(d Deriver) bool {
		is, also := d.Takes(kind)
		return is && !also
	})
}

// Set replaces the entries of a kind. The objects of the former entries stay served.
func (l *Ledger) Set(kind mirror.Kind, entries []*Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries[kind] {
		l.selection.forget(e)
		e.awaited = false
	}
	l.entries[kind] = entries
	for _, e := range entries {
		e.lostAt = time.Now()
	}
}

// Begin begins the first stream, unless it has. The stream waits for all entries whose watches do not work yet.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begun = true
		l.begin(nil)
	}
}

// begin begins a stream. It waits for e, unless nil, and for all entries whose watches do not work. It does
// nothing before Begin: kinds without entries would count as answered.
func (l *Ledger) begin(e *Entry) {
	if !l.begun {
		return
	}
	l.open, l.closed = true, nil
	for _, all := range l.entries {
		for _, other := range all {
			other.awaited = other == e || !other.ok && !other.quiet
		}
	}
	l.feed.Tell(intake.Opened{Scopes: l.scopes()})
	var answered []records.Update
	for _, k := range l.kinds {
		if !l.awaits(k) {
			answered = append(answered, unchanged(k))
		}
	}
	for _, d := range l.derivers {
		if !l.awaitsInputs(d) {
			answered = append(answered, d.Answer()...)
		}
	}
	l.feed.Tell(intake.Received{Updates: answered})
}

// awaits reports whether an entry of a kind has not answered yet.
func (l *Ledger) awaits(kind mirror.Kind) bool {
	return slices.ContainsFunc(l.entries[kind], func(e *Entry) bool { return e.awaited })
}

// awaitsInputs reports whether an input of a Deriver has not answered yet.
func (l *Ledger) awaitsInputs(d Deriver) bool {
	for kind := range l.entries {
		if is, _ := d.Takes(kind); is && l.awaits(kind) {
			return true
		}
	}
	return false
}

// Resumed notes that the watch of an entry works again.
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

// answer notes that an entry has answered on the present stream, without a change.
func (l *Ledger) answer(e *Entry) {
	if !e.awaited {
		return
	}
	if e.awaited = false; l.awaits(e.Kind) {
		return
	}
	if l.Mirrors(e.Kind) {
		l.tell([]records.Update{unchanged(e.Kind)})
	}
	for _, d := range l.taking(e.Kind) {
		if !l.awaitsInputs(d) {
			l.tell(d.Answer())
		}
	}
}

// Lost notes that the watch of an entry has ended.
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

// Follows reports whether the watch of an entry works.
func (l *Ledger) Follows(e *Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.ok
}

// OutOfTouch reports whether an entry was listed, and its watch has not worked for longer than grace.
func (l *Ledger) OutOfTouch(e *Entry, now time.Time, grace time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.listed && !e.ok && now.Sub(e.lostAt) > grace
}

// Hush notes that an entry can not be read: its objects stay served, and other kinds do not wait for it. If
// no other entry can be read, Hush has no effect; the entry of the namespaces does not count.
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

// Drop tells the intake and the Derivers that all objects of a kind are deleted.
func (l *Ledger) Drop(kind mirror.Kind) records.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	var result records.Result
	if l.Mirrors(kind) {
		u := unchanged(kind)
		u.Complete = true
		result = l.feed.Tell(intake.Received{Updates: []records.Update{u}})
	}
	for _, d := range l.taking(kind) {
		d.Replace(kind, "", nil)
		d.Synced(kind)
		l.tell(l.changes(d))
	}
	return result
}

// Check ends the stream of the intake when the watch of an entry has not worked for longer than grace. It
// begins a stream when all watches work, and reports whether they do. why returns the event Closed; it must
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
		l.begin(nil) // Hush or Set was called for the last entry without a watch
	case !follows && !l.open:
		l.close(why(), "")
	}
	return follows
}

// close feeds c, unless the last Closed was like it. fallback is the reason if c has none.
func (l *Ledger) close(c intake.Closed, fallback string) {
	if c.Reason = cmp.Or(c.Reason, fallback); c.Reason == "" || l.closed != nil && l.closed.Denied == c.Denied && l.closed.Failed == c.Failed {
		return
	}
	l.closed = &c
	l.feed.Tell(c)
}
