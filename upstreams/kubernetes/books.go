package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// chunk bounds the objects that the intake takes in at once, so that nobody waits for long.
const chunk = 1000

// ledger tells the intake what the targets bring. The intake has one scope for each kind, and
// judges together what is gone with the answers of one stream. The API server has a stream for each
// target instead: a stream of the intake begins whenever a target lists anew what was listed before,
// and is answered at once for the targets whose streams have gone on. A kind that the server does
// not serve, or does not let us read, is answered with no change: nothing is gone for that.
//
// What is made of Ingresses has scopes of its own, which are answered when all its inputs are. What
// is in namespaces that are not chosen is not told at all.
type ledger struct {
	kinds     []mirror.Kind // that are mirrored
	feed      upstreams.Feed
	choice    *choice    // nil: all namespaces
	ingresses *ingresses // nil: they are not converted

	mu sync.Mutex // guards all below, and books; held while the feed is called, which never calls back
	// targets are those of each kind; awaited are those that the present stream has not answered.
	targets map[mirror.Kind][]*target
	awaited map[*target]struct{}
	begun   bool // it is known which targets there are
	open    bool // a stream of the intake is
	// closed is what was told last while none is, nil for nothing.
	closed *intake.Closed
}

// books are what a ledger knows of a target.
type books struct {
	listed bool // all that it has was told
	ok     bool // and its changes follow
	quiet  bool // the server does not serve it, or does not let us read it
	lostAt time.Time
}

func newLedger(kinds []mirror.Kind, feed upstreams.Feed, c *choice, g *ingresses) *ledger {
	if g != nil {
		g.panicked = func(what string, p *mirror.Panic) { feed.Tell(intake.Panicked{What: what, Panic: p}) }
	}
	return &ledger{
		kinds: kinds, feed: feed, choice: c, ingresses: g,
		targets: map[mirror.Kind][]*target{}, awaited: map[*target]struct{}{},
	}
}

// announce begins a stream about which nothing is known yet.
func (l *ledger) announce() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.feed.Tell(intake.Opened{Scopes: l.scopes()})
}

func (l *ledger) scopes() (all []intake.Scope) {
	for _, k := range l.kinds {
		all = append(all, intake.KindScope(k))
	}
	if l.ingresses != nil {
		for _, k := range ingressOutputs {
			all = append(all, intake.DerivedScope(k))
		}
	}
	return all
}

// converts reports whether a kind is one that Gateways and VirtualServices are made of, or that tells
// how.
func (l *ledger) converts(kind mirror.Kind) bool {
	_, is := ingressInputs[kind]
	return (is || kind == meshKind) && l.ingresses != nil
}

// set replaces the targets of a kind. The objects of the former targets stay.
func (l *ledger) set(kind mirror.Kind, targets []*target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.targets[kind] {
		l.choice.forget(t)
		delete(l.awaited, t)
	}
	l.targets[kind] = targets
	for _, t := range targets {
		t.lostAt = time.Now()
	}
}

// of returns the targets of a kind.
func (l *ledger) of(kind mirror.Kind) []*target {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.targets[kind]
}

// begin begins a stream in which all that do not follow, and t unless nil, have to answer. It does
// nothing before Begin: kinds without targets would count as answered.
func (l *ledger) begin(t *target) {
	if !l.begun {
		return
	}
	l.open, l.closed = true, nil
	clear(l.awaited)
	for _, all := range l.targets {
		for _, other := range all {
			if other == t || !other.ok && !other.quiet {
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
	if l.ingresses != nil && !l.awaitsInputs() {
		answered = append(answered, l.convert(l.converted)...)
	}
	l.feed.Tell(intake.Received{Updates: answered})
}

// Begin begins the first stream, in which all targets that do not follow have to answer.
func (l *ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	l.begin(nil)
}

// mirrors reports whether the objects of a target are mirrored as they are.
func (l *ledger) mirrors(t *target) bool {
	return !t.aside && slices.Contains(l.kinds, t.kind) && !l.converts(t.kind)
}

// holds reports whether the intake holds an object of a target with that content. It may not be called
// while the intake is told something.
func (l *ledger) holds(t *target, name string, digest xxh3.Uint128, size int) bool {
	return l.feed.Holds(intake.KindScope(t.kind).Name, name, digest, size)
}

// awaits reports whether a target of a kind has to answer.
func (l *ledger) awaits(kind mirror.Kind) bool {
	return slices.ContainsFunc(l.targets[kind], func(t *target) bool { _, waits := l.awaited[t]; return waits })
}

// awaitsInputs reports whether a target has to answer that Gateways and VirtualServices are made of.
func (l *ledger) awaitsInputs() bool {
	for k := range ingressInputs {
		if l.awaits(k) {
			return true
		}
	}
	return l.awaits(meshKind)
}

// replace tells the intake all objects of a target.
func (l *ledger) replace(t *target, all []*object) (results []intake.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.awaited[t]; !waits || !l.open {
		l.begin(t)
	}
	delete(l.awaited, t)
	t.listed, t.ok, t.quiet = true, true, false
	switch {
	case t.kind == namespaceKind:
		results = l.choose(true, all)
	case l.converts(t.kind):
		results = l.replaceInputs(t, l.pass(t, true, all))
	default:
		results = l.replaceObjects(t, l.pass(t, true, all))
	}
	t.cramped.Store(lackRoom(results))
	return results
}

// pass returns the objects of a target that are mirrored.
func (l *ledger) pass(t *target, complete bool, all []*object) []*object {
	kept, missed := l.choice.pass(t, complete, all)
	if missed {
		t.restart()
	}
	return kept
}

// put tells the intake of an object that is new or changed.
func (l *ledger) put(t *target, o *object) []intake.Result {
	results := l.change(t, o)
	if lackRoom(results) {
		t.cramped.Store(true)
	}
	return results
}

func (l *ledger) change(t *target, o *object) []intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := []*object{o}
	if t.kind == namespaceKind {
		return l.choose(false, some)
	}
	if some = l.pass(t, false, some); len(some) == 0 {
		return nil
	}
	if l.converts(t.kind) {
		refused := refusal(l.ingresses.set(t.kind, o), t, o)
		return append(l.tell(l.convert(l.changed)), refused...)
	}
	return l.tell([]intake.Update{{Scope: intake.KindScope(t.kind), Elements: t.elements(some), Part: l.awaits(t.kind)}})
}

// remove tells the intake that an object is gone.
func (l *ledger) remove(t *target, o *object) []intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case t.kind == namespaceKind:
		l.choice.remove(o.name)
		return nil
	case l.converts(t.kind):
		l.ingresses.remove(t.kind, o)
		return l.tell(l.convert(l.changed))
	}
	u := unchanged(t.kind)
	u.Removed, u.Part = names([]string{o.fullName()}), l.awaits(t.kind)
	return l.tell([]intake.Update{u})
}

