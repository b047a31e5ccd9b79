package adsclient

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestTheNextAddress has scripts: "1 fails" is an attempt that has to be at address 1.
func TestTheNextAddress_C16(t *testing.T) {
	for rule, script := range map[string]string{
		"the preferred address is first":                  "0 works",
		"each address of a round is tried once, in order": "0 fails, 1 fails, 2 fails, round, 0 fails, 1 fails, 2 fails, round",
		"a routine end is followed by the same address":   "0 fails, 1 ends, 1 ends, 1 ends, 1 ends",
		"then come the others, the preferred first":       "0 fails, 1 ends, 1 fails, 0 fails, 2 fails, round",
		"then the preferred, though they failed":          "0 fails, 1 fails, 2 ends, 2 fails, 0 works",
		"when all fail the preferred are first again":     "0 fails, 1 ends, 1 fails, 0 fails, 2 fails, round, 0 fails, 1 works",
		"a move that fails leads back":                    "0 fails, 1 fails, 2 ends, move 0 2, 0 fails, 2 works",
		"what then fails leads on":                        "0 fails, 1 fails, 2 ends, move 0 2, 0 fails, 2 fails, 1 works",
		"a stream that ends soon leads elsewhere":         "0 ends soon, 1 fails, 2 fails, round, 0 works",
	} {
		t.Run(rule, func(t *testing.T) {
			r := route{addresses: 3}
			for step := range strings.SplitSeq(script, ", ") {
				var i, back int
				var what string
				switch {
				case step == "round":
					if !r.over() {
						t.Fatalf("the round goes on with %v", r.rest)
					}
					continue
				case scan(step, "move %d %d", &i, &back):
					r.begin(i, back)
					continue
				}
				if !scan(step, "%d %s", &i, &what) {
					t.Fatalf("script: %q", step)
				}
				if got := r.next(); got != i {
					t.Fatalf("at %q: address %d is next", step, got)
				}
				if what == "ends" && !strings.HasSuffix(step, "soon") {
					r.begin(i)
				}
			}
		})
	}
}

func scan(s, format string, into ...any) bool {
	n, err := fmt.Sscanf(s, format, into...)
	return err == nil && n == len(into)
}

// TestNoAddressIsForgotten: whatever happened, a round that only fails tries each address
// once.
func TestNoAddressIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "addresses")
		one := rapid.IntRange(0, n-1)
		r := route{addresses: n}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			i := r.next()
			switch rapid.SampledFrom([]string{"fails", "ends", "moves"}).Draw(t, "what") {
			case "ends":
				r.begin(i)
			case "moves":
				if to := one.Draw(t, "to"); to < i {
					r.begin(to, i)
				}
			}
		}
		for !r.over() {
			r.next()
		}
		var tried []int
		for {
			tried = append(tried, r.next())
			if r.over() {
				break
			}
		}
		slices.Sort(tried)
		for i := range n {
			if len(tried) != n || tried[i] != i {
				t.Fatalf("a round of %d addresses tries %v", n, tried)
			}
		}
	})
}
