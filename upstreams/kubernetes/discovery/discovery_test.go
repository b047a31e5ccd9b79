package discovery

import (
	"slices"
	"testing"
	"time"

	"meshrelay/mirror"
)

var kind = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}

// Servers of two versions answer in turns, as they do while a cluster is upgraded.
func TestServersOfTwoVersionsDoNotHaveAKindListedAgainAndAgain_K1(t *testing.T) {
	tracker, at := NewTracker(0), time.Now()
	now, best := Resource{Kind: kind, Version: "v1beta1"}, Resource{Kind: kind, Version: "v1"}
	for range 10 {
		if tracker.Improves(best, now, at) || tracker.Improves(now, now, at) {
			t.Fatal("one answer is enough")
		}
	}
	answers := []bool{tracker.Improves(best, now, at), tracker.Improves(best, now, at), tracker.Improves(best, now, at)}
	if !slices.Equal(answers, []bool{false, false, true}) {
		t.Errorf("%v", answers)
	}
}

func TestAKindIsGoneWhenEnoughAnswersLackItForLong_K4(t *testing.T) {
	tracker, at := NewTracker(30*time.Second), time.Now()
	misses := func(after time.Duration) bool { return tracker.Misses(kind, at.Add(after)) }
	if misses(0) || misses(time.Second) || misses(2*time.Second) {
		t.Error("gone after two seconds")
	}
	tracker.Serves(kind)
	if misses(40*time.Second) || misses(80*time.Second) || !misses(90*time.Second) {
		t.Error("gone after two answers, or not after three")
	}
	if tracker.Drop(kind); misses(100 * time.Second) {
		t.Error("gone twice")
	}
	tracker.Serves(kind)
	if misses(200 * time.Second) {
		t.Error("gone after one answer")
	}
}

func TestANamespaceStaysOneSegmentOfAPath(t *testing.T) {
	r := Resource{Kind: mirror.Kind{Group: "a.b", Kind: "C"}, Version: "v1", Plural: "cs"}
	if got := r.Path("x?y#%2fz"); got != "/apis/a.b/v1/namespaces/x%3Fy%23%252fz/cs" {
		t.Error(got)
	}
}
