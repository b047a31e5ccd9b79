package adsclient

import "slices"

// briefEnds is how many streams in a row may end soon after they synced until that is
// taken for a failure.
const briefEnds = 3

// route says which address is next, by number: 0 is the most preferred. It knows no time
// and does no I/O.
//
// A round tries each address once. It begins with the one whose stream has just ended in
// the course of things, as servers limit the age of connections on purpose (PROTOCOL C18);
// then come those that are not known to fail, then the others, and among equals the
// preferred come first.
type route struct {
	addresses int
	first     []int  // what the present round tries before all else
	tried     []bool // in the present round
	brief     int    // streams in a row that ended soon
	// unwell reports whether the last that is known of an address is a failure.
	unwell func(int) bool
}

func newRoute(addresses int, unwell func(int) bool) *route {
	return &route{addresses: addresses, tried: make([]bool, addresses), unwell: unwell}
}

// next returns the address to try, and begins a new round where the last one is over.
func (r *route) next() int {
	if r.over() {
		r.begin()
	}
	best := -1
	if len(r.first) > 0 {
		best, r.first = r.first[0], r.first[1:]
	}
	for _, unwell := range []bool{false, true} {
		for i := range r.addresses {
			if best < 0 && !r.tried[i] && r.unwell(i) == unwell {
				best = i
			}
		}
	}
	r.tried[best] = true
	return best
}

// over reports whether each address of the present round has been tried.
func (r *route) over() bool { return !slices.Contains(r.tried, false) }

// begin begins a new round, with the addresses given first.
func (r *route) begin(first ...int) {
	clear(r.tried)
	r.first = first
}

// ended begins a new round after a stream that had synced. soon says that it lasted only a
// moment. The result says whether that was in the course of things.
func (r *route) ended(i int, soon bool) (routine bool) {
	r.brief++
	if !soon {
		r.brief = 0
	}
	if r.brief < briefEnds {
		r.begin(i)
		return true
	}
	r.begin()
	return false
}

// move begins a new round with an address, and goes back to the other one should it fail.
func (r *route) move(to, back int) { r.begin(to, back) }
