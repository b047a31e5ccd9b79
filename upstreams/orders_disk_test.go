package upstreams_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func TestOrdersThatAreNotOnDiskAreTold(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		a.has(numbered(0, 10)...)
		w.quiet()
		path := filepath.Join(a.dir, upstreams.OrdersFile)
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), 0o700)); err != nil {
			t.Fatal(err)
		}
		a.must("freeze", intake.Order{Reason: "INC-1"}, 1, 1)
		if lines := strings.Join(a.m.OrderProblems(), "\n"); !strings.Contains(lines, "not on disk") {
			t.Error(lines)
		}
		a.must("unfreeze", intake.Order{}, 1, 1)
		w.store.set(func() { w.store.readOnly, a.full = true, true })
		if _, err := a.order("freeze", intake.Order{}); err == nil || !strings.Contains(err.Error(), "forgotten by a restart") {
			t.Errorf("neither written nor on disk: %v", err)
		}
	})
}

// TestAFullDiskRefusesNoFreeze: it is in force, and the answer tells that a restart forgets it.
func TestAFullDiskRefusesNoFreeze(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.full = true
		a.must("freeze", intake.Order{Reason: "INC-1"}, 2, 2)
		a.must("unfreeze", intake.Order{}, 2, 2)
		a.cut(true)
		if _, err := a.order("freeze", intake.Order{Reason: "INC-2"}); !errors.Is(err, errFull) || !strings.Contains(err.Error(), "is frozen, but that is not on disk yet") {
			t.Error(err)
		}
		if f := a.status().Frozen; f == nil || f.Reason != "INC-2" {
			t.Errorf("%+v", f)
		}
		a.cut(false)
		w.quiet()
		w.wantFrozen("INC-2")
	})
}

// TestTheEndOfAFreezeThatCouldNotBeWrittenEndsNoOther, though it has a higher counter.
func TestTheEndOfAFreezeThatCouldNotBeWrittenEndsNoOther(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.set(func() { a.readOnly = true })
		a.must("freeze", intake.Order{Reason: "INC-2"}, 1, 2)
		a.cut(true)
		b.must("freeze", intake.Order{Reason: "INC-1"}, 1, 2)
		a.must("unfreeze", intake.Order{}, 1, 2)
		a.end()
		a.start()
		w.store.set(func() { a.readOnly, a.isCut = false, false })
		w.quiet()
		w.wantFrozen("INC-1")
		b.must("unfreeze", intake.Order{}, 2, 2)
		w.quiet()
		w.wantFrozen("")
	})
}

// TestTheEndOfAFreezeThatWasNotWrittenIsTheEnd: the order about it has both.
func TestTheEndOfAFreezeThatWasNotWrittenIsTheEnd(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.setDown(true)
		a.must("freeze", intake.Order{Reason: "INC"}, 1, 2)
		w.store.setDown(false)
		a.must("unfreeze", intake.Order{}, 2, 2)
		w.wantFrozen("")
		w.quiet()
		w.wantFrozen("")
	})
}

// TestAReplicaThatCanNotWriteEndsNoFreezeThatOthersKnow, also if somebody has deleted the object.
func TestAReplicaThatCanNotWriteEndsNoFreezeThatOthersKnow(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.must("freeze", intake.Order{Reason: "INC"}, 2, 2)
		b.cut(true)
		w.store.set(func() { a.readOnly, w.store.data = true, nil })
		w.quiet()
		a.wantRefused("unfreeze", intake.Order{}, "the ConfigMap with the orders can not be used")
		w.wantFrozen("INC")
	})
}
