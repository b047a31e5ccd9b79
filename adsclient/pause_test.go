package adsclient

import (
	"strings"
	"testing"
	"time"
)

// TestTheNextPause_A57 has scripts of rounds: what happened in each, and how long the pause after
// the last one is, give or take half of it. Pauses are from 1 s to 100 s, and 20 s after a denial.
func TestTheNextPause_A57(t *testing.T) {
	for rule, test := range map[string]struct {
		script string
		want   time.Duration
	}{
		"the first pause is the least":                               {"fails", time.Second},
		"pauses grow while nothing syncs":                            {"fails fails fails fails", 4096 * time.Millisecond},
		"up to the greatest":                                         {strings.Repeat("fails ", 40), 100 * time.Second},
		"a stream that stays begins them anew":                       {"fails fails fails fails stays fails", time.Second},
		"so does one that syncs and ends soon, if it is away then":   {"fails fails fails fails leaves fails", time.Second},
		"streams that sync and end soon grow a pause of their own":   {"leaves leaves leaves leaves", 4096 * time.Millisecond},
		"which failures between them do not shorten":                 {"leaves fails leaves fails leaves fails leaves", 4096 * time.Millisecond},
		"and a stream that stays does":                               {"leaves leaves leaves stays leaves", time.Second},
		"who refuses us is left alone for longer":                    {"denied", 20 * time.Second},
		"also where another address is unsteady":                     {"denied+leaves", 20 * time.Second},
		"a denial counts in its round only":                          {"denied fails", 1600 * time.Millisecond},
		"and a stream that ends soon counts in its round only":       {"leaves leaves leaves fails", time.Second},
		"a denial does not shorten a pause that is longer by itself": {strings.Repeat("fails ", 40) + "denied", 100 * time.Second},
	} {
		t.Run(rule, func(t *testing.T) {
			p := newPauses(time.Second, 100*time.Second, 20*time.Second)
			var got time.Duration
			for _, round := range strings.Fields(test.script) {
				if round == "stays" {
					p.stayed()
					continue
				}
				p.refused = strings.Contains(round, "denied")
				if strings.Contains(round, "leaves") {
					p.left()
				}
				got = p.afterRound()
			}
			if got < test.want/2 || got > test.want*3/2 {
				t.Errorf("the pause is %v, expected %v give or take half", got, test.want)
			}
		})
	}
}
