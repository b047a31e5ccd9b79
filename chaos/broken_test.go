package main

import (
	"errors"
	"testing"
)

// proofSeed is any seed: the faults that it brings are those of proofScenario.
const proofSeed = 1

// The suite is of use only if it can fail.
func TestEachBrokenBuildIsCaught(t *testing.T) {
	for _, tt := range []struct{ build, invariant string }{
		{"i1", lost}, {"i2", wrong}, {"i3", older}, {"i4", leaked},
	} {
		t.Run(tt.build, func(t *testing.T) {
			res, err := prove(t, tt.build)
			var v *violation
			if !errors.As(err, &v) {
				t.Fatalf("after %d rounds: %v, want that %s is violated", res.rounds, err, tt.invariant)
			}
			if v.invariant != tt.invariant {
				t.Errorf("%v, want that %s is violated", v, tt.invariant)
			}
		})
	}
}

func TestHealthyBuildIsNotCaught(t *testing.T) {
	res, err := prove(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if res.changes == 0 || res.responses == 0 || res.storms == 0 {
		t.Errorf("nothing has happened: %+v", res)
	}
}

// prove builds a relay and plays a round with it.
func prove(t *testing.T, build string) (result, error) {
	t.Helper()
	dir := t.TempDir()
	binary, err := buildBroken(t.Context(), build, dir)
	if err != nil {
		t.Fatal(err)
	}
	j := newJournal(t.Output())
	res, err := proofScenario().run(t.Context(), proofSeed, 0, binary, dir, j)
	var v *violation
	if errors.As(err, &v) {
		j.replay(t.Output(), v.key)
	}
	return res, err
}
