package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
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

func TestReplicasDifferWhereTheContentOfAnUpstreamDoes(t *testing.T) {
	var all []Replica
	for _, there := range []string{"a", "b", "b"} {
		all = Update(time.Unix(1, 0), all, of("0", "a", "x"), map[string]Status{"10.0.0.1:1": of("1", there, "x")}, nil)
	}
	if want := []Difference{{Upstream: "u0", Here: 1, There: 1}}; len(all) != 2 || !reflect.DeepEqual(all[1].Differences, want) || all[0].Peer != "" {
		t.Errorf("%+v", all)
	}
	all = Update(time.Unix(2, 0), all, of("0", "b", "x"), map[string]Status{"10.0.0.1:1": of("1", "b", "x")}, nil)
	if len(all[1].Differences) != 0 {
		t.Errorf("after they are the same: %+v", all)
	}
}

func TestAReplicaThatHoldsItsClientsDiffersInNothing(t *testing.T) {
	other := of("1", "b")
	other.Serving = false
	if all := Update(time.Unix(1, 0), nil, of("0", "a"), map[string]Status{"x": other}, nil); len(all[1].Differences) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestAReplicaThatIsNotReachedKeepsItsNameAndIsForgottenWithItsAddress(t *testing.T) {
	var all []Replica
	all = Update(time.Unix(1, 0), all, of("0", "a"), map[string]Status{"x": of("1", "b")}, nil)
	all = Update(time.Unix(2, 0), all, of("0", "a"), nil, []Failure{{"x", errors.New("refused")}})
	all = Update(time.Unix(3, 0), all, of("0", "a"), nil, []Failure{{"x", errors.New("refused")}})
	got := all[1]
	if got.Reached || got.Problem != "refused" || got.Status.Node != "relay-1" || !got.Since.Equal(time.Unix(2, 0)) || len(got.Differences) != 0 {
		t.Errorf("%+v", got)
	}
	all = Update(time.Unix(4, 0), all, of("0", "a"), map[string]Status{"x": of("2", "a")}, nil)
	if got := all[1]; !got.Reached || got.Problem != "" || !got.Since.Equal(time.Unix(4, 0)) {
		t.Errorf("%+v", got)
	}
	all = Update(time.Unix(5, 0), all, of("0", "a"), nil, nil)
	if len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func FuzzStatus(f *testing.F) {
	text, err := json.Marshal(of("1", "a", "b"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("{}")
	f.Add(`{"process":"1","upstreams":[null]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var s Status
		if json.Unmarshal([]byte(text), &s) != nil {
			return
		}
		if all := Update(time.Unix(1, 0), nil, s, map[string]Status{"a": s}, nil); len(all[1].Differences) > len(s.Upstreams) {
			t.Errorf("%d differences of %d upstreams", len(all[1].Differences), len(s.Upstreams))
		}
	})
}
