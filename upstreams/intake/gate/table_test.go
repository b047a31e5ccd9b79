package gate

import (
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// TestTheGateKeepsItsPromises in random worlds.
func TestTheGateKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { walk(t, transitions()) })
}

// breaks reports whether a gate with these transitions breaks a promise in the world of a seed, or panics.
func breaks(rows []row, seed int) (broken bool) {
	rapid.Custom(func(t *rapid.T) bool {
		defer func() {
			if p := recover(); p != nil && fmt.Sprintf("%T", p) != "rapid.invalidData" { // that draws again
				broken = true
			}
		}()
		walk(t, rows)
		return true
	}).Example(seed)
	return broken
}

// equivalent returns why nobody can see that a row is replaced, empty if somebody can.
func equivalent(old, now row) string {
	switch {
	case now.do == serves && old.do == stays && old.on != wanted && old.on != other:
		return "only the source puts something, and what is the same is served already"
	case now.do == bares && (old.on == gone || old.on == freezes || old.on == holdEnds):
		return "it has no endpoints any more, or nobody says how long it keeps them while it waits for the guard"
	case now.do == bares && (old.on == recounts || old.on == rollsBack):
		return "what the source wants of it is told next, or nobody says that it has endpoints until then"
	case now.do == returns && (old.on == freezes || old.on == holdEnds):
		return "the hold is over, and nobody asks it any more"
	case old.on == ruledOut && !old.frozen && old.from == RuledOut && now.do == drops && (now.to == Kept || now.to == RuledOut):
		return "the thaw ends, and with it these states"
	case old.frozen && now.do == old.do && (old.on == other && now.to == Kept ||
		old.from == Kept && (old.on == other && now.to == RuledOut || old.on == ruledOut && now.to == Differs)):
		return "it is told again at the thaw, which ends each of these states in the same way"
	}
	return ""
}

// TestEachMutantOfTheTableIsCaught replaces each row by one with another effect, or another next state. More checks than
// usual look for worlds that tell equivalent ones apart, too.
func TestEachMutantOfTheTableIsCaught(t *testing.T) {
	checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan func())
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for judge := range all {
				judge()
			}
		})
	}
	for i, old := range transitions() {
		mutants := []row{}
		for to := range states {
			mutants = append(mutants, row{old.frozen, old.from, old.on, to, old.do})
		}
		for do := range bares + 1 {
			mutants = append(mutants, row{old.frozen, old.from, old.on, old.to, do})
		}
		for _, now := range mutants {
			why := equivalent(old, now)
			if now == old || why != "" && checks <= 100 {
				continue
			}
			all <- func() {
				rows := transitions()
				rows[i] = now
				for seed := range max(checks, 1000) {
					if breaks(rows, seed) {
						if why != "" {
							t.Errorf("%v instead of %v is caught in world %d, although: %s", now, old, seed, why)
						}
						return
					}
				}
				if why == "" {
					t.Errorf("%v instead of %v is not caught", now, old)
				}
			}
		}
	}
	close(all)
	workers.Wait()
}
