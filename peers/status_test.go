package status

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func of(process string, contents ...string) Status {
	s := Status{Node: "relay-" + process, Process: process, Serving: true}
	for i, c := range contents {
		s.Upstreams = append(s.Upstreams, Upstream{Name: fmt.Sprint("u", i), Content: c, Resources: len(c)})
	}
	return s
}

func TestADifferenceLastsSinceItWasFirstSeenAndCountsAfterTenSeconds(t *testing.T) {
	var table Table
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for seconds, there := range []string{"a", "b", "b", "b"} {
		table.Update(at(6*seconds), of("0", "a", "x"), map[string]Status{"10.0.0.1:1": of("1", there, "x")}, nil)
	}
	all := table.Replicas()
	if want := []Difference{{Upstream: "u0", Since: at(6), Here: 1, There: 1}}; len(all) != 2 || !reflect.DeepEqual(all[1].Differences, want) || all[0].Peer != "" {
		t.Errorf("%+v", all)
	}
	for _, now := range []time.Time{at(16), at(17)} {
		if reached, unreachable, differ := table.Counts(now); reached != 1 || unreachable != 0 || differ == 1 != now.Equal(at(17)) {
			t.Errorf("at %v: %d, %d, %d", now, reached, unreachable, differ)
		}
	}
	table.Update(at(30), of("0", "b", "x"), map[string]Status{"10.0.0.1:1": of("1", "b", "x")}, nil)
	if all := table.Replicas(); len(all[1].Differences) != 0 {
		t.Errorf("after they are the same: %+v", all)
	}
}

func TestAReplicaThatHoldsItsClientsDiffersInNothing(t *testing.T) {
	var table Table
	other := of("1", "b")
	other.Serving = false
	table.Update(time.Unix(1, 0), of("0", "a"), map[string]Status{"x": other}, nil)
	if all := table.Replicas(); len(all[1].Differences) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestAReplicaThatIsNotReachedKeepsItsNameAndIsForgottenWithItsAddress(t *testing.T) {
	var table Table
	table.Update(time.Unix(1, 0), of("0", "a"), map[string]Status{"x": of("1", "b")}, nil)
	table.Update(time.Unix(2, 0), of("0", "a"), nil, map[string]string{"x": "refused"})
	table.Update(time.Unix(3, 0), of("0", "a"), nil, map[string]string{"x": "refused"})
	got := table.Replicas()[1]
	if got.Reached || got.Problem != "refused" || got.Status.Node != "relay-1" || !got.Since.Equal(time.Unix(2, 0)) || len(got.Differences) != 0 {
		t.Errorf("%+v", got)
	}
	if _, unreachable, _ := table.Counts(time.Unix(3, 0)); unreachable != 1 {
		t.Errorf("%d are unreachable", unreachable)
	}
	table.Update(time.Unix(4, 0), of("0", "a"), map[string]Status{"x": of("2", "a")}, nil)
	if got := table.Replicas()[1]; !got.Reached || got.Problem != "" || !got.Since.Equal(time.Unix(4, 0)) {
		t.Errorf("%+v", got)
	}
	table.Update(time.Unix(5, 0), of("0", "a"), nil, nil)
	if all := table.Replicas(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestAStatusOutOfBoundsIsRefused(t *testing.T) {
	many := of("1")
	many.Upstreams = make([]Upstream, maxUpstreams+1)
	for name, s := range map[string]Status{"a long name": {Process: "1", Node: strings.Repeat("x", maxText+1)}, "too many upstreams": many, "no process": {Node: "a"}} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(strings.NewReader(string(text))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	text, err := json.Marshal(of("1", "a", "b"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("{}")
	f.Add(`{"process":"1","upstreams":[null]}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		var table Table
		table.Update(time.Unix(1, 0), s, map[string]Status{"a": s}, nil)
		if all := table.Replicas(); len(all[1].Differences) > len(s.Upstreams) {
			t.Errorf("%d differences of %d upstreams", len(all[1].Differences), len(s.Upstreams))
		}
	})
}
