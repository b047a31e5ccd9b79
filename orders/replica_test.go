package orders

import (
	"testing"
	"time"
)

func TestAReportIsWrittenWhenItChangesAndNowAndThen(t *testing.T) {
	r, data, own := Roster{Name: "a", Process: "p"}, map[string]string{}, Report{Follows: 1}
	if r.Due(own).After(start) {
		t.Error("the first one is not due")
	}
	r.Write(data, own)
	r.Read(start, data)
	if got := r.Due(own).Sub(start); got != mostPause || mostPause > 30*time.Second {
		t.Errorf("an unchanged one is due after %v", got)
	}
	for what, next := range map[string]Report{
		"counter": {Follows: 2}, "lacks": {Follows: 1, Lacks: map[string]string{"east": "x"}}, "holds": {Follows: 1, Holds: []Hold{{"east", "h"}}},
	} {
		if got := r.Due(next).Sub(start); got != leastPause {
			t.Errorf("another %s is due after %v", what, got)
		}
	}
	r.Read(start, map[string]string{}) // somebody has deleted it
	if got := r.Due(own).Sub(start); got != leastPause {
		t.Errorf("a lost one is due after %v", got)
	}
	before := data["replica.a"]
	r.Read(start, data)
	if r.Write(data, own); data["replica.a"] == before {
		t.Error("two reports are the same: others take the replica for away")
	}
}

func TestAReplicaWhoseReportStaysTheSameIsAway(t *testing.T) {
	r := Roster{Name: "a", Process: "p"}
	data := map[string]string{"replica.b": `{"process":"q","follows":3}`, "replica.c": "{", "note": "by hand"}
	r.Read(start, data)
	r.Read(start.Add(time.Minute), data)
	all := r.Replicas(start.Add(awayAfter-time.Second), Report{})
	if len(all) != 2 || !all[0].Self || all[1].Name != "b" || all[1].Away || all[1].Follows != 3 {
		t.Fatalf("%+v", all)
	}
	now := start.Add(awayAfter)
	if all := r.Replicas(now, Report{}); !all[1].Away {
		t.Errorf("%+v", all)
	}
	if r.Forget(now, data); data["replica.b"] != "" || data["note"] == "" {
		t.Error(data)
	}
	r.Read(now, map[string]string{"replica.b": `{"process":"q","follows":3,"beat":2}`})
	if all := r.Replicas(now, Report{}); all[1].Away || all[1].Beat != 2 {
		t.Errorf("back: %+v", all)
	}
}

func TestAnotherProcessUnderTheSameNameIsTold(t *testing.T) {
	r, data := Roster{Name: "a", Process: "p"}, map[string]string{"replica.a": `{"process":"before"}`}
	if r.Read(start, data); r.Twin(start) {
		t.Error("the former process counts as another one")
	}
	r.Write(data, Report{})
	r.Read(start, data)
	if r.Read(start.Add(time.Second), data); r.Twin(start.Add(time.Second)) {
		t.Error("it takes itself for another one")
	}
	now := start.Add(2 * time.Second)
	if r.Read(now, map[string]string{"replica.a": `{"process":"other"}`}); !r.Twin(now) || r.Twin(now.Add(awayAfter)) {
		t.Error("another process is not told, or told for ever")
	}
}
