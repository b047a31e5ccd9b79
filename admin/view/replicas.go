package view

import (
	"cmp"
	"fmt"
	"time"

	"meshrelay/peers"
)

// Replicas are the columns of a table of replicas.
var Replicas = Columns[peers.Replica]{
	text("Replica", ReplicaName),
	level("State", replicaState),
	age("Since", func(r peers.Replica) time.Time { return r.Since }),
	text("Version", func(r peers.Replica) string { return r.Status.Version }),
	text("Config", func(r peers.Replica) string { return r.Status.Config }),
	number("Decisions", func(r peers.Replica) uint64 { return r.Status.Decisions }),
	text("Clients synced", func(r peers.Replica) string { return fmt.Sprintf("%d of %d", r.Status.Synced, r.Status.Clients) }),
}

// ReplicaName returns the name of a replica, or its address while the name is unknown.
func ReplicaName(r peers.Replica) string { return cmp.Or(r.Status.Node, r.Peer) }

func replicaState(r peers.Replica, _ time.Time) (string, Level) {
	switch {
	case !r.Reached:
		return "unreachable", Bad
	case !r.Status.Serving:
		return "holds its clients", Warn
	case r.Peer == "":
		return "this one", OK
	case len(r.Differences) > 0:
		return "differs", Warn
	}
	return "the same", OK
}

// ReplicaProblems returns a line for each replica that is not reached, and for each upstream of which one serves
// another content.
func ReplicaProblems(r peers.Replica, now time.Time) (lines []string) {
	if !r.Reached {
		lines = append(lines, fmt.Sprintf("%s (%s) is unreachable for %s: %s", ReplicaName(r), r.Peer, Ago(r.Since, now), OneLine(r.Problem)))
	}
	for _, d := range r.Differences {
		lines = append(lines, fmt.Sprintf("%s serves another content of upstream %s: %s, and here %d", ReplicaName(r), d.Upstream, Count(d.There, "resource"), d.Here))
	}
	return lines
}
