package kubernetes

import (
	"iter"
	"slices"
	"sync"
	"time"

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
type ledger struct {
	kinds []mirror.Kind
	feed  upstreams.Feed

	mu sync.Mutex // guards all below, and books; held while the feed is called, which never calls back
	// targets are those of each kind; awaited are those that the present stream has not answered.
	targets map[mirror.Kind][]*target
	awaited map[*target]struct{}
	open    bool // a stream of the intake is
	// repeating are those that have not repeated what they have.
	repeating map[*target]struct{}
}

// books are what a ledger knows of a target.
type books struct {
	listed bool // all that it has was told
	ok     bool // and its changes follow
	quiet  bool // the server does not serve it, or does not let us read it
	lostAt time.Time
}

func newLedger(kinds []mirror.Kind, feed upstreams.Feed) *ledger {
	return &ledger{
		kinds: kinds, feed: feed,
		targets: map[mirror.Kind][]*target{}, awaited: map[*target]struct{}{}, repeating: map[*target]struct{}{},
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
	return all
}

// set makes targets those of a kind. What the former ones had stays.
func (l *ledger) set(kind mirror.Kind, targets []*target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.targets[kind] {
		delete(l.awaited, t)
		delete(l.repeating, t)
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

// begin begins a stream in which all that do not follow, and t unless nil, have to answer.
func (l *ledger) begin(t *target) {
	l.open = true
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
	l.feed.Tell(intake.Received{Updates: answered})
}

// Begin begins a stream in which all have to answer that do not follow.
func (l *ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin(nil)
}

// knowsNothing reports whether nothing is known of a mirrored kind: what a target lists is new.
func (l *ledger) knowsNothing(t *target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !t.listed && slices.Contains(l.kinds, t.kind) && len(l.feed.Versions(intake.KindScope(t.kind).Name)) == 0
}

// awaits reports whether a target of a kind has to answer.
func (l *ledger) awaits(kind mirror.Kind) bool {
	return slices.ContainsFunc(l.targets[kind], func(t *target) bool { _, waits := l.awaited[t]; return waits })
}

// unchanged is the answer of a kind that has nothing new.
func unchanged(kind mirror.Kind) intake.Update {
	return intake.Update{Scope: intake.KindScope(kind), Elements: intake.Resources()}
}

// replace tells all that a target has.
func (l *ledger) replace(t *target, all []*object) (results []intake.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.awaited[t]; !waits || !l.open {
		l.begin(t)
	}
	delete(l.awaited, t)
	gone := l.vanished(t, all)
	for first := true; first || len(all) > 0; first = false {
		some := all[:min(chunk, len(all))]
		all = all[len(some):]
		u := intake.Update{Scope: intake.KindScope(t.kind), Elements: t.elements(some), Room: len(some) + len(all)}
		if t.namespace == "" {
			u.Complete, u.Part = true, len(all) > 0
		} else if u.Part = len(all) > 0 || l.awaits(t.kind); len(all) == 0 && len(gone) > 0 {
			u.Removed = names(gone)
		}
		results = append(results, l.feed.Tell(intake.Received{Updates: []intake.Update{u}}))
	}
	t.listed, t.ok, t.quiet = true, true, false
	if _, repeats := l.repeating[t]; repeats {
		if delete(l.repeating, t); len(l.repeating) == 0 {
			l.feed.Tell(intake.Repeated{})
		}
	}
	return results
}

// vanished returns the names that a target of one namespace had, and has no more. With the last
// one of a kind, they are also those in no namespace that is watched.
func (l *ledger) vanished(t *target, all []*object) (gone []string) {
	if t.namespace == "" {
		return nil // the intake finds them in a complete answer
	}
	listed := make(map[string]bool, len(all))
	for _, o := range all {
		listed[o.fullName()] = true
	}
	watched := map[string]bool{}
	for _, other := range l.targets[t.kind] {
		watched[other.namespace] = true
	}
	last := !l.awaits(t.kind)
	for name := range l.feed.Versions(intake.KindScope(t.kind).Name) {
		namespace, _, err := mirror.ParseFullName(name)
		if err == nil && (namespace == t.namespace && !listed[name] || last && !watched[namespace]) {
			gone = append(gone, name)
		}
	}
	return gone
}

func names(all []string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range all {
			if !yield([]byte(name)) {
				return
			}
		}
	}
}

// put tells of an object that is new or changed.
func (l *ledger) put(t *target, o *object) intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.feed.Tell(intake.Received{Updates: []intake.Update{{Scope: intake.KindScope(t.kind), Elements: t.elements([]*object{o})}}})
}

// remove tells that an object is gone.
func (l *ledger) remove(t *target, o *object) intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := unchanged(t.kind)
	u.Removed = names([]string{o.fullName()})
	return l.feed.Tell(intake.Received{Updates: []intake.Update{u}})
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

// answer has a target that has nothing new answer the present stream.
func (l *ledger) answer(t *target) {
	if _, waits := l.awaited[t]; !waits {
		return
	}
	if delete(l.awaited, t); !l.awaits(t.kind) {
		l.feed.Tell(intake.Received{Updates: []intake.Update{unchanged(t.kind)}})
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

// hush notes that nobody can expect to read a target: it keeps what it has, and the upstream goes
// on without it. It is refused for the last one that there is.
func (l *ledger) hush(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others := false
	for _, all := range l.targets {
		others = others || slices.ContainsFunc(all, func(other *target) bool { return other != t && !other.quiet })
	}
	if t.ok = false; !others || t.quiet {
		return
	}
	t.quiet = true
	delete(l.repeating, t)
	l.answer(t)
}

// drop tells that there is nothing of a kind any more.
func (l *ledger) drop(kind mirror.Kind) intake.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := unchanged(kind)
	u.Complete = true
	return l.feed.Tell(intake.Received{Updates: []intake.Update{u}})
}

// check ends the stream of the intake when a target does not follow for too long, and begins one
// when all do. It reports whether they do. It is called from the first Begin on.
func (l *ledger) check(now time.Time, grace time.Duration) (follows bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	follows = true
	for _, all := range l.targets {
		for _, t := range all {
			if t.ok || t.quiet {
				continue
			}
			follows = false
			if l.open && now.Sub(t.lostAt) > grace {
				l.open = false
				l.feed.Tell(intake.Closed{})
			}
		}
	}
	if follows && !l.open {
		l.begin(nil) // the last one that did not follow is not expected to any more
	}
	return follows
}

// repeat notes that all targets have to tell what they have once more.
func (l *ledger) repeat() (asked []*target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, all := range l.targets {
		for _, t := range all {
			if !t.quiet {
				l.repeating[t] = struct{}{}
				asked = append(asked, t)
			}
		}
	}
	return asked
}
