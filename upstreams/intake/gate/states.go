package gate

// State is what the gate knows of a key. Follows has no entry.
type State uint8

// States of a key.
const (
	Follows   State = iota // what the source wants is served
	Departing              // the source has deleted it; the guard has still to judge
	Held                   // the guard holds the deletion
	Changed                // frozen: the source wants something else
	Gone                   // frozen: the source has it no more
	RuledOut               // frozen: the rules leave it out, so it goes at the thaw without the guard
	Kept                   // frozen: a rollback has brought it, and the source has it not
	states
)

// Waits reports whether a deletion waits for the guard.
func (s State) Waits() bool { return s == Departing || s == Held }

// event is what happens to a key.
type event uint8

const (
	wanted    event = iota // live: the source wants a resource
	same                   // frozen: the source wants what is served
	other                  // frozen: the source wants something else
	gone                   // the source has it no more
	ruledOut               // the rules leave it out
	holds                  // the guard begins to hold
	holdEnds               // the hold ends, and the guard judges again
	passes                 // the guard or an operator lets the deletion pass
	expires                // the source is out of contact for too long
	freezes                // an operator freezes the upstream
	rollsBack              // a rollback serves it
	recounts               // what the source wants of all keys comes next, or has come
	events
)

// effect is what the gate does with what is served under a key.
type effect uint8

const (
	stays   effect = iota // it stays as it is
	serves                // the caller puts what the source wants
	drops                 // it is served no more
	returns               // as serves; the hold notes that something has returned
	bares                 // it stays; the caller gives it the endpoints of now
)

// row is one transition.
type row struct {
	frozen bool
	from   State
	on     event
	to     State
	do     effect
}

// transitions has every transition that can happen.
func transitions() []row {
	const live, frozen = false, true
	return []row{
		{live, Follows, wanted, Follows, serves},
		{live, Follows, gone, Departing, stays},
		{live, Follows, ruledOut, Follows, drops},
		{live, Follows, expires, Follows, drops},
		{live, Departing, wanted, Follows, serves},
		{live, Departing, gone, Departing, stays},
		{live, Departing, ruledOut, Follows, drops},
		{live, Departing, holds, Held, bares},
		{live, Departing, passes, Follows, drops},
		{live, Departing, expires, Follows, drops},
		{live, Departing, freezes, Gone, stays},
		{live, Held, wanted, Follows, returns},
		{live, Held, gone, Held, stays},
		{live, Held, ruledOut, Follows, drops},
		{live, Held, holdEnds, Departing, stays},
		{live, Held, passes, Follows, drops},
		{live, Held, expires, Follows, drops},
		{live, Held, freezes, Gone, stays},
		{live, RuledOut, wanted, Follows, serves},
		{live, RuledOut, ruledOut, Follows, drops},
		{live, RuledOut, recounts, Follows, stays},
		{live, Kept, wanted, Follows, serves},
		{live, Kept, gone, Departing, stays},
		{live, Kept, ruledOut, Follows, drops},
		{live, Kept, recounts, Follows, stays},
		{frozen, Follows, same, Follows, stays},
		{frozen, Follows, other, Changed, stays},
		{frozen, Follows, gone, Gone, bares},
		{frozen, Follows, ruledOut, RuledOut, bares},
		{frozen, Follows, rollsBack, Kept, stays},
		{frozen, Changed, same, Follows, stays},
		{frozen, Changed, other, Changed, stays},
		{frozen, Changed, gone, Gone, bares},
		{frozen, Changed, ruledOut, RuledOut, bares},
		{frozen, Changed, rollsBack, Kept, stays},
		{frozen, Changed, recounts, Follows, stays},
		{frozen, Gone, same, Follows, stays},
		{frozen, Gone, other, Changed, stays},
		{frozen, Gone, gone, Gone, bares},
		{frozen, Gone, ruledOut, RuledOut, bares},
		{frozen, Gone, rollsBack, Kept, stays},
		{frozen, Gone, recounts, Follows, stays},
		{frozen, RuledOut, same, Follows, stays},
		{frozen, RuledOut, other, Changed, stays},
		{frozen, RuledOut, gone, RuledOut, bares},
		{frozen, RuledOut, ruledOut, RuledOut, bares},
		{frozen, RuledOut, rollsBack, Kept, stays},
		{frozen, Kept, same, Follows, stays},
		{frozen, Kept, other, Changed, stays},
		{frozen, Kept, gone, Kept, bares},
		{frozen, Kept, ruledOut, RuledOut, bares},
		{frozen, Kept, rollsBack, Kept, stays},
	}
}

// table has the transitions by mode, state and event. A transition that is not there changes nothing.
type table [2][states][events]row

func newTable(rows []row) *table {
	t := &table{}
	for mode := range t {
		for from := range t[mode] {
			for on := range t[mode][from] {
				t[mode][from][on] = row{mode == 1, State(from), event(on), State(from), stays}
			}
		}
	}
	for _, r := range rows {
		t[modeOf(r.frozen)][r.from][r.on] = r
	}
	return t
}

func modeOf(frozen bool) int {
	if frozen {
		return 1
	}
	return 0
}
