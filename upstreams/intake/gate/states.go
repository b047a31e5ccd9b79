package gate

// State is what the gate knows of a key. Follows has no entry.
type State uint8

// States of a key.
const (
	Follows   State = iota // what the source wants is served
	Departing              // the source has deleted it; the guard has still to judge
	Held                   // the guard holds the deletion
	Differs                // frozen: the source wants something else, or has it no more
	RuledOut               // frozen: the rules leave it out, so it goes at the thaw without the guard
	Kept                   // frozen: it was not served, a rollback has brought it back, and the source has it not
	states
)

// Waits reports whether a deletion waits for the guard.
func (s State) Waits() bool { return s == Departing || s == Held }

// event is what happens to a key. In brackets: the method that applies it.
type event uint8

const (
	wanted    event = iota // live: the source wants a resource [Wants]
	same                   // frozen: the source wants what is served [Wants]
	other                  // frozen: the source wants something else [Wants]
	gone                   // the source has it no more [Gone]
	ruledOut               // the rules leave it out [RuleOut]
	holds                  // the guard holds it: a hold begins [holdAll], or is open [Gone]
	holdEnds               // the hold ends, and the guard judges again [endHold]
	passes                 // the guard or an operator lets the deletion pass [carry]
	expires                // the source is out of contact for too long [expire]
	freezes                // an operator freezes the upstream [Freeze]
	rollsBack              // a rollback serves it, and it was not served before [RollBack]
	recounts               // what the source wants of all keys comes next, or has come [Recount]
	events
)

// effect is what the gate does with what is served under a key.
type effect uint8

const (
	stays   effect = iota // it stays as it is
	serves                // the caller puts what the source wants
	drops                 // it is served no more
	returns               // as serves; the hold notes that something has returned
	bares                 // it stays; Watcher.Keeps gives it the endpoints of now, if they are no part of its config
)

// row is one transition.
type row struct {
	frozen bool
	from   State
	on     event
	to     State
	do     effect
}

// transitions returns every transition that can happen. A thaw finds no RuledOut or Kept key that the source wants, and no
// Kept one that the rules leave out: the gate was told of that in the freeze.
func transitions() []row {
	const live, frozen = false, true
	all := []row{
		{live, Follows, wanted, Follows, serves},
		{live, Follows, gone, Departing, stays},
		{live, Follows, expires, Follows, drops},
		{live, Departing, wanted, Follows, serves},
		{live, Departing, gone, Departing, stays},
		{live, Departing, holds, Held, bares},
		{live, Departing, passes, Follows, drops},
		{live, Departing, expires, Follows, drops},
		{live, Departing, freezes, Differs, bares},
		{live, Held, wanted, Follows, returns},
		{live, Held, gone, Held, stays},
		{live, Held, holdEnds, Departing, stays},
		{live, Held, passes, Follows, drops},
		{live, Held, expires, Follows, drops},
		{live, Held, freezes, Differs, stays},
		{live, RuledOut, recounts, Follows, stays},
		{live, Kept, gone, Departing, stays},
		{live, Kept, recounts, Follows, stays},
		{frozen, Follows, gone, Differs, bares},
		{frozen, Follows, rollsBack, Kept, stays},
		{frozen, Differs, gone, Differs, bares},
		{frozen, Differs, recounts, Follows, stays},
		{frozen, RuledOut, gone, RuledOut, bares},
		{frozen, Kept, gone, Kept, bares},
	}
	for _, from := range []State{Follows, Departing, Held, RuledOut} {
		all = append(all, row{live, from, ruledOut, Follows, drops})
	}
	for _, from := range []State{Follows, Differs, RuledOut, Kept} {
		all = append(all, row{frozen, from, same, Follows, stays}, row{frozen, from, other, Differs, stays},
			row{frozen, from, ruledOut, RuledOut, bares})
	}
	return all
}

// table has the transitions by mode, state and event. One that is not there changes nothing.
type table [2][states][events]row

func newTable(rows []row) *table {
	t := &table{}
	for _, mode := range []bool{false, true} {
		for from := range states {
			for on := range events {
				*t.of(mode, from, on) = row{mode, from, on, from, stays}
			}
		}
	}
	for _, r := range rows {
		*t.of(r.frozen, r.from, r.on) = r
	}
	return t
}

func (t *table) of(frozen bool, from State, on event) *row {
	if frozen {
		return &t[1][from][on]
	}
	return &t[0][from][on]
}
