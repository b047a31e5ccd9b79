package main

import (
	"testing"
	"time"
)

// TestADiskThatIsFullAgainIsBadSinceTheFirstTime unless it has been tried in between.
func TestADiskThatIsFullAgainIsBadSinceTheFirstTime(t *testing.T) {
	const relay = 0
	begin := time.Now()
	at := func(after time.Duration) time.Time { return begin.Add(after) }
	st := &stage{diskFull: map[int]time.Time{}, diskEnded: map[int]time.Time{}}
	st.diskIsFull(relay, begin)
	st.diskEnded[relay] = at(3 * time.Second)
	st.diskIsFull(relay, at(4*time.Second))
	if got := st.diskFull[relay]; !got.Equal(begin) {
		t.Errorf("full since %v after the first time", got.Sub(begin))
	}
	if !st.diskIsBad(relay, at(5*time.Second)) {
		t.Error("it is full, and good")
	}
	st.diskEnded[relay] = at(6 * time.Second)
	later := at(6*time.Second + diskPatience)
	if st.diskIsBad(relay, later) {
		t.Error("it is bad for ever")
	}
	st.diskIsFull(relay, later)
	if got := st.diskFull[relay]; !got.Equal(later) {
		t.Errorf("full since %v after the first time, and has been good meanwhile", got.Sub(begin))
	}
}
