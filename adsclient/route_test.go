package adsclient

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTheNextAddress has scripts: "1 fails" is an attempt that has to be at address 1;
// "known bad 2" and "known good 2" come from probes.
func TestTheNextAddress_C16(t *testing.T) {
	for rule, script := range map[string]string{
		"the preferred address is first":                      "0 works",
		"each address of a round is tried once, in order":     "0 fails, 1 fails, 2 fails, round, 0 fails, 1 fails, 2 fails, round",
		"a routine end is followed by the same address":       "0 fails, 1 ends, 1 ends, 1 ends, 1 ends",
		"then come those that are not known to fail":          "0 fails, 1 ends, 1 fails, 2 fails, 0 fails, round",
		"then the preferred, though they failed":              "0 fails, 1 fails, 2 ends, 2 fails, 0 works",
		"a probe's good news puts the preferred first":        "0 fails, 1 ends, known good 0, 1 fails, 0 works",
		"a probe's bad news puts it behind":                   "0 ends, 0 fails, 1 ends, known bad 0, 1 fails, 2 works",
		"when all fail the preferred are first again":         "0 fails, 1 ends, 1 fails, 2 fails, 0 fails, round, 0 fails, 1 works",
		"a move that fails leads back":                        "0 fails, 1 fails, 2 ends, known good 1, move 0 2, 0 fails, 2 works",
		"what then fails leads on":                            "0 fails, 1 fails, 2 ends, move 0 2, 0 fails, 2 fails, 1 works",
		"streams that end soon lead elsewhere the third time": "0 ends soon, 0 ends soon, 0 ends soon, 1 fails, 2 fails, 0 works",
		"one that lasts makes up for those before":            "0 ends soon, 0 ends soon, 0 ends, 0 ends soon, 0 ends soon, 0 works",
	} {
		t.Run(rule, func(t *testing.T) {
			unwell := map[int]bool{}
			r := newRoute(3, func(i int) bool { return unwell[i] })
			for step := range strings.SplitSeq(script, ", ") {
				var i, back int
				var what string
				switch {
				case step == "round":
					if !r.over() {
						t.Fatalf("the round goes on: tried %v", r.tried)
					}
					continue
				case scan(step, "known bad %d", &i), scan(step, "known good %d", &i):
					unwell[i] = strings.Contains(step, "bad")
					continue
				case scan(step, "move %d %d", &i, &back):
					r.move(i, back)
					continue
				}
				if !scan(step, "%d %s", &i, &what) {
					t.Fatalf("script: %q", step)
				}
				if got := r.next(); got != i {
					t.Fatalf("at %q: address %d is next", step, got)
				}
				switch unwell[i] = what == "fails"; what {
				case "ends":
					unwell[i] = !r.ended(i, strings.HasSuffix(step, "soon"))
				case "fails", "works":
				default:
					t.Fatalf("script: %q", step)
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
		unwell := make([]bool, n)
		r := newRoute(n, func(i int) bool { return unwell[i] })
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			i := r.next()
			switch rapid.SampledFrom([]string{"fails", "ends", "ends soon", "moves"}).Draw(t, "what") {
			case "fails":
				unwell[i] = true
			case "ends":
				unwell[i] = !r.ended(i, false)
			case "ends soon":
				unwell[i] = !r.ended(i, true)
			case "moves":
				if to := one.Draw(t, "to"); to < i {
					r.move(to, i)
				}
			}
			unwell[one.Draw(t, "probed")] = rapid.Bool().Draw(t, "unwell")
		}
		for !r.over() {
			r.next()
		}
		var round []int
		for {
			round = append(round, r.next())
			if r.over() {
				break
			}
		}
		slices.Sort(round)
		for i := range n {
			if len(round) != n || round[i] != i {
				t.Fatalf("a round of %d addresses tries %v", n, round)
			}
		}
	})
}

func TestProgressIsMoreThanNoise(t *testing.T) {
	const idle = 3 // bytes per second: a ping each way in 30 s, over TLS
	for _, tc := range []struct {
		name    string
		timeout time.Duration
		rate    int64 // bytes per second
		stalls  bool
	}{
		{"silence", 30 * time.Second, 0, true},
		{"pings", 30 * time.Second, idle, true},
		{"pings, with a long timeout", time.Hour, idle, true},
		{"a ping each second", 30 * time.Second, 60, true},
		{"a ping each second, with a long timeout", time.Hour, 60, true},
		{"one KB/s", 30 * time.Second, 1 << 10, false},
		{"one KB/s, with a short timeout", time.Second, 1 << 10, false},
		{"300 B/s, with a long timeout", 10 * time.Minute, 300, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Now()
			p := newProgress(tc.timeout, now)
			step := tc.timeout / 8
			for i := range int64(80) {
				now = now.Add(step)
				bytes := tc.rate * int64(step*time.Duration(i+1)/time.Millisecond) / 1000
				if stalled := p.stalled(now, bytes, false); stalled {
					if !tc.stalls {
						t.Fatalf("given up after %v", step*time.Duration(i+1))
					}
					if i != 7 {
						t.Fatalf("given up after %v", step*time.Duration(i+1))
					}
					return
				}
			}
			if tc.stalls {
				t.Error("not given up")
			}
		})
	}
}

func TestAnAnswerIsProgressWhateverItsSize(t *testing.T) {
	now := time.Now()
	p := newProgress(time.Second, now)
	for range 20 {
		now = now.Add(time.Second)
		if p.stalled(now, 0, true) {
			t.Fatal("given up")
		}
	}
	if !p.stalled(now.Add(time.Second), 0, false) {
		t.Error("not given up")
	}
}
