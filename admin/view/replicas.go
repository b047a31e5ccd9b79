package view

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/orders"
)

// Replicas are the columns of a table of replicas.
var Replicas = Columns[orders.Replica]{
	text("Replica", func(r orders.Replica) string { return r.Name }),
	level("State", replicaState),
	age("Heard", func(r orders.Replica) time.Time { return r.Heard }),
	number("Follows", func(r orders.Replica) uint64 { return r.Follows }),
	number("Not in force", func(r orders.Replica) uint64 { return uint64(len(r.Lacks)) }),
	number("Holds", func(r orders.Replica) uint64 { return uint64(len(r.Holds)) }),
}

func replicaState(r orders.Replica, _ time.Time) (string, Level) {
	switch {
	case r.Away:
		return "away", Bad
	case len(r.Lacks) > 0:
		return "lacks orders", Warn
	case r.Self:
		return "this one", OK
	}
	return "follows", OK
}

// ReplicaProblems returns a line for each order that is not in force on another replica.
func ReplicaProblems(r orders.Replica) (lines []string) {
	for _, upstream := range slices.Sorted(maps.Keys(r.Lacks)) {
		if !r.Self { // relay status tells its own
			lines = append(lines, OneLine(fmt.Sprintf("%s: upstream %s: %s", r.Name, upstream, r.Lacks[upstream])))
		}
	}
	return lines
}