// tell steps the intake over updates as one event, if there are any.
func (l *ledger) tell(updates []intake.Update) []intake.Result {
	if len(updates) == 0 {
		return nil
	}
	return []intake.Result{l.feed.Tell(intake.Received{Updates: updates})}
}

// resumed notes that the changes of a target follow again.
func (l *ledger) resumed(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.quiet = false; !t.listed {
		return // what it has was not told
	}
	if t.ok = true; !l.open {
		l.begin(nil)
		return
	}
	l.answer(t)
}

// answer counts a target as answered in the present stream, with nothing new.
func (l *ledger) answer(t *target) {
	if _, waits := l.awaited[t]; !waits {
		return
	}
	switch delete(l.awaited, t); {
	case t.kind == namespaceKind:
	case !l.converts(t.kind):
		if !l.awaits(t.kind) {
			l.tell([]intake.Update{unchanged(t.kind)})
		}
	case !l.awaitsInputs():
		l.tell(l.convert(l.converted))
	}
}

// lost notes that the changes of a target do not follow any more.
func (l *ledger) lost(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.ok {
		t.ok, t.lostAt = false, time.Now()
	}
}

// follows reports whether the changes of a target follow.
func (l *ledger) follows(t *target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.ok
}

// outOfTouch reports whether the changes of a target that was listed do not follow for too long.
func (l *ledger) outOfTouch(t *target, now time.Time, grace time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.listed && !t.ok && now.Sub(t.lostAt) > grace
}

// hush notes that a target can not be read: its objects stay, and the upstream goes on without it. It has
// no effect on the last target that can be read, unless that is of namespaces.
func (l *ledger) hush(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others := false
	for kind, all := range l.targets {
		others = others || kind != namespaceKind && slices.ContainsFunc(all, func(other *target) bool { return other != t && !other.quiet })
	}
	if t.ok {
		t.ok, t.lostAt = false, time.Now()
	}
	if !others || t.quiet {
		return
	}
	t.quiet = true
	l.answer(t)
}

// drop tells the intake that all objects of a kind are gone.
func (l *ledger) drop(kind mirror.Kind) intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := unchanged(kind)
	u.Complete = true
	return l.feed.Tell(intake.Received{Updates: []intake.Update{u}})
}

// check ends the stream of the intake when a target does not follow for too long, and begins one
// when all do. It reports whether they do. why returns why the server is out of contact; it may not
// call the ledger.
func (l *ledger) check(now time.Time, grace time.Duration, why func() intake.Closed) (follows bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	follows = l.begun
	for kind, all := range l.targets {
		for _, t := range all {
			if t.ok || t.quiet {
				continue
			}
			follows = false
			if l.open && now.Sub(t.lostAt) > grace {
				l.open = false
				l.close(why(), fmt.Sprintf("%s is not followed since %s", kind, t.lostAt.UTC().Format(time.RFC3339)))
			}
		}
	}
	switch {
	case follows && !l.open:
		l.begin(nil) // the last one that did not follow is not expected to any more
	case !follows && !l.open:
		l.close(why(), "")
	}
	return follows
}

// close tells why the server is out of contact, or usually where nobody knows, unless the same was
// told before.
func (l *ledger) close(c intake.Closed, usually string) {
	if c.Reason = cmp.Or(c.Reason, usually); c.Reason == "" || l.closed != nil && l.closed.Denied == c.Denied && l.closed.Failed == c.Failed {
		return
	}
	l.closed = &c
	l.feed.Tell(c)
}
