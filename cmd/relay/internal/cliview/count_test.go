package cliview

import "testing"

func TestCountsAgreeWithTheirNouns(t *testing.T) {
	for n, want := range map[int]string{0: "0 deletions are", 1: "1 deletion is", 2: "2 deletions are", 11: "11 deletions are"} {
		if got := Count(n, "deletion") + " " + Agree(n, "is", "are"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
