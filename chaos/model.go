package main

import (
	"fmt"
	"time"
)

// The invariants.
const (
	// alive (I0): a relay does not end by itself, and does not spoil its own state.
	alive = "I0"
	// lost (I1): no client sees a config disappear that its source did not delete.
	lost = "I1"
	// wrong (I2): soon after the last fault every client holds exactly the merge of the
	// sources, and never anything that no source has given.
	wrong = "I2"
	// older (I3): no client sees an older content of a config after a newer one from the
	// same source.
	older = "I3"
	// leaked (I4): goroutines, file descriptors and heap return to where they were.
	leaked = "I4"
	// unreached (I5): no address of a Service remains promptness after its API server has taken it away, and none is
	// absent that the server has for so long, while the source is in contact. At the end of a round no source has an
	// excuse.
	unreached = "I5"

	// These are about a sink and replicas.
	//
	// lostObject (S1): no object is deleted that an upstream still has, or that is not the sink's.
	lostObject = "S1"
	// afterPromotion (S2): no sink writes after a promotion, until it is adopted and a person has ended its freeze.
	afterPromotion = "S2"
	// disagree (S3): replicas that reach the ConfigMap follow the same orders soon after all is quiet.
	disagree = "S3"
	// forgotten (S4): no order is lost that was acknowledged, and none that has ended comes back.
	forgotten = "S4"
	// notOurs (S5): soon after the last fault the cluster has what the view shows. An object without the label is never
	// touched.
	notOurs = "S5"
)

// violation is that something has happened which must not.
type violation struct {
	invariant string
	who       string // the client or the relay
	key       int    // -1 unless it is about a config
	text      string
}

func (v *violation) Error() string {
	if v.key >= 0 {
		return fmt.Sprintf("%s is violated: %s: %s: %s", v.invariant, v.who, describe(v.key), v.text)
	}
	return fmt.Sprintf("%s is violated: %s: %s", v.invariant, v.who, v.text)
}

// view is what one client has seen. It is not safe for use by several goroutines at once.
//
// The history of a config at a source is a list that only grows. A client need not see all of
// it, but sees it in that order: for each source and key the view has a cursor into the
// list, which never moves back. When a client sees nothing of a config, every source that has it
// must have a deletion at or after the cursor. When it sees a content, the list must have that
// content, and the sources before it their deletions. The cursor takes the first entry that fits,
// so that the model reports nothing that may be right.
type view struct {
	who   string
	world *world
	shown map[int]content
	// cursors are by source, and then by key.
	cursors []map[int]*cursor
}

// cursor is a place in the history of a key at a source.
type cursor struct {
	at   int
	past []move // oldest first
}

type move struct {
	at   int
	when time.Time
}

// movesKept is for how long a cursor remembers where it was.
const movesKept = time.Minute

func newView(who string, w *world) *view {
	v := &view{who: who, world: w, shown: map[int]content{}, cursors: make([]map[int]*cursor, len(w.sources))}
	for i := range v.cursors {
		v.cursors[i] = map[int]*cursor{}
	}
	return v
}

// clone returns a view that begins with what v has seen.
func (v *view) clone(who string) *view {
	out := newView(who, v.world)
	for key, c := range v.shown {
		out.shown[key] = c
	}
	for n, of := range v.cursors {
		for key, c := range of {
			out.cursors[n][key] = &cursor{at: c.at, past: append([]move(nil), c.past...)}
		}
	}
	return out
}

func (v *view) cursor(source, key int) *cursor {
	c := v.cursors[source][key]
	if c == nil {
		c = &cursor{}
		v.cursors[source][key] = c
	}
	return c
}

func (c *cursor) advance(to int, now time.Time) {
	if to == c.at {
		return
	}
	c.at = to
	old := 0
	for old+1 < len(c.past) && now.Sub(c.past[old+1].when) > movesKept {
		old++
	}
	c.past = append(c.past[old:], move{to, now})
}

// before returns where the cursor was at a time.
func (c *cursor) before(at time.Time) int {
	was := 0
	for _, m := range c.past {
		if m.when.After(at) {
			break
		}
		was = m.at
	}
	return was
}

// retell lets clients see the history since a time once more: their relay was killed, and may
// have to learn again what it learnt since then.
func (w *world) retell(views []*view, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, s := range w.sources {
		for key, it := range s.items {
			from := len(it.history) - 1 + it.first
			for _, v := range views {
				from = min(from, v.cursor(n, key).before(since))
			}
			it.repeat(from)
		}
	}
}

