package downstream

import (
	"testing"
	"testing/synctest"

	"meshrelay/mirror"
)

// TestTurnLosesNoSignal: the goroutine looks again when there was a signal since it looked.
func TestTurnLosesNoSignal(t *testing.T) {
	var u turn
	if !u.begin() {
		t.Fatal("the first signal starts no goroutine")
	}
	if u.begin() {
		t.Error("a second goroutine starts")
	}
	if u.rest() {
		t.Error("the goroutine ends, and has not seen the second signal")
	}
	if !u.rest() {
		t.Error("the goroutine does not end")
	}
	if !u.begin() {
		t.Error("no goroutine starts once the first one has ended")
	}
}

// TestTurnShutsBehindTheLastGoroutine: then none begins, and the last one does not look again.
func TestTurnShutsBehindTheLastGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u turn
		u.begin()
		u.begin()
		shut := make(chan struct{})
		go func() {
			u.shut()
			close(shut)
		}()
		synctest.Wait()
		if mirror.IsClosed(shut) {
			t.Error("it does not wait")
		}
		if !u.rest() {
			t.Error("the goroutine looks again at an ended stream")
		}
		<-shut
		if u.begin() {
			t.Error("a goroutine starts on an ended stream")
		}
	})
}
