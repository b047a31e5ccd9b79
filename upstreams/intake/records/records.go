package records

import (
	"log/slog"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/panics"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// versionGrace is how long names of an emptied scope may still turn up in another scope.
const versionGrace = time.Second

// Teller is told what a user has to know, at once.
type Teller interface {
	Note(level slog.Level, message string, args ...any)
	Tell(events.Event)
}

// Records are what the source of an upstream says. Their methods are called one at a time.
type Records struct {
	settings
	clock
	book
	streams
	formers
	keepers
	trust
	changes
	roots     roots
	rules     *Rules
	discovery *discovery
	tell      Teller

	panics uint64
	// Fault is a hook of tests that panics.
	Fault func(*mirror.Resource)
}

type settings struct {
	name   string
	limits config.Limits
	held   Held // beside the former records
}

type clock struct {
	now       time.Time
	connected time.Duration // how long a stream was open, or the source in contact
}

// book has the resources of the source.
type book struct {
	scopes           map[string]*scope
	kinds            map[mirror.Kind]*kind
	resources, bytes int // records with content, and what all of them take
	notes            int // bytes of refused names and reasons
	beside           int // bytes that the source keeps
}

// streams is what the source is asked for.
type streams struct {
	open       bool
	opened     []*scope // that the stream has to answer
	notOffered []string // names of those that are not offered
	repeating  bool     // Repeated has not yet returned true
}

// formers has the last record of each served key without a record. If the source sends such a
// key again and it is refused, this content returns.
type formers struct {
	former      map[mirror.Key]*record
	formerBytes int
}

// trust is what is believed of the server of the source.
type trust struct {
	believe bool     // the source is a relay, so its provenance paths are trusted
	server  []string // the identities that the server of the last update has proven
}

// Held are the deletions that wait for the guard. With those of an update they count towards the limits, but not while the
// upstream is frozen: it then serves no more than before.
type Held struct {
	N, Bytes int
	Frozen   bool
}

// changes are what was touched since the last Wants.
type changes struct {
	touched []touched
	parents bool // RejudgeRoutes has to look
	news    bool // the disk has to have other roots, or another server
}

// roots are root namespaces.
type roots struct {
	all       string // of MeshConfigs, joined by commas, empty if unknown
	own, mesh string // of the last MeshConfig of the source, and of the one that is served
}

// New returns Records without any.
func New(u config.Upstream, rules *Rules, tell Teller) *Records {
	return &Records{
		settings: settings{name: u.Name, limits: u.Limits}, rules: rules, tell: tell, book: newBook(), discovery: newDiscovery(),
		formers: formers{former: map[mirror.Key]*record{}},
	}
}

func newBook() book { return book{scopes: map[string]*scope{}, kinds: map[mirror.Kind]*kind{}} }

func newDiscovery() *discovery {
	return &discovery{
		services: map[*record]service{}, waiting: map[*record]struct{}{},
		users: map[string]map[*record]struct{}{}, asked: map[string]struct{}{}, answers: map[string]Assignment{},
	}
}

// Renewed returns Records that begin with what rs has.
func (rs *Records) Renewed(tell Teller) *Records {
	next := *rs
	next.tell = tell
	next.Adopt(rs.Kept(), true)
	return &next
}

// SetLimits sets the limits.
func (rs *Records) SetLimits(l config.Limits) { rs.limits = l }

// SetNow sets the time, and how long the source was in contact. Neither must fall.
func (rs *Records) SetNow(now time.Time, connected time.Duration) { rs.clock = clock{now, connected} }

// SetHeld sets what waits before an update.
func (rs *Records) SetHeld(h Held) {
	rs.held = Held{h.N - len(rs.former), h.Bytes - rs.formerBytes, h.Frozen}
}

// Rules returns the rules by which records are imported.
func (rs *Records) Rules() *Rules { return rs.rules }

// SetRules sets the rules by which Adopt imports.
func (rs *Records) SetRules(rules *Rules) { rs.rules = rules.withRoot(rs.roots.all) }

// Server returns the identities that the server of the last update has proven.
func (rs *Records) Server() []string { return rs.server }

// Restore restores what Roots and Server returned.
func (rs *Records) Restore(roots string, server []string) {
	rs.roots.all, rs.server = roots, server
	rs.SetRules(rs.rules)
}

// TakeNews reports whether the disk has to have other roots, or another server, than at the last call.
func (rs *Records) TakeNews() bool {
	news := rs.news
	rs.news = false
	return news
}

// Open begins a stream that has to answer scopes.
func (rs *Records) Open(scopes []Scope) {
	rs.open, rs.opened = true, rs.opened[:0]
	for _, sc := range rs.scopes {
		sc.parts, sc.torn, sc.awaited, sc.owed = nil, false, false, false // of the former stream
	}
	rs.repeating = false
	for _, s := range scopes {
		_, sc := rs.scope(s)
		sc.awaited = true
		rs.opened = append(rs.opened, sc)
	}
}

// Close ends the stream.
func (rs *Records) Close() { rs.open = false }

// IsOpen reports whether a stream is open.
func (rs *Records) IsOpen() bool { return rs.open }

// AllTold reports whether the source has given all its content: every scope of the open stream is answered, and so are the
// endpoints.
func (rs *Records) AllTold() bool {
	return rs.open && len(rs.opened) > 0 && !rs.Unsettled() && len(rs.discovery.waiting) == 0
}

// OnceTold reports whether every scope that was opened was ever answered or is not offered, and all endpoints are known.
func (rs *Records) OnceTold() bool {
	return len(rs.opened) > 0 && len(rs.Pending()) == 0 && len(rs.discovery.waiting) == 0
}

// Unsettled reports whether more names may still come, because a scope is not answered, or has become empty a
// moment ago. Then it is too early to count deletions.
func (rs *Records) Unsettled() bool {
	for _, k := range rs.kinds {
		if k.waits() {
			return true
		}
	}
	return false
}

// Answers reports whether the open stream has answered a kind.
func (rs *Records) Answers(of mirror.Kind) bool { return rs.open && !rs.kind(of).waits() }

// Sweep drops the records of scopes that the source has not answered. It has given all its content.
func (rs *Records) Sweep() {
	for _, sc := range rs.scopes {
		if !sc.answered {
			rs.touch(rs.kind(sc.Kind), false, rs.deleteAll(sc)...)
		}
	}
}

// Whole returns updates that are all that the source has, with one for each scope that has nothing any more. These come first,
// because they make room.
func (rs *Records) Whole(updates []Update) (out []Update) {
	for _, sc := range rs.scopes {
		if sc.answered && sc.Scope != extensions && !slices.ContainsFunc(updates, func(u Update) bool { return u.Scope == sc.Scope }) {
			out = append(out, Update{Scope: sc.Scope, Complete: true})
		}
	}
	return append(out, updates...)
}

// Take applies an update. After a panic of what yields it, the step fails.
func (rs *Records) Take(u *Update, unsure bool, out *Result) {
	k, sc := rs.scope(u.Scope)
	first := sc.awaited || sc.silent
	if !u.Part {
		sc.awaited, sc.answered, sc.silent = false, true, false
	}
	if sc.parts == nil {
		if sc.generation++; sc.generation == unconfirmed {
			sc.generation++
		}
	}
	if u.Complete {
		rs.replace(k, sc, u, first, unsure, out)
	} else {
		rs.patch(k, sc, u, out)
	}
	if sc.owed && !out.Unread {
		sc.owed = u.Part || !u.Complete && sc.hasUnconfirmed()
	}
}

// Settle ends an update of a scope, after Take and Wants: it reports refusals, drops what is not asked for any more, and has
// names looked at again that no scope has told.
func (rs *Records) Settle(s Scope) {
	k, sc := rs.scope(s)
	rs.reportRefused(sc)
	rs.dropUnopened(k)
	rs.settle(k)
}

// NextDeadline passes the times of the next EndGraces and EndKeeping to later. connected: the source is in contact.
func (rs *Records) NextDeadline(connected bool, later func(time.Time)) {
	for _, k := range rs.kinds {
		later(k.graceUntil)
	}
	if connected && rs.kept > 0 {
		later(rs.now.Add(max(rs.leftOf(rs.keptSince), 1)))
	}
}

// EndGraces ends graces that are over after so long: names that are still missing are gone. It returns their kinds.
func (rs *Records) EndGraces(after time.Duration) (ended []mirror.Kind) {
	for _, k := range rs.kinds {
		if !k.graceUntil.IsZero() && !rs.now.Add(after).Before(k.graceUntil) {
			k.graceUntil = time.Time{}
			rs.settle(k)
			ended = append(ended, k.kind)
		}
	}
	return ended
}

// Ask returns the clusters whose endpoints are needed, nil if they are the same as before.
func (rs *Records) Ask() map[string]struct{} { return rs.discovery.ask() }

// Panicked counts and logs a panic over a resource, and returns it as an error.
func (rs *Records) Panicked(name string, p *panics.Panic) error {
	rs.panics++
	if rs.panics <= maxLoggedPanics || rs.panics%maxLoggedPanics == 0 {
		rs.tell.Note(slog.LevelError, "panic while handling a resource", "resource", text.Abbreviate(name), "panic", p.Value, "panics", rs.panics, "stack", p.Stack)
	}
	return p
}

// maxLoggedPanics is how many panics are logged with their stacks. After that, one in maxLoggedPanics is
// logged.
const maxLoggedPanics = 20