// repeat appends the entries from a number on to the history once more, each once.
func (it *item) repeat(from int) {
	from = max(from-it.first, 0)
	if from == len(it.history)-1 {
		return
	}
	type sent struct {
		seq  int
		gone bool
	}
	seen := map[sent]bool{}
	now := time.Now()
	for _, e := range it.history[from:len(it.history):len(it.history)] {
		if !seen[sent{e.seq, e.gone}] {
			seen[sent{e.seq, e.gone}] = true
			e.at = now
			it.history = append(it.history, e)
		}
	}
	// The newest entry stays the last.
	if last := it.history[len(it.history)-1]; last.seq != it.newest.seq || last.gone != it.newest.gone {
		it.history = append(it.history, it.newest)
	}
}

// find returns the number of the first entry of an item's history from a number on that
// fits, -1 when there is none.
func (it *item) find(from int, fits func(entry) bool) int {
	for i := max(from-it.first, 0); i < len(it.history); i++ {
		if fits(it.history[i]) {
			return i + it.first
		}
	}
	return -1
}

// sees checks that a client sees a content of a key now. The caller holds the world's lock.
func (v *view) sees(seen content, now time.Time) *violation {
	it := v.world.sources[seen.source].items[seen.key]
	if it == nil {
		return v.violated(wrong, seen.key, "shows a content of %s, which never had it", v.world.sources[seen.source].name)
	}
	c := v.cursor(seen.source, seen.key)
	is := func(e entry) bool { return !e.gone && e.seq == seen.seq }
	at := it.find(c.at, is)
	if at < 0 {
		name := v.world.sources[seen.source].name
		if it.find(0, is) >= 0 || seen.seq < it.history[0].seq {
			return v.violated(older, seen.key, "shows content #%d of %s after the client had seen #%d", seen.seq, name, it.entry(c.at).seq)
		}
		return v.violated(wrong, seen.key, "shows content #%d of %s, which has never given it", seen.seq, name)
	}
	if !v.world.anyOrder {
		for _, n := range v.world.order {
			if n == seen.source {
				break
			}
			if bad := v.gone(n, seen.key, now, fmt.Sprintf("now shows #%d of %s", seen.seq, v.world.sources[seen.source].name)); bad != nil {
				return bad
			}
		}
	}
	c.advance(at, now)
	v.shown[seen.key] = seen
	return nil
}

// misses checks that a client does not see a key any more. The caller holds the world's
// lock.
func (v *view) misses(key int, now time.Time) *violation {
	if _, had := v.shown[key]; !had {
		return nil
	}
	for n := range v.world.sources {
		if bad := v.gone(n, key, now, "is gone"); bad != nil {
			return bad
		}
	}
	delete(v.shown, key)
	return nil
}

// gone checks that a source has deleted a key, if it had it.
func (v *view) gone(source, key int, now time.Time, what string) *violation {
	s := v.world.sources[source]
	it := s.items[key]
	if it == nil {
		return nil
	}
	c := v.cursor(source, key)
	at := it.find(c.at, func(e entry) bool { return e.gone })
	if at < 0 {
		last := it.entry(c.at)
		return v.violated(lost, key, "%s, and %s, whose #%d the client had seen, has not deleted it since: it sent #%d last, %s",
			what, s.name, last.seq, it.history[len(it.history)-1].seq, age(now, it.history[len(it.history)-1].at))
	}
	if e := it.entry(at); now.Before(e.notBefore) {
		return v.violated(lost, key, "%s %v before the guard may let go of it: %s sent the deletion %s", what, e.notBefore.Sub(now).Round(time.Millisecond), s.name, age(now, e.at))
	}
	c.advance(at, now)
	return nil
}

// entry returns the entry with a number, or the oldest that is remembered.
func (it *item) entry(number int) entry {
	return it.history[min(max(number-it.first, 0), len(it.history)-1)]
}

func age(now, at time.Time) string {
	if at.IsZero() {
		return "at the start"
	}
	return fmt.Sprintf("%v ago", now.Sub(at).Round(time.Millisecond))
}

func (v *view) violated(invariant string, key int, format string, args ...any) *violation {
	return &violation{invariant, v.who, key, fmt.Sprintf(format, args...)}
}

// differs returns the first keys at which a client sees something else than expected, and their
// number.
func (v *view) differs(expected map[int]content) (examples []string, first, total int) {
	first = -1
	for key := range v.world.keys {
		want, wanted := expected[key]
		have, held := v.shown[key]
		if want == have && wanted == held {
			continue
		}
		if total++; total == 1 {
			first = key
		}
		if len(examples) < 3 {
			say := func(c content, ok bool) string {
				if !ok {
					return "nothing"
				}
				return fmt.Sprintf("#%d of %s", c.seq, v.world.sources[c.source].name)
			}
			examples = append(examples, fmt.Sprintf("%s: shows %s, and is to show %s", describe(key), say(have, held), say(want, wanted)))
		}
	}
	return examples, first, total
}
