package trouble

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func problem(name string) Problem {
	return Problem{What: Held, Upstream: name, Cluster: "c", Relays: []string{"east"}, N: 3, Of: 4, Since: time.Unix(1, 0).UTC()}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	two := problem("files")
	two, ok := two.Through("east", "hub")
	if !ok {
		t.Fatal("a second relay does not tell it")
	}
	want := []Problem{two, problem("x")}
	data, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data, "far")
	if d := cmp.Diff(Report{Problems: want}, got); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	lines := []string{
		"at hub, at east: upstream files is held: deletion of 3 of 4 resources since 1970-01-01T00:00:01Z",
		"at hub: upstream x is held: deletion of 3 of 4 resources since 1970-01-01T00:00:01Z",
	}
	if d := cmp.Diff(lines, got.Lines("hub")); d != "" {
		t.Error(d)
	}
	if got, err = Decode(data, "hub"); err != nil || len(got.Problems) != 1 || got.Problems[0].Upstream != "x" {
		t.Errorf("what has passed the relay comes back: %+v %v", got, err)
	}
}

func TestAReportIsBoundedInDepthCountAndBytes(t *testing.T) {
	p, passed := problem("x"), 1
	for ok := true; ok; {
		if p, ok = p.Through("u", fmt.Sprint("r", passed)); ok {
			passed++
		}
	}
	if passed != maxRelays {
		t.Errorf("it passes %d relays", passed)
	}
	long := strings.Repeat("\u00e9<", 80)
	for _, name := range []string{"x", long} {
		var all []Problem
		for range 1000 {
			p := problem(name)
			for range maxRelays - 1 {
				p, _ = p.Through(name, name)
			}
			all = append(all, p)
		}
		data, err := Encode(all)
		if err != nil || len(data) > MaxBytes {
			t.Fatalf("%d bytes %v", len(data), err)
		}
		r, err := Decode(data, "me")
		if err != nil || len(r.Problems) == 0 || len(r.Problems) > maxProblems || len(r.Problems)+r.More != 1000 {
			t.Errorf("%d problems, %d more, %v", len(r.Problems), r.More, err)
		}
		lines := r.Lines("hub")
		for _, line := range lines {
			if len(line) > 6*(maxShown+10)+100 {
				t.Errorf("a line has %d bytes", len(line))
			}
		}
		if last := lines[len(lines)-1]; last != fmt.Sprintf("at hub: and %d more problems", r.More) {
			t.Error(last)
		}
	}
}

// TestHostileReportsAreRefusedWithTheReason_C24
func TestHostileReportsAreRefusedWithTheReason_C24(t *testing.T) {
	one := func(change func(*Problem)) string {
		p := problem("x")
		change(&p)
		data, err := Encode([]Problem{p})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for data, want := range map[string]string{
		strings.Repeat(" ", MaxBytes+1): "at most 65536",
		"":                              "not JSON",
		`{"problems":[]}x`:              "not JSON",
		`{"problems":[` + strings.Repeat("{},", 32) + `{}]}`: "at most 32",
		`{"problems":[],"more":-1}`:                          "negative",
		`{"problems":[{}]}`:                                  "passed 0 relays",
		one(func(p *Problem) { p.Relays = []string{"a", "b", "c", "d", "e"}; p.At = p.Relays[1:] }): "passed 5 relays",
		one(func(p *Problem) { p.At = []string{"u"} }):                                              "one less",
		one(func(p *Problem) { p.N = -1 }):                                                          "negative",
		one(func(p *Problem) { p.What = "\x1b[2J" }):                                                "is no problem",
		one(func(p *Problem) { p.What = "" }):                                                       "empty",
		one(func(p *Problem) { p.Upstream = "a\nnot ready" }):                                       "no name",
		one(func(p *Problem) { p.Cluster = strings.Repeat("x", 254) }):                              "no name",
		one(func(p *Problem) { p.Relays = []string{""} }):                                           "empty",
	} {
		if r, err := Decode(data, "me"); err == nil || !strings.Contains(err.Error(), want) || r.Problems != nil {
			t.Errorf("%.80q: %+v, error %v, want %q", data, r, err, want)
		}
	}
}

func TestAResourceIsConcernedByItsUpstreamAndTheRelaysOnItsWay(t *testing.T) {
	behind, _ := problem("files").Through("east", "hub")
	at := Problem{What: Frozen, Upstream: "east", Relays: []string{"hub"}}
	r := Report{Problems: []Problem{behind, at, problem("elsewhere")}}
	names := func(source string, path ...string) (out []string) {
		for _, p := range r.Concerning(source, path).Problems {
			out = append(out, p.Upstream)
		}
		return out
	}
	if got := names("files", "east", "hub", "far"); !slices.Equal(got, []string{"files", "east"}) {
		t.Error(got)
	}
	if got := names("own", "hub", "far"); got != nil {
		t.Error(got)
	}
}

// FuzzDecode: what decodes is within the bounds, and can be told on.
func FuzzDecode(f *testing.F) {
	data, err := Encode([]Problem{problem("x")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(`{"problems":[{"what":"held","upstream":"a","relays":["b"],"since":"x"}]}`)
	f.Fuzz(func(t *testing.T, data string) {
		r, err := Decode(data, "me")
		if err != nil {
			return
		}
		for _, line := range r.Lines("up") {
			if len(line) > 6*(maxShown+10)+200 || strings.Contains(line, "\n") {
				t.Errorf("line %q", line)
			}
		}
		again, err := Encode(r.Problems)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again, "me"); err != nil {
			t.Errorf("what was decoded is refused: %v", err)
		}
	})
}

func TestAProblemThatLeavesTheContactLosesNone(t *testing.T) {
	for what, want := range map[What]bool{Held: false, Frozen: false, Refused: false, Stale: true, "disconnected": true} {
		p := problem("files")
		p.What = what
		if got := (Report{Problems: []Problem{p}}).ContactLost(); got.IsZero() == want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
